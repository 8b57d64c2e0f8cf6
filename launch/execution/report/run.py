"""A run folder as its page shows it. Every part may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.display import PHASE_NAMES, format_duration
from launch.execution.record.events import read_event
from launch.execution.record.reader import RunRecord
from launch.execution.report.charts import Metrics, read_metrics
from launch.worker.json_codec import SCHEMA_VERSION

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
_LATEST = 253_402_300_800.0  # unix seconds: the year 10000, which no calendar has
_MAX_EVENTS = 2000  # phases, warnings and guards that are kept of each kind


@dataclass(frozen=True)
class Phase:
    """A phase of one attempt, in unix seconds."""

    name: str
    began: float
    ended: float | None  # None: it had not ended when the record stopped


@dataclass
class Warned:
    """A warning, however often and by however many ranks."""

    message: str
    count: int = 0
    ranks: set[int] = field(default_factory=set)


@dataclass
class EventSummary:
    """The phases, warnings and guards of events.jsonl."""

    attempts: list[list[Phase]] = field(default_factory=list)
    warnings: dict[str, Warned] = field(default_factory=dict)
    guards: list[dict[str, Any]] = field(default_factory=list)


def is_run_folder(folder: Path) -> bool:
    """Whether the folder holds anything of a run."""
    return any((folder / name).exists() for name in _FILES)


class ReportedRun(RunRecord):
    """A run folder, with what only its page shows."""

    @cached_property
    def state(self) -> str:
        """Done, stopped (by a guard), failed, interrupted, running or unfinished."""
        if self.outcome is None:
            return "running" if self.holder else "unfinished"
        states = {EXIT_DONE: "done", EXIT_STOPPED: "stopped", EXIT_INTERRUPTED: "interrupted"}
        return states.get(self.outcome.exit_code, "failed")

    @cached_property
    def metrics(self) -> Metrics:
        return read_metrics(self.folder / "metrics.jsonl")

    @cached_property
    def event_summary(self) -> EventSummary:
        return summarize_events(self)

    @property
    def notes(self) -> list[str]:
        """What of the record could not be read."""
        notes: list[str] = []
        if not self.plan:
            state = "cannot be read" if (self.folder / "plan.json").exists() else "is missing"
            notes.append(f"plan.json {state}: the plan, its flags and its command are not shown")
        elif self.plan.get("schema_version") != SCHEMA_VERSION:
            version = self.plan.get("schema_version", "no version")
            notes.append(
                f"the record has schema {version}, this page reads {SCHEMA_VERSION}: some parts "
                "may be missing"
            )
        if not (self.folder / "metrics.jsonl").exists():
            notes.append("metrics.jsonl is missing: no step was logged")
        elif not self.metrics.steps:
            notes.append("metrics.jsonl has no logged step")
        if self.metrics.unreadable:
            lines = (
                "1 line" if self.metrics.unreadable == 1 else f"{self.metrics.unreadable:,} lines"
            )
            notes.append(f"{lines} of metrics.jsonl could not be read and are left out")
        return notes


def summarize_events(run: RunRecord) -> EventSummary:
    """Summarize events.jsonl; the last phase ended when the run did."""
    events = EventSummary()
    last, first_rank = 0.0, None
    for entry in run.events("phase", "guard", "warning"):
        event = read_event(entry)
        if event is None or not 0 <= event.time < _LATEST:
            continue
        if event.kind == "phase":
            first_rank = event.rank if first_rank is None else first_rank
            if event.rank == first_rank:
                _add_phase(events, event.data["phase"], event.time, last)
        elif event.kind == "guard" and len(events.guards) < _MAX_EVENTS:
            events.guards.append(entry)
        elif event.kind == "warning":
            message = event.data["message"]
            if message in events.warnings or len(events.warnings) < _MAX_EVENTS:
                warned = events.warnings.setdefault(message, Warned(message))
                warned.count += 1
                warned.ranks.add(event.rank)
        last = max(last, event.time)
    if events.attempts:
        _end_phase(events.attempts[-1], run.finished)
    return events


def _add_phase(events: EventSummary, name: str, moment: float, last: float) -> None:
    """Begin a phase. An `import` begins an attempt, and the one before ended at its last event at
    the earliest.
    """
    if name == "import" or not events.attempts:
        if events.attempts:
            _end_phase(events.attempts[-1], last)
        events.attempts.append([])
    attempt = events.attempts[-1]
    if len(attempt) < _MAX_EVENTS:
        _end_phase(attempt, moment)
        attempt.append(Phase(name, moment, None))


def _end_phase(attempt: list[Phase], moment: float | None) -> None:
    if attempt and moment is not None and moment >= attempt[-1].began and attempt[-1].ended is None:
        attempt[-1] = Phase(attempt[-1].name, attempt[-1].began, moment)


@dataclass(frozen=True)
class Bar:
    """One phase, in percent of the attempt's time."""

    phase: str  # as in events.jsonl
    title: str
    left: float
    width: float


@dataclass(frozen=True)
class AttemptTimeline:
    """The phases of one start of the run."""

    number: int
    began: float  # unix seconds
    bars: Sequence[Bar]
    # phase, its title, its time, its share of the attempt
    totals: Sequence[tuple[str, str, str, str]]
    resumed_from: str | None


def build_timelines(
    attempts: Sequence[Sequence[Phase]], resumed_from: Sequence[str | None]
) -> list[AttemptTimeline]:
    """Return the phases of each attempt; `resumed_from` has each attempt's checkpoint, where it had
    one.
    """
    timelines = []
    for index, phases in enumerate(attempts):
        known = [phase for phase in phases if phase.ended is not None]
        began = phases[0].began
        span = max((phase.ended or 0.0 for phase in known), default=began) - began
        checkpoint = resumed_from[index] if index < len(resumed_from) else None
        timelines.append(
            AttemptTimeline(
                index + 1, began, _bars(known, began, span), _totals(phases, span), checkpoint
            )
        )
    return timelines


def _bars(phases: Sequence[Phase], began: float, span: float) -> list[Bar]:
    bars = []
    for phase in phases:
        seconds = (phase.ended or phase.began) - phase.began
        left, width = (
            100 * part / span if span > 0 else 0.0 for part in (phase.began - began, seconds)
        )
        bars.append(
            Bar(phase.name, f"{PHASE_NAMES[phase.name]}: {_format_seconds(seconds)}", left, width)
        )
    return bars


def _totals(phases: Sequence[Phase], span: float) -> list[tuple[str, str, str, str]]:
    seconds: dict[str, float | None] = {}
    for phase in phases:
        known = None if phase.ended is None else phase.ended - phase.began
        earlier = seconds.get(phase.name, 0.0)
        seconds[phase.name] = None if known is None or earlier is None else earlier + known
    return [
        (
            name,
            PHASE_NAMES[name],
            "its end was not recorded" if total is None else _format_seconds(total),
            f"{100 * total / span:.0f} %" if total is not None and span > 0 else "",
        )
        for name, total in seconds.items()
    ]


def _format_seconds(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 60
        else f"{format_duration(seconds)} (min:s)"
        if seconds < 3600
        else (f"{format_duration(seconds)} (h:min:s)")
    )
