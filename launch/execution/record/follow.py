"""A run over its attempts: attempts.jsonl, each step once in metrics.jsonl, and the events that its
display showed.

events.jsonl has every event but steps, with its time; metrics.jsonl has the steps, with the seconds
since the previous one. The times of steps are computed from both, attempt by attempt of a resumed
run.
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
    """Reads a growing file of JSON objects; each `read` yields those completed since the last one.

    A file that shrank was truncated by a resumed run: what is left of it was read before.
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
        self._starts = JsonLinesReader(folder / "attempts.jsonl")
        self._resumed_steps: list[
            int | None
        ] = []  # the step of the checkpoint that each attempt resumed from
        self._attempt_times: list[float] = []  # when each attempt began
        self._training_times: list[float] = []  # when each attempt began to train
        self._attempt = 0
        self._time = 0.0
        self._step = -1

    def read(self) -> list[Event]:
        """Return the events that are new since the last call."""
        # steps first: an event that precedes one of them has been written by then
        steps = list(self._steps.read())
        self._resumed_steps += [
            checkpoint_step(value.get("resumed_from")) for value in self._starts.read()
        ]
        events = [
            event
            for value in self._events.read()
            if (event := read_event(value)) and self._follow(event)
        ]
        events += [event for value in steps if (event := self._time_step(value))]
        return sorted(events, key=lambda event: event.time)

    def _follow(self, event: Event) -> bool:
        """Note when attempts, and their training, begin; return whether the event is shown."""
        phase = event.data["phase"] if event.kind == "phase" else None
        if phase == "import" and event.rank == 0:
            self._attempt_times.append(event.time)
        elif phase == "training":
            self._training_times += [event.time] * (
                len(self._attempt_times) - len(self._training_times)
            )
        return event.kind in _SHOWN_KINDS

    def _time_step(self, value: dict[str, Any]) -> Event | None:
        step = value.get("step")
        if not isinstance(step, int):
            return None
        seconds = value.get("seconds")
        elapsed = float(seconds) if isinstance(seconds, (int, float)) else 0.0
        previous = self._time or (self._training_times[0] if self._training_times else 0.0)
        next_attempt = self._attempt + 1
        if next_attempt < len(self._training_times):
            resumed = (
                self._resumed_steps[next_attempt]
                if next_attempt < len(self._resumed_steps)
                else None
            )
            is_next = (
                step > resumed
                if resumed is not None
                else previous + elapsed > self._attempt_times[next_attempt]
            )
            if is_next or step <= self._step:
                self._attempt, previous = next_attempt, self._training_times[next_attempt]
        time = previous + elapsed
        # the seconds between this step and the next one do not count it
        evaluated = value.get("eval_runtime")
        self._time = time + (float(evaluated) if isinstance(evaluated, (int, float)) else 0.0)
        self._step = step
        return Event(
            "step",
            time,
            0,
            {name: item for name, item in value.items() if name != "schema_version"},
        )
