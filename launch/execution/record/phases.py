"""What events.jsonl records besides the steps: the phases of each attempt, warnings, and findings of
guards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from launch.execution.record.events import Event

_LATEST = 253_402_300_800.0  # unix seconds: the year 10000, which no calendar has
_MAX_EVENTS = 2000  # phases, warnings and guards that are kept of each kind


@dataclass(frozen=True)
class Phase:
    """A phase of one attempt, in unix seconds."""

    name: str
    began: float
    ended: float | None  # None: it had not ended when the record stopped


@dataclass
class WarningCount:
    """A warning, however often and by however many ranks."""

    message: str
    count: int = 0
    ranks: set[int] = field(default_factory=set)


@dataclass
class EventSummary:
    """The phases, warnings and guards of events.jsonl."""

    attempts: list[list[Phase]] = field(default_factory=list)
    warnings: dict[str, WarningCount] = field(default_factory=dict)
    guards: list[Event] = field(default_factory=list)


def summarize_events(events: Iterable[Event], finished: float | None) -> EventSummary:
    """Summarize the events of a run.

    The last phase ended when the run did: at `finished`, in unix seconds; None while it is live.
    """
    summary = EventSummary()
    last = 0.0
    first_rank = None
    for event in events:
        if not 0 <= event.time < _LATEST:
            continue
        if event.kind == "phase":
            first_rank = event.rank if first_rank is None else first_rank
            if event.rank == first_rank:
                _add_phase(summary, event.data["phase"], event.time, last)
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
    """Begin a phase. An `import` begins an attempt, and the one before ended at its last event at
    the earliest.
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
    if attempt and moment is not None and moment >= attempt[-1].began and attempt[-1].ended is None:
        attempt[-1] = Phase(attempt[-1].name, attempt[-1].began, moment)
