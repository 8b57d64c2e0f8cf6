"""The record of a rollout: rollout.json, and the sentences of its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.planning.plan import Plan
from launch.trials.figures import measurement_json
from launch.trials.record import State, TrialRecord, TrialRun, combine_states, utc_now
from launch.trials.rollout.gates.gate import GateResult
from launch.trials.rollout.plan_differences import PlanDifference
from launch.trials.rollout.projection import Projection
from launch.trials.rollout.request import RequestedWidth


@dataclass
class WidthRun(TrialRun):
    """The run of one width."""

    requested: RequestedWidth = field(kw_only=True)
    gate_results: tuple[GateResult, ...] = ()
    projection: Projection | None = None
    efficiency: float | None = None  # against one rank

    @property
    def failed_gates(self) -> list[GateResult]:
        return [result for result in self.gate_results if result.stops]


@dataclass
class RolloutRecord(TrialRecord):
    """A rollout, as far as it has come."""

    folder: Path  # <runs>/<stage>/rollout-<id>
    steps: int
    then: str
    price: float | None  # per GPU and hour
    skip: int  # first steps, which count for no speed
    runs: list[WidthRun]
    differences: tuple[PlanDifference, ...] = ()  # between the widths
    began: str = field(default_factory=utc_now)
    full_run: int | None = None  # exit code of the whole run with then=run
    verb = "rollout"

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        return self.runs[0].plan

    @property
    def state(self) -> State:
        return combine_states(run.state for run in self.runs)

    @property
    def summary(self) -> list[str]:
        passed = sum(run.state == State.done for run in self.runs)
        lines = [self.verdict, f"{passed} of {len(self.runs)} widths passed"]
        lines += [f"{run.label}: {run.message}" for run in self.runs if run.message]
        return lines + [
            f"{run.label}: {result.message} [{result.id}]" for run in self.runs for result in run.failed_gates
        ]

    @property
    def verdict(self) -> str:
        """The verdict of the whole rollout."""
        if self.state == State.done:
            return f"all {len(self.runs)} widths passed: {self.runs[-1].label} may run the whole stage"
        for run in self.runs:
            if run.state == State.failed:
                reasons = ", ".join(result.id for result in run.failed_gates) or "it could not be started"
                later = [other.label for other in self.runs if other.state == State.planned]
                return f"{run.label} failed: {reasons}" + (f"; not widened to {', '.join(later)}" if later else "")
        not_run = [run.label for run in self.runs if run.state == State.not_run]
        if not_run:
            return (
                f"planned but not run here: {', '.join(not_run)}; on a Slurm cluster submit=rest submits them as jobs"
            )
        jobs = [f"{run.label} (job {run.job_id})" for run in self.runs if run.state == State.submitted]
        return f"submitted: {', '.join(jobs)}" if jobs else f"the rollout is {self.state.value}"

    @property
    def notes(self) -> list[str]:
        return [str(difference) for difference in self.differences]

    def contents(self) -> dict[str, Any]:
        return {
            "options": {"steps": self.steps, "then": self.then, "price_per_gpu_hour": self.price},
            "differences": self.differences,
            "runs": [self.run_json(run) for run in self.runs],
            "full_run": self.full_run,
        }

    def run_json(self, run: WidthRun) -> dict[str, Any]:
        return {
            **run.as_json(),
            "measured": measurement_json(run.measured, self.skip),
            "job_id": run.job_id,
            "efficiency": run.efficiency,
            "gates": run.gate_results,
            "projection": run.projection,
        }
