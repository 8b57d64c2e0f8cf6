"""Follow the events of a run from its files, for a replay, `launch logs` and TensorBoard.

events.jsonl has every event except steps, with its time; metrics.jsonl has the steps, with the
seconds since the previous one. The times of steps are computed from both, for each attempt of a
resumed run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.execution.record.checkpoints import checkpoint_step
from launch.execution.record.events import Event, read_event
from launch.files import open_file, parse_json_lines

_SHOWN_KINDS = ("phase", "total_steps", "warning", "evaluation", "early_stop")


class JsonLinesReader:
    """Reads a growing file of JSON objects; each `read` yields what was completed since the last.

    A file that shrank was truncated by a resumed run, and what remains of it was read before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the new objects; other lines are skipped."""
        try:
            with open_file(self._path) as file:
                self._position = min(self._position, file.seek(0, 2))
                file.seek(self._position)
                data = file.read()
        except OSError:
            return
        *lines, rest = data.split(b"\n")
        self._position += len(data) - len(rest)
        yield from filter(None, parse_json_lines(lines))


class EventFollower:
    """Reads a run folder's events in the order of their times."""

    def __init__(self, folder: Path) -> None:
        self._events = JsonLinesReader(folder / "events.jsonl")
        self._steps = JsonLinesReader(folder / "metrics.jsonl")
        self._attempts = JsonLinesReader(folder / "attempts.jsonl")
        # For each attempt: the step of the checkpoint that it resumed from, when it began, and when
        # it began to train.
        self._resumed_steps: list[int | None] = []
        self._attempt_times: list[float] = []
        self._training_times: list[float] = []
        self._attempt = 0  # index of the attempt that logged the last step
        self._time = 0.0  # the end of the last step, its evaluation included
        self._step = -1  # the last step

    def read(self) -> list[Event]:
        """Return the events that are new since the last call."""
        # Steps are read first: an event that precedes one of them has been written by then.
        steps = list(self._steps.read())
        for attempt in self._attempts.read():
            self._resumed_steps.append(checkpoint_step(attempt.get("resumed_from")))
        events = []
        for value in self._events.read():
            event = read_event(value)
            if event is None:
                continue
            self._note_attempt(event)
            if event.kind in _SHOWN_KINDS:
                events.append(event)
        for value in steps:
            step_event = self._read_step(value)
            if step_event is not None:
                events.append(step_event)
        return sorted(events, key=lambda event: event.time)

    def _note_attempt(self, event: Event) -> None:
        """Note the time if an attempt, or its training, begins with this event."""
        phase = event.data["phase"] if event.kind == "phase" else None
        if phase == "import" and event.rank == 0:
            self._attempt_times.append(event.time)
        elif phase == "training":
            # An attempt that never trained gets the time of the next one.
            while len(self._training_times) < len(self._attempt_times):
                self._training_times.append(event.time)

    def _read_step(self, value: dict[str, Any]) -> Event | None:
        """Return the event of a logged step, with the time at which it ended."""
        step = value.get("step")
        if not isinstance(step, int):
            return None
        seconds = _seconds_of(value, "seconds")
        previous = self._time
        if not previous and self._training_times:
            previous = self._training_times[0]
        if self._is_of_next_attempt(step, previous + seconds):
            self._attempt += 1
            previous = self._training_times[self._attempt]
        time = previous + seconds
        # The seconds of the next step do not include the evaluation after this one.
        self._time = time + _seconds_of(value, "eval_runtime")
        self._step = step
        data = {name: item for name, item in value.items() if name != "schema_version"}
        return Event("step", time, 0, data)

    def _is_of_next_attempt(self, step: int, time: float) -> bool:
        """Return whether the step was logged by the next attempt.

        `time` is when it ended if it is of the same attempt as the step before.
        """
        next_attempt = self._attempt + 1
        if next_attempt >= len(self._training_times):
            return False
        if step <= self._step:
            return True
        resumed_step = None
        if next_attempt < len(self._resumed_steps):
            resumed_step = self._resumed_steps[next_attempt]
        if resumed_step is not None:
            return step > resumed_step
        return time > self._attempt_times[next_attempt]


def _seconds_of(value: dict[str, Any], name: str) -> float:
    seconds = value.get(name)
    return float(seconds) if isinstance(seconds, (int, float)) else 0.0
