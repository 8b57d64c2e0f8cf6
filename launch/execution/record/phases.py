"""What events.jsonl records besides the steps: the phases of each attempt, warnings, and findings of
guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launch.execution.record.events import read_event

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
    guards: list[dict[str, Any]] = field(default_factory=list)


def summarize_events(entries: Iterable[Mapping[str, Any]], finished: float | None) -> EventSummary:
    """Summarize the objects of events.jsonl.

    The last phase ended when the run did: at `finished`, in unix seconds; None while it is live.
    """
    events = EventSummary()
    last, first_rank = 0.0, None
    for entry in entries:
        event = read_event(entry)
        if event is None or not 0 <= event.time < _LATEST:
            continue
        if event.kind == "phase":
            first_rank = event.rank if first_rank is None else first_rank
            if event.rank == first_rank:
                _add_phase(events, event.data["phase"], event.time, last)
        elif event.kind == "guard" and len(events.guards) < _MAX_EVENTS:
            events.guards.append(dict(entry))
        elif event.kind == "warning":
            message = event.data["message"]
            if message in events.warnings or len(events.warnings) < _MAX_EVENTS:
                warned = events.warnings.setdefault(message, WarningCount(message))
                warned.count += 1
                warned.ranks.add(event.rank)
        last = max(last, event.time)
    if events.attempts:
        _end_phase(events.attempts[-1], finished)
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
