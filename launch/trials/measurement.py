"""Reads back from a run's folder what a short run measured, and computes its speed so that runs can be compared."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launch.execution.record.folder import Outcome, folder_status
from launch.execution.record.reader import RunRecord
from launch.planning.parallel import has_master_weights
from launch.planning.plan import Plan
from launch.planning.width import Width

TIME_USED = "time_used"  # cause_id of a run that was ended because its seconds were used up (execution.engine)


@dataclass(frozen=True)
class Measurement:
    """What one run measured."""

    plan: Plan
    requested_steps: int
    outcome: Outcome
    steps: tuple[Mapping[str, Any], ...] = ()  # the objects of metrics.jsonl, up to the last requested step
    evidence: tuple[Mapping[str, Any], ...] = ()  # the items of evidence.json
    inspected_ranks: frozenset[int] = frozenset()  # that inspected their model at the first step
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of each
    total_steps: int | None = None  # of the whole training, as the trainer reports it
    card_gib: float | None = None  # memory of a GPU, None where unknown

    @property
    def expected_steps(self) -> int:
        """The steps that this run had to do: the requested ones, or all of a training that has fewer."""
        return min(self.requested_steps, self.total_steps or self.requested_steps)

    @property
    def width(self) -> Width:
        return self.plan.parallel.width

    @property
    def has_masters(self) -> bool:
        """Whether the optimizer updates fp32 master weights."""
        parallel = self.plan.parallel
        return has_master_weights(self.plan.config.trainer.family, parallel.zero_stage, parallel.precision)

    @property
    def finished(self) -> bool:
        """Whether the run succeeded and logged its last step."""
        return self.outcome.exit_code == 0 and len(self.steps) > 0 and self.last_step >= self.expected_steps

    @property
    def last_step(self) -> int:
        """The last logged step, 0 without one."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    def values(self, name: str) -> list[float]:
        """The numbers under `name`, step by step, NaN and infinities included; steps without one are left out."""
        return [value for _, value in self.series(name)]

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, number) of each step that has one."""
        numbers = ((int(step["step"]), number(step, name)) for step in self.steps)
        return [(step, value) for step, value in numbers if value is not None]


def number(step: Mapping[str, Any], name: str) -> float | None:
    """A number of one step; NaN and infinities are `null` in the file, with their text in `<name>_text`."""
    value = step.get(name)
    if value is None and f"{name}_text" in step:
        with contextlib.suppress(ValueError):
            return float(str(step[f"{name}_text"]))
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def read_measurement(plan: Plan, steps: int, card_gib: float | None = None) -> Measurement | None:
    """Read what the run of `plan` left in its folder; None if no run has ended there."""
    run = RunRecord(plan.folder)
    if run.outcome is None:
        return None
    nodes = [run, *map(RunRecord, plan.folder.glob("nodes/*"))]
    inspections = [event for node in nodes for event in node.events("evidence")]
    ranks = {event.get("rank") for event in inspections if event.get("what") == "dtype"}
    return Measurement(
        plan=plan,
        requested_steps=steps,
        outcome=run.outcome,
        steps=tuple(step for step in run.steps() if step["step"] <= steps),
        evidence=tuple(run.evidence),
        inspected_ranks=frozenset(rank for rank in ranks if isinstance(rank, int)),
        phases=_phase_seconds(run.events()),
        total_steps=run.total_steps,
        card_gib=card_gib,
    )


def find_earlier_measurement(plan: Plan, steps: int) -> Measurement | None:
    """Return what an earlier run of the same plan measured in its folder; None if it did not reach `steps`."""
    measured = read_measurement(plan, steps)
    return measured if measured is not None and measured.finished else None


def archive_earlier_try(plan: Plan) -> None:
    """Rename the folder of an earlier try of the same plan, if there is one, so that the folder is free."""
    if folder_status(plan.folder) != "absent":
        plan.folder.rename(plan.folder.with_name(f"{plan.folder.name}.{time.strftime('%Y%m%d-%H%M%S')}"))


def _phase_seconds(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each phase of rank 0, up to the last event that has a time."""
    seconds: dict[str, float] = {}
    phase, phase_start, last = None, 0.0, 0.0
    for event in events:
        at = event.get("time")
        if not isinstance(at, (int, float)):
            continue
        last = max(last, at)
        if event.get("kind") == "phase" and event.get("rank") == 0:
            if phase is not None:
                seconds[phase] = seconds.get(phase, 0.0) + at - phase_start
            phase, phase_start = str(event["phase"]), at
    if phase is not None and last > phase_start:
        seconds[phase] = seconds.get(phase, 0.0) + last - phase_start
    return {phase: round(value, 3) for phase, value in seconds.items()}


@dataclass(frozen=True)
class Speed:
    """The mean speed over `steps` steps, without the first ones."""

    per_second: float  # over all ranks
    unit: str  # tokens without padding, else samples
    step_seconds: float
    steps: int


def compute_speed(measured: Measurement, skip: int) -> Speed | None:
    """The speed after the first `skip` steps, or after fewer if there are no others; None if no step has a time."""
    steps = timed_steps(measured, skip)
    total_seconds = sum(seconds for seconds, _ in steps)
    if not steps or total_seconds <= 0:
        return None
    token_counts = [tokens for _, tokens in steps if tokens is not None]
    unit = "tokens" if len(token_counts) == len(steps) else "samples"
    processed = sum(token_counts) if unit == "tokens" else len(steps) * measured.plan.batch.global_
    return Speed(processed / total_seconds, unit, total_seconds / len(steps), len(steps))


def second_half_ratio(measured: Measurement, skip: int) -> float | None:
    """The median rate of the second half of the steps over that of the first half."""
    rates = [(tokens if tokens is not None else 1.0) / seconds for seconds, tokens in timed_steps(measured)[skip:]]
    middle = len(rates) // 2
    if middle == 0:
        return None
    first = statistics.median(rates[:middle])
    return statistics.median(rates[middle:]) / first if first > 0 else None


def padding_share(measured: Measurement) -> float | None:
    """The fraction of padding among all tokens of all steps."""
    pairs = [(number(step, "tokens"), number(step, "tokens_padded")) for step in measured.steps]
    counted = [(tokens, padded) for tokens, padded in pairs if tokens is not None and padded]
    total = sum(padded for _, padded in counted)
    return 1 - sum(tokens for tokens, _ in counted) / total if total else None


def timed_steps(measured: Measurement, skip: int = 0) -> list[tuple[float, float | None]]:
    """(seconds, tokens) of each step that has a time, without the first `skip`, or fewer if there are no others."""
    steps = ((number(step, "seconds"), number(step, "tokens")) for step in measured.steps)
    timed = [(seconds, tokens) for seconds, tokens in steps if seconds is not None and seconds > 0]
    return timed[min(skip, max(0, len(timed) - 1)) :]
