"""The phases of a run's attempts as its page draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launch.execution.display_text import PHASE_NAMES
from launch.execution.record.phases import Phase
from launch.table import format_duration


@dataclass(frozen=True)
class Bar:
    """One phase, in percent of the attempt's time."""

    phase: str  # the phase's name in events.jsonl
    title: str
    left: float
    width: float


@dataclass(frozen=True)
class AttemptTimeline:
    """The phases of one start of the run."""

    number: int
    began: float  # unix seconds
    bars: Sequence[Bar]
    # A row for each phase has its name, its title, its time and its share of the attempt.
    totals: Sequence[tuple[str, str, str, str]]
    resumed_from: str | None  # the checkpoint


def build_timelines(
    attempts: Sequence[Sequence[Phase]], resumed_from: Sequence[str | None]
) -> list[AttemptTimeline]:
    """Return the phases of each attempt. `resumed_from` has the checkpoint of each attempt, if any."""
    timelines = []
    for index, phases in enumerate(attempts):
        began = phases[0].began
        ends = [phase.ended for phase in phases if phase.ended is not None]
        span = max(ends, default=began) - began
        timeline = AttemptTimeline(
            number=index + 1,
            began=began,
            bars=_build_bars(phases, span),
            totals=_sum_phases(phases, span),
            resumed_from=resumed_from[index] if index < len(resumed_from) else None,
        )
        timelines.append(timeline)
    return timelines


def _build_bars(phases: Sequence[Phase], span: float) -> list[Bar]:
    """Return a bar for each phase that ended; `span` is the attempt's time in seconds."""
    attempt_began = phases[0].began
    bars = []
    for phase in phases:
        if phase.ended is None:
            continue
        seconds = phase.ended - phase.began
        left = width = 0.0
        if span > 0:
            left = 100 * (phase.began - attempt_began) / span
            width = 100 * seconds / span
        title = f"{PHASE_NAMES[phase.name]}: {_format_seconds(seconds)}"
        bars.append(Bar(phase.name, title, left, width))
    return bars


def _sum_phases(phases: Sequence[Phase], span: float) -> list[tuple[str, str, str, str]]:
    """Return the time of each phase over an attempt of `span` seconds, as text.

    The time of a phase is unknown if the end of one of its parts was not recorded.
    """
    totals: dict[str, float] = {}
    unended = set()
    for phase in phases:
        seconds = 0.0
        if phase.ended is None:
            unended.add(phase.name)
        else:
            seconds = phase.ended - phase.began
        totals[phase.name] = totals.get(phase.name, 0.0) + seconds
    rows = []
    for name, total in totals.items():
        duration = _format_seconds(total)
        share = f"{100 * total / span:.0f} %" if span > 0 else ""
        if name in unended:
            duration = "its end was not recorded"
            share = ""
        rows.append((name, PHASE_NAMES[name], duration, share))
    return rows


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)
