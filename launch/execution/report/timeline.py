"""The phases of a run's attempts as its page draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launch.execution.display import PHASE_NAMES, format_duration
from launch.execution.record.phases import Phase


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
