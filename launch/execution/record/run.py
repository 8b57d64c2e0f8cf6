"""Read a run's folder. Status, report, compare, eval, merge, trials and the Python API use this.

Each part is read when it is first used. A part that is missing, half-written or broken is empty, and
`Run.missing_parts` names it.
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
    folder_status,
    read_outcome,
    read_validation,
)
from launch.execution.record.phases import EventSummary, summarize_events
from launch.execution.record.progress import Progress, read_progress
from launch.execution.record.run_status import RunStatus
from launch.execution.record.steps import MetricCurves, is_step, read_curves
from launch.files import (
    first_written,
    iterate_json_lines,
    load_json,
    open_file,
    parse_json_lines,
    read_json_object,
    read_text_or_empty,
)
from launch.planning.find_runs import run_name
from launch.worker.finding import Finding
from launch.worker.wording import noun_for

_RECENT_STEPS = 20  # the median of their durations gives the time left
_TAIL = 1 << 16  # bytes at the end of metrics.jsonl in which the recent steps are
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
class Run:
    """A run folder, as it is when a part of it is first used."""

    folder: Path
    until_step: int | None = None  # the last step that `progress` counts, that of a checkpoint

    @property
    def name(self) -> str:
        """`stage/name`."""
        return run_name(self.folder)

    @cached_property
    def folder_status(self) -> FolderStatus:
        return folder_status(self.folder)

    @cached_property
    def holder(self) -> tuple[Holder, float | None] | None:
        """The process that runs it, and the seconds since the last heartbeat of that process.

        None when the run is not running.
        """
        return find_holder(lock_path(self.folder))

    @cached_property
    def outcome(self) -> Outcome | None:
        return read_outcome(self.folder)

    @cached_property
    def finished(self) -> float | None:
        """When the outcome was recorded, in unix seconds."""
        if self.outcome is None or self.outcome.finished is None:
            return None
        try:
            moment = time.strptime(self.outcome.finished, "%Y-%m-%dT%H:%M:%SZ")
            return float(calendar.timegm(moment))
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
        flags = mapping(self.plan.get("flags"))
        return {name: mapping(flag).get("value") for name, flag in flags.items()}

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
        return read_text_or_empty(self.folder / "command.sh")

    @cached_property
    def config(self) -> str:
        """The text of config.yaml."""
        return read_text_or_empty(self.folder / "config.yaml")

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

        A line of events.jsonl that is not a valid event is left out.
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
    def progress(self) -> Progress:
        """The progress and speed of the training, until `until_step`."""
        return read_progress(iterate_json_lines(self.folder / "metrics.jsonl"), self.until_step)

    @cached_property
    def event_summary(self) -> EventSummary:
        """The phases of each attempt, the warnings, and the findings of guards."""
        return summarize_events(self.events("phase", "guard", "warning"), self.finished)

    @cached_property
    def total_steps(self) -> int | None:
        """The steps of the whole training, as the trainer reported them last."""
        reported = [int(event.data["steps"]) for event in self.events("total_steps")]
        positive = [steps for steps in reported if steps > 0]
        return positive[-1] if positive else None

    @cached_property
    def missing_parts(self) -> list[str]:
        """A sentence for each part of the record that is missing, or that could not be read."""
        sentences = [self._check_plan(), self._check_steps(), *self.damaged_lines]
        for name in ("DONE", "FAILED", "evidence.json", "versions.json", "git.json"):
            path = self.folder / name
            if path.exists() and not read_json_object(path):
                sentences.append(f"{name} cannot be read")
        return [sentence for sentence in sentences if sentence]

    def _check_plan(self) -> str | None:
        if not self.plan:
            state = "cannot be read" if (self.folder / "plan.json").exists() else "is missing"
            return f"plan.json {state}: the plan, its flags and its command are not shown"
        return str(self.other_format) if self.other_format else None

    def _check_steps(self) -> str | None:
        if not (self.folder / "metrics.jsonl").exists():
            return "metrics.jsonl is missing: no step was logged"
        return None if self.metrics.steps else "metrics.jsonl has no logged step"

    @cached_property
    def damaged_lines(self) -> list[str]:
        """A sentence for each JSON Lines file with lines that could not be read."""
        events = iterate_json_lines(self.folder / "events.jsonl")
        attempts = iterate_json_lines(self.folder / "attempts.jsonl")
        damaged_events = sum(value is None or read_event(value) is None for value in events)
        damaged_attempts = sum(value is None for value in attempts)
        counts = [
            count_unreadable("metrics.jsonl", self.metrics.unreadable),
            count_unreadable("events.jsonl", damaged_events),
            count_unreadable("attempts.jsonl", damaged_attempts),
        ]
        return [count for count in counts if count]

    @cached_property
    def status(self) -> RunStatus:
        """The status of the run. If there is an outcome, only the end of metrics.jsonl is read."""
        holder, heartbeat = self.holder or (None, None)
        outcome = None if holder else self.outcome
        state = "running" if holder else str(self.folder_status)
        if outcome is not None and outcome.exit_code == EXIT_INTERRUPTED:
            state = "stopped"
        recent_steps = self._recent_steps()
        last_step = recent_steps[-1] if recent_steps else {}
        return RunStatus(
            path=self.folder,
            name=self.name,
            state=state,
            since=self._find_since(state),
            holder=holder,
            heartbeat=heartbeat,
            phase=self._last_phase() if holder else None,
            step=last_step.get("step"),
            total_steps=self.total_steps,
            loss=number(last_step.get("loss")),
            reward=number(last_step.get("reward")),
            tokens_per_second=number(last_step.get("tokens_per_second")),
            seconds_left=self._estimate_seconds_left(recent_steps) if holder else None,
            outcome=outcome,
            validation=outcome.validation if outcome else read_validation(self.folder),
            other_format=self.other_format,
        )

    def _estimate_seconds_left(self, recent_steps: Sequence[Mapping[str, Any]]) -> float | None:
        """Estimate the time left from the median duration of the recent steps; None if it is
        unknown. A mean would include the warm-up in the first step of an attempt.
        """
        durations = [number(step.get("seconds")) for step in recent_steps]
        known_durations = sorted(seconds for seconds in durations if seconds is not None)
        if not self.total_steps or not known_durations:
            return None
        median = known_durations[len(known_durations) // 2]
        last_step: int = recent_steps[-1]["step"]
        return max(0, self.total_steps - last_step) * median

    def _last_phase(self) -> str | None:
        phases = [str(event.data["phase"]) for event in self.events("phase") if event.rank == 0]
        return phases[-1] if phases else None

    def _recent_steps(self) -> Sequence[Mapping[str, Any]]:
        """Return the last logged steps, at most _RECENT_STEPS, from the end of metrics.jsonl."""
        try:
            with open_file(self.folder / "metrics.jsonl") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL))
                *lines, _ = file.read().split(b"\n")  # a line that is still written is left out
        except OSError:
            return []
        values = parse_json_lines(lines[-_RECENT_STEPS:])
        return [value for value in values if value is not None and is_step(value)]

    def _find_since(self, state: str) -> float:
        """Return when the run began (running) or ended: the time of the file that was written
        then.
        """
        names = {"running": ("command.sh", "plan.json"), "done": ("DONE",), "failed": ("FAILED",)}
        otherwise = ("metrics.jsonl", "events.jsonl", "plan.json")
        written = first_written(self.folder, names.get(state, otherwise))
        return time.time() if written is None else written


def is_run_folder(folder: Path) -> bool:
    """Return whether the folder holds anything of a run."""
    return any((folder / name).exists() for name in _FILES)


def count_unreadable(name: str, count: int) -> str | None:
    """Return the sentence about the lines of a file that could not be read; None without any."""
    if not count:
        return None
    lines = f"{count:,} {noun_for(count, 'line')}"
    return f"{lines} of {name} could not be read and are left out"


def number(value: object) -> float | None:
    """Return a JSON number as a float; None for anything else, a NaN and an infinity included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # the whole number is too large for a float
        return None


def mapping(value: object) -> dict[str, Any]:
    """Return a JSON object; {} for anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a JSON list; [] for anything else."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


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
