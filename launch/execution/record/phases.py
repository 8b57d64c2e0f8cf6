"""Summarize events.jsonl: the phases of each attempt, the warnings, and the findings of guards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from launch.execution.record.events import Event

_LATEST = 253_402_300_800.0  # unix seconds: the year 10000, which `time` cannot format
_MAX_EVENTS = 2000  # phases of an attempt, different warnings, and findings of guards that are kept


@dataclass(frozen=True)
class Phase:
    """A phase of one attempt, in unix seconds."""

    name: str
    began: float
    ended: float | None  # None: it had not ended when the record stopped


@dataclass
class WarningCount:
    """A warning, with how often it was given, and by which ranks."""

    message: str
    count: int = 0
    ranks: set[int] = field(default_factory=set)


@dataclass
class EventSummary:
    """The phases, the warnings and the findings of guards in events.jsonl."""

    attempts: list[list[Phase]] = field(default_factory=list)
    warnings: dict[str, WarningCount] = field(default_factory=dict)
    guards: list[Event] = field(default_factory=list)


def summarize_events(events: Iterable[Event], finished: float | None) -> EventSummary:
    """Summarize the events of a run.

    The last phase ended when the run did: at `finished`, in unix seconds; None while it is live.
    """
    summary = EventSummary()
    last = 0.0  # time of the last event of the current attempt
    first_rank = None
    for event in events:
        if not 0 <= event.time < _LATEST:
            continue
        if event.kind == "phase":
            first_rank = event.rank if first_rank is None else first_rank
            if event.rank == first_rank:
                begun = len(summary.attempts)
                _add_phase(summary, event.data["phase"], event.time, last)
                if len(summary.attempts) > begun:
                    last = 0.0  # the clock may have been set back since the previous attempt
        elif event.kind == "guard" and len(summary.guards) < _MAX_EVENTS:
            summary.guards.append(event)
        elif event.kind == "warning":
            _count_warning(summary, event)
        last = max(last, event.time)
    if summary.attempts:
        _end_phase(summary.attempts[-1], finished)
    return summary


def _count_warning(summary: EventSummary, event: Event) -> None:
    message = event.data["message"]
    if message not in summary.warnings and len(summary.warnings) >= _MAX_EVENTS:
        return
    warned = summary.warnings.setdefault(message, WarningCount(message))
    warned.count += 1
    warned.ranks.add(event.rank)


def _add_phase(summary: EventSummary, name: str, moment: float, last: float) -> None:
    """Begin a phase at `moment`. An `import` begins an attempt.

    The previous attempt ends at the time of its last event, `last`.
    """
    if name == "import" or not summary.attempts:
        if summary.attempts:
            _end_phase(summary.attempts[-1], last)
        summary.attempts.append([])
    attempt = summary.attempts[-1]
    if len(attempt) < _MAX_EVENTS:
        _end_phase(attempt, moment)
        attempt.append(Phase(name, moment, None))


def _end_phase(attempt: list[Phase], moment: float | None) -> None:
    """End the last phase of an attempt at `moment`, unless the time is unknown."""
    if not attempt or moment is None:
        return
    phase = attempt[-1]
    if phase.ended is None and moment >= phase.began:
        attempt[-1] = replace(phase, ended=moment)
