"""A run over its attempts: attempts.jsonl, each step once in metrics.jsonl, and the events that its
display showed.

events.jsonl has every event but steps, with its time; metrics.jsonl has the steps, with the seconds
since the previous one. The times of steps are computed from both, attempt by attempt of a resumed
run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.execution.record.checkpoints import Checkpoint
from launch.execution.record.events import Event, read_event
from launch.execution.record.outcome import Outcome
from launch.files import append_json, open_file, parse_json_lines, read_json_lines, write_json_lines
from launch.worker.json_codec import versioned

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


class RunHistory:
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


def checkpoint_step(checkpoint: object) -> int | None:
    """Return the step in a checkpoint's name (`step_40`, `checkpoint-40`); None for an epoch's, and
    without one.
    """
    if not isinstance(checkpoint, str):
        return None
    match = re.fullmatch(r"(?:global_)?(?:step|checkpoint)[_-]?(\d+)", checkpoint)
    return int(match[1]) if match else None


ATTEMPTS = "attempts.jsonl"
SUPERSEDED = "metrics.superseded.jsonl"


def begin_attempt(folder: Path, chosen: Checkpoint | None, incomplete: Sequence[Checkpoint]) -> int:
    """Record that an attempt begins and return its number, from 1.

    Steps that were logged after the checkpoint that it resumes from (`chosen`) will be logged
    again: they move from metrics.jsonl to metrics.superseded.jsonl.
    """
    number = len(read_json_lines(folder / ATTEMPTS)) + 1
    attempt = {
        "attempt": number,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "resumed_from": chosen.path.name if chosen else None,
        "set_aside": [checkpoint.path.name for checkpoint in incomplete],
    }
    append_json(folder / ATTEMPTS, versioned(attempt))
    if chosen is not None and chosen.unit == "step":
        supersede_steps(folder / "metrics.jsonl", chosen.number)
    return number


def supersede_steps(metrics: Path, step: int) -> None:
    """Keep the steps up to `step`, one object each, in order; move the others to
    metrics.superseded.jsonl.
    """
    kept: dict[int, Mapping[str, Any]] = {}
    superseded = []
    for entry in read_json_lines(metrics):
        number = entry.get("step")
        if isinstance(number, int) and number <= step:
            kept[number] = entry
        else:
            superseded.append(entry)
    write_json_lines(metrics, [kept[number] for number in sorted(kept)])
    if superseded:
        append_json(metrics.with_name(SUPERSEDED), *superseded)


def earlier_losses(folder: Path) -> dict[int, float]:
    """Return the loss of each step that the attempts before a resumed one logged; {} for a run from
    its first step.
    """
    attempts = read_json_lines(folder / ATTEMPTS)
    if not attempts or attempts[-1].get("resumed_from") is None:
        return {}
    entries = [*read_json_lines(folder / SUPERSEDED), *read_json_lines(folder / "metrics.jsonl")]
    steps = ((entry.get("step"), entry.get("loss")) for entry in entries)
    return {
        step: float(loss)
        for step, loss in steps
        if isinstance(step, int) and isinstance(loss, (int, float))
    }


def drop_repeated_steps(metrics: Path) -> None:
    """Leave one object a step, in order, where a later attempt began at a step not known in advance
    (an epoch's).
    """
    entries = read_json_lines(metrics)
    kept: list[Mapping[str, Any]] = []
    for entry in entries:
        while kept and kept[-1]["step"] >= entry["step"]:
            kept.pop()
        kept.append(entry)
    if len(kept) != len(entries):
        write_json_lines(metrics, kept)


def add_earlier_steps(outcome: Outcome, metrics: Path) -> Outcome:
    """Return the outcome with the run's last step, for a resumed attempt that had no step left to
    log.
    """
    entries = read_json_lines(metrics)
    if not entries or outcome.steps >= entries[-1]["step"]:
        return outcome
    return replace(outcome, steps=entries[-1]["step"], last_loss=entries[-1].get("loss"))
