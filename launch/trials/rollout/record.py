"""The record of a rollout: rollout.json, rewritten after every change, and the tables beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from launch.trials.measurement import Measurement, compute_speed, padding_share
from launch.trials.record_file import TrialRecord, another_record, read_record, utc_now
from launch.trials.rollout.gates.gate import GateResult
from launch.trials.rollout.plan_differences import PlanDifference
from launch.trials.rollout.projection import Projection
from launch.trials.rollout.widths import PlannedRollout, PlannedWidth
from launch.worker.json_codec import to_json

SCHEMA_VERSION = 1
FILE = "rollout.json"


class WidthState(StrEnum):
    """The state of one width, and of a rollout as a whole."""

    planned = "planned"  # its turn has not come
    running = "running"
    passed = "passed"
    stopped = "stopped"  # a gate failed, or it could not be started
    not_run = "not_run"  # this machine cannot run it
    submitted = "submitted"  # a Slurm job waits for the widths before; of a rollout: its remaining widths are jobs
    interrupted = "interrupted"


@dataclass
class WidthRecord:
    """One width, as far as it has come."""

    planned: PlannedWidth
    state: WidthState = WidthState.planned
    why: str | None = None  # why it was not run, or could not be started
    reused: bool = False  # it passed in an earlier call and was not run again
    job_id: str | None = None  # of the Slurm job that runs it
    measured: Measurement | None = None
    gate_results: tuple[GateResult, ...] = ()
    projection: Projection | None = None
    efficiency: float | None = None  # against one rank

    @property
    def failed_gates(self) -> list[GateResult]:
        return [result for result in self.gate_results if result.stops]

    def as_json(self, skip: int) -> dict[str, Any]:
        plan, measured = self.planned.plan, self.measured
        return {
            "schema_version": SCHEMA_VERSION,
            "width": self.planned.label,
            "ranks": self.planned.ranks,
            "state": self.state.value,
            "why": self.why,
            "reused": self.reused,
            "job_id": self.job_id,
            "folder": str(plan.folder),
            "identity": plan.identity,
            "parallel": plan.parallel.mode.value,
            "zero_stage": plan.parallel.zero_stage,
            "precision": plan.parallel.precision.value,
            "batch": to_json(plan.batch),
            "measured": None if measured is None else _measured(measured, skip),
            "efficiency": None if self.efficiency is None else round(self.efficiency, 4),
            "gates": [result.as_json() for result in self.gate_results],
            "projection": None if self.projection is None else self.projection.as_json(),
        }


def _measured(measured: Measurement, skip: int) -> dict[str, Any]:
    losses, speed = measured.values("loss"), compute_speed(measured, skip)
    return {
        "schema_version": SCHEMA_VERSION,
        "steps": measured.last_step,
        "total_steps": measured.total_steps,
        "seconds": round(measured.outcome.seconds, 3),
        "phases": dict(measured.phases),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "per_second": round(speed.per_second, 3) if speed else None,
        "unit": speed.unit if speed else None,
        "step_seconds": round(speed.step_seconds, 6) if speed else None,
        "memory_gib": max(measured.values("memory_gib"), default=None),
        "padding_share": padding_share(measured),
        "exit_code": measured.outcome.exit_code,
        "cause": measured.outcome.cause,
    }


@dataclass
class RolloutRecord(TrialRecord):
    """A rollout, as far as it has come."""

    planned: PlannedRollout
    steps: int
    then: str
    price: float | None  # per GPU and hour
    skip: int  # first steps, which count for no speed
    differences: tuple[PlanDifference, ...] = ()  # between the widths
    widths: list[WidthRecord] = field(default_factory=list)
    began: str = field(default_factory=utc_now)
    full_run: int | None = None  # exit code of the whole run with then=run

    @property
    def path(self) -> Path:
        return self.planned.folder / FILE

    @property
    def state(self) -> WidthState:
        states = [width.state for width in self.widths]
        order = (
            WidthState.interrupted,
            WidthState.stopped,
            WidthState.not_run,
            WidthState.running,
            WidthState.submitted,
            WidthState.planned,
        )
        return next((state for state in order if state in states), WidthState.passed)

    def as_json(self) -> dict[str, Any]:
        plan = self.planned.widths[0].plan
        return {
            "schema_version": SCHEMA_VERSION,
            "id": self.planned.id,
            "stage": plan.stage,
            "trainer": plan.trainer,
            "kind": plan.config.stage.kind.value,
            "upstream": plan.upstream.description,
            "state": self.state.value,
            "steps": self.steps,
            "then": self.then,
            "price_per_gpu_hour": self.price,
            "began": self.began,
            "updated": utc_now(),
            "differences": [difference.as_json() for difference in self.differences],
            "widths": [width.as_json(self.skip) for width in self.widths],
            "full_run": self.full_run,
        }


def refuse_another(planned: PlannedRollout) -> None:
    """Raise UserError (other_rollout) when the folder holds a rollout of another stage or trainer."""
    file, plan = planned.folder / FILE, planned.widths[0].plan
    earlier = read_record(file, lambda record: f"{record['stage']} with {record['trainer']}", "other_rollout")
    own = f"{plan.stage} with {plan.trainer}"
    if earlier not in (None, own):
        raise another_record("other_rollout", f"{planned.folder} is a rollout of {earlier}, not of {own}")
