"""Read a run's folder: the one reader, for status, report, compare, eval, merge, trials and the
Python API.

Each part is read when it is first used. A part that is missing, half-written or broken is empty, and
`Run.notes` names it.
"""

from __future__ import annotations

import calendar
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from launch.errors import EXIT_INTERRUPTED
from launch.execution.record.events import Event, read_event
from launch.execution.record.format import format_problem
from launch.execution.record.lock import Holder, find_holder, lock_path
from launch.execution.record.outcome import (
    FolderStatus,
    Outcome,
    ValidationRecord,
    folder_status,
    read_outcome,
    read_validation,
)
from launch.execution.record.phases import EventSummary, summarize_events
from launch.execution.record.steps import MetricCurves, is_step, read_curves
from launch.files import (
    first_written,
    iterate_json_lines,
    load_json,
    open_file,
    parse_json_lines,
    read_file,
    read_json_object,
)
from launch.planning.find_runs import run_name
from launch.worker.finding import Finding
from launch.worker.json_codec import versioned

_RECENT_STEPS = 20  # whose median duration gives the time left
_TAIL = 1 << 16  # bytes at the end of metrics.jsonl that hold them
_FILES = (
    "plan.json",
    "metrics.jsonl",
    "events.jsonl",
    "config.yaml",
    "command.sh",
    "DONE",
    "FAILED",
    "logs",
)


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, from its files and its lock."""

    path: Path
    name: str
    # running, done, failed, stopped (by the user), unfinished (it ended without recording an
    # outcome) or absent
    state: str
    since: float  # unix seconds: when it began (running) or ended
    holder: Holder | None = None
    heartbeat: float | None = None  # seconds since the holder's last one
    phase: str | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    outcome: Outcome | None = None
    validation: ValidationRecord | None = None  # so far, while it runs
    other_format: Finding | None = None  # of its record, which may then be read wrongly

    def __repr__(self) -> str:
        step = (
            f", step {self.step}" + (f"/{self.total_steps}" if self.total_steps else "")
            if self.step
            else ""
        )
        return f"<{self.name}: {self.state}{step}" + (
            f", loss {self.loss:.4f}>" if self.loss is not None else ">"
        )

    def as_json(self) -> dict[str, Any]:
        holder, outcome = self.holder, self.outcome
        return versioned(
            {
                "run": self.name,
                "folder": str(self.path),
                "state": self.state,
                "since": round(self.since, 3),
                **{name: getattr(holder, name, None) for name in ("pid", "host", "user")},
                "heartbeat_seconds": None if self.heartbeat is None else round(self.heartbeat, 1),
                "phase": self.phase,
                "step": self.step,
                "total_steps": self.total_steps,
                "loss": self.loss,
                "tokens_per_second": self.tokens_per_second,
                "validation": self.validation,
                "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 1),
                "exit_code": outcome.exit_code if outcome else None,
                **self._explanation(),
            }
        )

    def _explanation(self) -> dict[str, str | None]:
        """Why the run ended; of one of another format, why it may be read wrongly."""
        problem, outcome = self.other_format, self.outcome
        if problem is not None:
            cure = str(problem.cure) if problem.cure else None
            return {"cause": problem.message, "cause_id": problem.id, "cure": cure}
        return {name: getattr(outcome, name, None) for name in ("cause", "cause_id", "cure")}


@dataclass(frozen=True)
class Run:
    """A run folder, as it is when a part of it is first used."""

    folder: Path

    @property
    def name(self) -> str:
        """`stage/name`."""
        return run_name(self.folder)

    @cached_property
    def folder_status(self) -> FolderStatus:
        return folder_status(self.folder)

    @cached_property
    def holder(self) -> tuple[Holder, float | None] | None:
        """The process that runs it, and the seconds since its last heartbeat; None when it is not
        running.
        """
        return find_holder(lock_path(self.folder))

    @cached_property
    def outcome(self) -> Outcome | None:
        return read_outcome(self.folder)

    @cached_property
    def finished(self) -> float | None:
        """When the outcome was recorded, in unix seconds."""
        text = (self.outcome.finished if self.outcome else None) or ""
        try:
            return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
        except ValueError:
            return None

    @cached_property
    def plan(self) -> dict[str, Any]:
        return read_json_object(self.folder / "plan.json")

    @cached_property
    def other_format(self) -> Finding | None:
        """The problem of a folder whose plan.json has another format; None for one without a
        plan.json.
        """
        path = self.folder / "plan.json"
        return format_problem(path, self.plan) if self.plan or path.is_file() else None

    @cached_property
    def flags(self) -> dict[str, Any]:
        """The value of each flag of the trainer."""
        return {
            name: mapping(flag).get("value")
            for name, flag in mapping(self.plan.get("flags")).items()
        }

    @cached_property
    def versions(self) -> dict[str, Any]:
        return read_json_object(self.folder / "versions.json")

    @cached_property
    def git(self) -> dict[str, Any]:
        return read_json_object(self.folder / "git.json")

    @cached_property
    def evidence(self) -> list[dict[str, Any]]:
        return objects(read_json_object(self.folder / "evidence.json").get("items"))

    @cached_property
    def patches(self) -> list[dict[str, Any]]:
        try:
            return objects(load_json(self.folder / "patches.json"))
        except (OSError, ValueError):
            return []

    @cached_property
    def attempts(self) -> list[dict[str, Any]]:
        return [entry for entry in iterate_json_lines(self.folder / "attempts.jsonl") if entry]

    @cached_property
    def command(self) -> str:
        """The text of command.sh."""
        return _read_text(self.folder / "command.sh")

    @cached_property
    def config(self) -> str:
        """The text of config.yaml."""
        return _read_text(self.folder / "config.yaml")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved configuration."""
        from launch.config.yaml_nodes import NotYamlError, load_yaml

        try:
            return mapping(load_yaml(self.config))
        except NotYamlError:
            return {}

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of metrics.jsonl, which may be millions."""
        for entry in iterate_json_lines(self.folder / "metrics.jsonl"):
            if entry is not None and is_step(entry):
                yield entry

    def events(self, *kinds: str) -> Iterator[Event]:
        """Yield the events of these kinds; without any, all of them.

        A line of events.jsonl that is no valid event is left out.
        """
        for entry in iterate_json_lines(self.folder / "events.jsonl"):
            event = read_event(entry) if entry is not None else None
            if event is not None and (not kinds or event.kind in kinds):
                yield event

    @cached_property
    def metrics(self) -> MetricCurves:
        """The metrics of the logged steps, each as a curve."""
        return read_curves(self.folder / "metrics.jsonl")

    @cached_property
    def event_summary(self) -> EventSummary:
        """The phases of each attempt, the warnings, and what the guards found."""
        return summarize_events(self.events("phase", "guard", "warning"), self.finished)

    @cached_property
    def total_steps(self) -> int | None:
        """The steps of the whole training, as the trainer reported them last."""
        reported = [int(event.data["steps"]) for event in self.events("total_steps")]
        positive = [steps for steps in reported if steps > 0]
        return positive[-1] if positive else None

    @cached_property
    def notes(self) -> list[str]:
        """A sentence for each part of the record that is missing, or that could not be read."""
        notes = [self._note_plan(), self._note_steps(), *self.damaged_lines]
        notes += [
            f"{name} cannot be read"
            for name in ("DONE", "FAILED", "evidence.json", "versions.json", "git.json")
            if (self.folder / name).exists() and not read_json_object(self.folder / name)
        ]
        return [note for note in notes if note]

    def _note_plan(self) -> str | None:
        if not self.plan:
            state = "cannot be read" if (self.folder / "plan.json").exists() else "is missing"
            return f"plan.json {state}: the plan, its flags and its command are not shown"
        return str(self.other_format) if self.other_format else None

    def _note_steps(self) -> str | None:
        if not (self.folder / "metrics.jsonl").exists():
            return "metrics.jsonl is missing: no step was logged"
        return None if self.metrics.steps else "metrics.jsonl has no logged step"

    @cached_property
    def damaged_lines(self) -> list[str]:
        """A sentence for each file of lines with some that could not be read."""
        events = iterate_json_lines(self.folder / "events.jsonl")
        attempts = iterate_json_lines(self.folder / "attempts.jsonl")
        counts = {
            "metrics.jsonl": self.metrics.unreadable,
            "events.jsonl": sum(line is None or read_event(line) is None for line in events),
            "attempts.jsonl": sum(line is None for line in attempts),
        }
        notes = [count_unreadable(name, count) for name, count in counts.items()]
        return [note for note in notes if note]

    @cached_property
    def status(self) -> RunStatus:
        """The status of the run. Of metrics.jsonl only the end is read where there is an outcome."""
        holder, heartbeat = self.holder or (None, None)
        outcome = None if holder else self.outcome
        state = "running" if holder else str(self.folder_status)
        if outcome is not None and outcome.exit_code == EXIT_INTERRUPTED:
            state = "stopped"
        phase = self._last_phase() if holder else None
        steps = self._recent_steps()
        last = steps[-1] if steps else {}
        durations = sorted(
            seconds for step in steps if (seconds := number(step.get("seconds"))) is not None
        )
        step = last.get("step")
        seconds_left = None
        if holder and self.total_steps and step is not None and durations:
            # the median: the first step of each attempt includes its warm-up
            seconds_left = max(0, self.total_steps - step) * durations[len(durations) // 2]
        return RunStatus(
            path=self.folder,
            name=self.name,
            state=state,
            since=self._find_since(state),
            holder=holder,
            heartbeat=heartbeat,
            phase=phase,
            step=step,
            total_steps=self.total_steps,
            loss=number(last.get("loss")),
            tokens_per_second=number(last.get("tokens_per_second")),
            seconds_left=seconds_left,
            outcome=outcome,
            validation=outcome.validation if outcome else read_validation(self.folder),
            other_format=self.other_format,
        )

    def _last_phase(self) -> str | None:
        phases = [str(event.data["phase"]) for event in self.events("phase") if event.rank == 0]
        return phases[-1] if phases else None

    def _recent_steps(self) -> Sequence[Mapping[str, Any]]:
        try:
            with open_file(self.folder / "metrics.jsonl") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL))
                lines = file.read().split(b"\n")[:-1][-_RECENT_STEPS:]
        except OSError:
            return []
        return [value for value in parse_json_lines(lines) if value is not None and is_step(value)]

    def _find_since(self, state: str) -> float:
        """Return when the run began (running) or ended: the time of the file that was written
        then.
        """
        names = {"running": ("command.sh", "plan.json"), "done": ("DONE",), "failed": ("FAILED",)}
        written = first_written(
            self.folder, names.get(state, ("metrics.jsonl", "events.jsonl", "plan.json"))
        )
        return time.time() if written is None else written


def is_run_folder(folder: Path) -> bool:
    """Return whether the folder holds anything of a run."""
    return any((folder / name).exists() for name in _FILES)


def count_unreadable(name: str, count: int) -> str | None:
    """Return the sentence about the lines of a file that could not be read; None without any."""
    if not count:
        return None
    lines = "1 line" if count == 1 else f"{count:,} lines"
    return f"{lines} of {name} could not be read and are left out"


def number(value: object) -> float | None:
    """Return a JSON number as a float; None for anything else, and for what is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number that no float holds
        return None


def mapping(value: object) -> dict[str, Any]:
    """Return a JSON object; {} for anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a JSON list; [] for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8", "replace")
    except OSError:
        return ""


def command_for(verb: str, folder: Path, *options: str) -> str:
    """Return the command that applies `verb` to a run, for the current folder.

    For example `launch logs sft/gpu8 --follow`.
    """
    name = run_name(folder)
    runs = folder.absolute().parents[name.count("/")]
    location = [] if runs == Path.cwd() / "runs" else [f"runs={runs}"]
    return shlex.join(["launch", verb, name, *options, *location])


def is_running(folder: Path) -> bool:
    return find_holder(lock_path(folder)) is not None
