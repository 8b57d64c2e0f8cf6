"""Reads back from a run's folder what a short run measured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.config.schema import Device, Family, Kind, Precision
from launch.execution.record.folder import Outcome, read_outcome
from launch.files import load_json, read_json_lines
from launch.planning.parallel import has_master_weights
from launch.planning.plan import Plan

TIME_USED = "time_used"  # cause_id of a run that was ended because its seconds were used up (execution.engine)


@dataclass(frozen=True)
class TrialSetup:
    """The values of a run's plan that judge its measurement."""

    width: str
    world_size: int
    device: Device
    kind: Kind
    family: Family
    trainer: str
    precision: Precision
    zero_stage: int | None
    loss: str | None
    rate: float  # the highest learning rate
    global_batch: int
    steps: int  # requested

    @property
    def masters(self) -> bool:
        """Whether the optimizer updates fp32 master weights."""
        return has_master_weights(self.family, self.zero_stage, self.precision)


@dataclass(frozen=True)
class Measurement:
    """What one run measured."""

    setup: TrialSetup
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
        return min(self.setup.steps, self.total_steps or self.setup.steps)

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


def describe_setup(plan: Plan, steps: int) -> TrialSetup:
    config = plan.config
    return TrialSetup(
        width=str(plan.parallel.width),
        world_size=plan.batch.width,
        device=plan.parallel.width.device,
        kind=config.stage.kind,
        family=config.trainer.family,
        trainer=plan.trainer,
        precision=plan.parallel.precision,
        zero_stage=plan.parallel.zero_stage,
        loss=config.recipe.loss,
        rate=config.recipe.learning_rate,
        global_batch=plan.batch.global_,
        steps=steps,
    )


def read_measurement(plan: Plan, steps: int, card_gib: float | None = None) -> Measurement | None:
    """Read what the run of `plan` left in its folder; None if no run has ended there."""
    outcome = read_outcome(plan.folder)
    if outcome is None:
        return None
    logged = [step for step in read_json_lines(plan.folder / "metrics.jsonl") if isinstance(step.get("step"), int)]
    events = read_json_lines(plan.folder / "events.jsonl")
    total_steps = [event["steps"] for event in events if event.get("kind") == "total_steps"]
    node_events = [event for path in plan.folder.glob("nodes/*/events.jsonl") for event in read_json_lines(path)]
    inspections = [event for event in [*events, *node_events] if event.get("kind") == "evidence"]
    ranks = {event.get("rank") for event in inspections if event.get("what") == "dtype"}
    return Measurement(
        setup=describe_setup(plan, steps),
        outcome=outcome,
        steps=tuple(step for step in logged if step["step"] <= steps),
        evidence=tuple(_read_evidence(plan.folder / "evidence.json")),
        inspected_ranks=frozenset(rank for rank in ranks if isinstance(rank, int)),
        phases=_phase_seconds(events),
        total_steps=total_steps[-1] if total_steps else None,
        card_gib=card_gib,
    )


def _read_evidence(path: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        evidence = load_json(path)
        items = evidence.get("items", []) if isinstance(evidence, dict) else evidence
        return [item for item in items if isinstance(item, dict)]
    return []


def _phase_seconds(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each phase of rank 0, up to the last event that has a time."""
    seconds: dict[str, float] = {}
    phase, phase_start, last = None, 0.0, 0.0
    for event in events:
        time = event.get("time")
        if not isinstance(time, (int, float)):
            continue
        last = max(last, time)
        if event.get("kind") == "phase" and event.get("rank") == 0:
            if phase is not None:
                seconds[phase] = seconds.get(phase, 0.0) + time - phase_start
            phase, phase_start = str(event["phase"]), time
    if phase is not None and last > phase_start:
        seconds[phase] = seconds.get(phase, 0.0) + last - phase_start
    return {phase: round(value, 3) for phase, value in seconds.items()}
