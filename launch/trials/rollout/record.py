"""The record of a rollout: rollout.json, the sentences of its report, and what the whole training
takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.config.schema import Device
from launch.config.trials import RolloutConfig
from launch.table import format_row
from launch.trials.measurement import Measurement
from launch.trials.record import State, TrialRecord, TrialRun
from launch.trials.rollout.gates import GateCase
from launch.trials.rollout.gates_across import apply_gates, gate_json
from launch.trials.rollout.plan_differences import PlanDifference
from launch.trials.rollout.request import RequestedWidth
from launch.trials.view import GATES
from launch.worker.finding import Finding


@dataclass(frozen=True)
class Projection:
    """What the whole training takes at one width."""

    total_steps: int
    hours: float  # without saving
    gpu_hours: float | None  # None on CPU
    cost: float | None  # None on CPU, or without a price
    basis: str  # `measured`, or the width from which it is scaled linearly


def project(width: WidthRun, widths: Sequence[WidthRun], price: float | None) -> Projection | None:
    """Project a width from its own measurement, else from the widest one's at the same speed per
    rank.

    None before anything was measured, or while the number of steps is unknown.
    """
    for source in (width, *reversed(widths)):
        measured, speed = source.measured, source.figures
        if measured and measured.finished and measured.total_steps and speed:
            ranks = width.plan.batch.width
            seconds = speed.step_seconds * source.plan.batch.width / ranks
            hours = (speed.before + measured.total_steps * seconds) / 3600
            gpu_hours = hours * ranks if measured.width.device == Device.cuda else None
            cost = gpu_hours * price if gpu_hours is not None and price is not None else None
            basis = "measured" if source is width else f"as fast a rank as {source.label}"
            return Projection(measured.total_steps, hours, gpu_hours, cost, basis)
    return None


def compute_efficiency(width: WidthRun, narrowest: WidthRun) -> float | None:
    """The speed per rank over that of one rank; None when one rank was not measured."""
    speed, single = width.figures, narrowest.figures
    if (
        narrowest.plan.batch.width != 1
        or speed is None
        or single is None
        or speed.unit != single.unit
    ):
        return None
    return (
        speed.per_second / single.per_second / width.plan.batch.width
        if single.per_second > 0
        else None
    )


@dataclass
class WidthRun(TrialRun):
    """The run of one width."""

    requested: RequestedWidth = field(kw_only=True)
    gate_results: tuple[Finding, ...] = ()
    projection: Projection | None = None
    efficiency: float | None = None  # against one rank

    @property
    def failed_gates(self) -> list[Finding]:
        return [result for result in self.gate_results if result.stops]

    def as_json(self) -> dict[str, Any]:
        return {
            **super().as_json(),
            "efficiency": self.efficiency,
            "gates": [gate_json(result) for result in self.gate_results],
            "projection": self.projection,
        }


@dataclass
class RolloutRecord(TrialRecord[WidthRun]):
    """A rollout, as far as it has come."""

    differences: tuple[PlanDifference, ...] = ()  # between the widths
    full_run: int | None = None  # exit code of the whole run with then=run
    verb = "rollout"

    @property
    def config(self) -> RolloutConfig:
        return self.plan.config.rollout

    def accepts(self, run: WidthRun, measured: Measurement) -> bool:
        config, before = self.plan.config, None
        for other in self.runs[: self.runs.index(run)]:
            before = other.measured or before
        run.gate_results = apply_gates(GateCase(measured, before, config.gates), config.allow)
        return not run.failed_gates

    def judge(self, run: WidthRun) -> None:
        if run.measured is not None and run.state != State.interrupted:
            run.state = State.done if self.accepts(run, run.measured) else State.failed
            run.message = None  # the gates have it

    def update(self, run: WidthRun) -> list[str]:
        for each in self.runs:
            each.projection = project(each, self.runs, self.config.price_per_gpu_hour)
            each.efficiency = compute_efficiency(each, self.runs[0])
        shown = [gate_json(result) for result in run.gate_results if result.severity != "pass"]
        return [f"  {format_row(GATES, result)}" for result in shown]

    @property
    def summary(self) -> list[str]:
        passed = sum(run.state == State.done for run in self.runs)
        lines = [self.verdict, f"{passed} of {len(self.runs)} widths passed"]
        lines += [f"{run.label}: {run.message}" for run in self.runs if run.message]
        return lines + [
            f"{run.label}: {result.message} [{result.id}]"
            for run in self.runs
            for result in run.failed_gates
        ]

    @property
    def verdict(self) -> str:
        """The verdict of the whole rollout."""
        if self.state == State.done:
            return (
                f"all {len(self.runs)} widths passed: {self.runs[-1].label} may run the whole stage"
            )
        for run in self.runs:
            if run.state == State.failed:
                reasons = (
                    ", ".join(result.id for result in run.failed_gates) or "it could not be started"
                )
                later = [other.label for other in self.runs if other.state == State.planned]
                return f"{run.label} failed: {reasons}" + (
                    f"; not widened to {', '.join(later)}" if later else ""
                )
        not_run = [run.label for run in self.runs if run.state == State.not_run]
        if not_run:
            return (
                f"planned but not run here: {', '.join(not_run)}; on a Slurm cluster "
                "submit=rest submits them as jobs"
            )
        jobs = [
            f"{run.label} (job {run.job_id})" for run in self.runs if run.state == State.submitted
        ]
        return f"submitted: {', '.join(jobs)}" if jobs else f"the rollout is {self.state.value}"

    @property
    def notes(self) -> list[str]:
        return [str(difference) for difference in self.differences]

    def contents(self) -> dict[str, Any]:
        return {"options": self.config, "differences": self.differences, "full_run": self.full_run}
