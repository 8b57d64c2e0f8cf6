"""The record of a rollout: rollout.json, its report, and the projection of the whole training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.config.schema import Device
from launch.config.trials import RolloutConfig
from launch.trials.measurement import Measurement
from launch.trials.record import State, TrialRecord, TrialRun
from launch.trials.rollout.gate import GateCase
from launch.trials.rollout.gates_across import apply_gates, gate_json
from launch.trials.rollout.plan_differences import PlanDifference
from launch.trials.rollout.request import RequestedWidth
from launch.trials.view import gate_line
from launch.worker.finding import Finding


@dataclass(frozen=True)
class Projection:
    """The time and the cost of the whole training at one width."""

    total_steps: int
    hours: float  # hours without the time of saving
    gpu_hours: float | None  # None on CPU
    cost: float | None  # None on CPU, or without a price
    basis: str  # `measured`, or the width from which it is scaled linearly


def project(width: WidthRun, widths: Sequence[WidthRun], price: float | None) -> Projection | None:
    """Project a width from its own measurement, else from that of the widest width measured, with
    the same speed per rank.

    `price`: that of a GPU-hour. None is returned before anything was measured, or while the number
    of steps is unknown.
    """
    for source in (width, *reversed(widths)):
        measured = source.measured
        figures = source.figures
        if measured is None or figures is None:
            continue
        if not measured.finished or not measured.total_steps:
            continue
        ranks = width.plan.batch.width
        step_seconds = figures.step_seconds * source.plan.batch.width / ranks
        hours = (figures.before + measured.total_steps * step_seconds) / 3600
        gpu_hours = hours * ranks if measured.width.device == Device.cuda else None
        cost = gpu_hours * price if gpu_hours is not None and price is not None else None
        basis = "measured" if source is width else f"as fast a rank as {source.label}"
        return Projection(measured.total_steps, hours, gpu_hours, cost, basis)
    return None


def compute_efficiency(width: WidthRun, narrowest: WidthRun) -> float | None:
    """Return the speed per rank over that of one rank; None when one rank was not measured."""
    figures = width.figures
    single = narrowest.figures
    if narrowest.plan.batch.width != 1 or figures is None or single is None:
        return None
    if figures.unit != single.unit or single.per_second <= 0:
        return None
    return figures.per_second / single.per_second / width.plan.batch.width


@dataclass
class WidthRun(TrialRun):
    """The run of one width."""

    requested: RequestedWidth = field(kw_only=True)
    gate_results: tuple[Finding, ...] = ()
    projection: Projection | None = None
    efficiency: float | None = None  # speed per rank over that of one rank

    @property
    def failed_gates(self) -> list[Finding]:
        return [result for result in self.gate_results if result.stops]

    def json_fields(self) -> dict[str, Any]:
        return {
            **super().json_fields(),
            "efficiency": self.efficiency,
            "gates": [gate_json(result) for result in self.gate_results],
            "projection": self.projection,
        }


@dataclass
class RolloutRecord(TrialRecord[WidthRun]):
    """A rollout and its widths so far."""

    differences: tuple[PlanDifference, ...] = ()  # differences between the plans of the widths
    full_run: int | None = None  # exit code of the whole stage, which then=run runs
    verb = "rollout"

    @property
    def config(self) -> RolloutConfig:
        return self.plan.config.rollout

    def accepts(self, run: WidthRun, measured: Measurement) -> bool:
        """Apply the gates to a width, and compare it with the last one measured before it."""
        config = self.plan.config
        before = None
        for other in self.runs[: self.runs.index(run)]:
            before = other.measured or before
        case = GateCase(measured, before, config.gates)
        run.gate_results = apply_gates(case, config.allow)
        return not run.failed_gates

    def judge(self, run: WidthRun) -> None:
        if run.measured is None or run.state == State.interrupted:
            return
        run.state = State.done if self.accepts(run, run.measured) else State.failed
        run.message = None  # the results of the gates have the reason

    def update(self, run: WidthRun) -> list[str]:
        for width in self.runs:
            width.projection = project(width, self.runs, self.config.price_per_gpu_hour)
            width.efficiency = compute_efficiency(width, self.runs[0])
        not_passed = [result for result in run.gate_results if result.severity != "pass"]
        return [gate_line(gate_json(result)) for result in not_passed]

    @property
    def summary(self) -> list[str]:
        passed = sum(run.state == State.done for run in self.runs)
        lines = [self.verdict, f"{passed} of {len(self.runs)} widths passed"]
        lines += [f"{run.label}: {run.message}" for run in self.runs if run.message]
        for run in self.runs:
            lines += [f"{run.label}: {result}" for result in run.failed_gates]
        return lines

    @property
    def verdict(self) -> str:
        """The verdict of the whole rollout."""
        if self.state == State.done:
            widest = self.runs[-1].label
            return f"all {len(self.runs)} widths passed: {widest} may run the whole stage"
        for run in self.runs:
            if run.state == State.failed:
                return self._describe_failure(run)
        not_run = [run.label for run in self.runs if run.state == State.not_run]
        if not_run:
            return (
                f"planned but not run here: {', '.join(not_run)}; on a Slurm cluster "
                "submit=rest submits them as jobs"
            )
        submitted = [run for run in self.runs if run.state == State.submitted]
        if submitted:
            jobs = [f"{run.label} (job {run.job_id})" for run in submitted]
            return f"submitted: {', '.join(jobs)}"
        return f"the rollout is {self.state.value}"

    def _describe_failure(self, run: WidthRun) -> str:
        """Return the verdict of a rollout that ended at a width that failed."""
        failed_ids = [result.id for result in run.failed_gates]
        reasons = ", ".join(failed_ids) or "it could not be started"
        later = [other.label for other in self.runs if other.state == State.planned]
        verdict = f"{run.label} failed: {reasons}"
        if later:
            verdict += f"; not widened to {', '.join(later)}"
        return verdict

    @property
    def notes(self) -> list[str]:
        return [str(difference) for difference in self.differences]

    def json_fields(self) -> dict[str, Any]:
        return {
            **super().json_fields(),
            "options": self.config,
            "differences": self.differences,
            "full_run": self.full_run,
        }
