"""Forecasts the cost of a pipeline before it starts: steps, memory, disk and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.check.machine.disk import checkpoint_count, written_bytes
from launch.execution.resume import is_finished
from launch.pipelines.links import Pipeline
from launch.planning.estimate.forecast import MemoryForecast, forecast_on_machine
from launch.planning.estimate.speed import TimeForecast, forecast_time, planned_steps
from launch.planning.plan import Plan
from launch.table import Table, format_bytes, format_duration, format_number


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage; None where a number is unknown before it runs."""

    plan: Plan
    starts_from: str
    finished: bool
    steps: int | None  # number of optimizer steps
    memory: MemoryForecast | None  # None for a run on a CPU
    kept: float | None  # bytes of the model, or of an adapter's merged model
    # Bytes of the checkpoints, which nothing needs once the next stage is done.
    removable: float | None
    time: TimeForecast | None  # of the training; None for a run on a CPU

    def json_fields(self) -> dict[str, Any]:
        disk = {"kept_bytes": self.kept, "removable_bytes": self.removable}
        return {
            "finished": self.finished,
            "steps": self.steps,
            "disk": disk,
            "seconds": self.time.seconds if self.time else None,
            "seconds_at_limit": self.time.at_limit if self.time else None,
        }


def forecast_pipeline(pipeline: Pipeline, environ: Mapping[str, str]) -> list[StageCost]:
    """Forecast the cost of each stage."""
    costs = []
    source = pipeline.plans[0].inputs.model
    starts_from = source.local.name if source.local else source.reference
    for plan in pipeline.plans:
        model, checkpoint = written_bytes(plan, environ, merged=True) or (None, None)
        steps = planned_steps(plan)
        memory = forecast_on_machine(plan)
        cost = StageCost(
            plan,
            starts_from,
            finished=is_finished(plan),
            steps=steps,
            memory=memory,
            kept=model,
            removable=None if checkpoint is None else checkpoint * checkpoint_count(plan),
            time=forecast_time(plan, memory) if memory else None,
        )
        costs.append(cost)
        starts_from = plan.stage
    return costs


_HEAD = [
    "stage",
    "starts from",
    "trainer",
    "ranks",
    "steps",
    "GPU memory",
    "disk kept",
    "removable",
    "training",
    "run",
]


def describe_costs(costs: Sequence[StageCost]) -> list[str]:
    """Describe the costs as a table and what its numbers mean."""
    unfinished = [cost for cost in costs if not cost.finished]
    kept = sum(cost.kept or 0 for cost in unfinished)
    peak = kept + max((cost.removable or 0 for cost in unfinished), default=0)
    disk = (
        f"disk: {format_bytes(kept)} of models stay; at most {format_bytes(peak)} are used at once"
    )
    if len(costs) > 1:
        disk += ", if a stage's checkpoints (removable) are deleted when the next stage is done"
    unknown = "-: unknown before the data is tokenised, or for this model or GPU"
    table = Table("", [_HEAD, *map(_describe_cost, costs)])
    at_limit = "up to: if every sample were as long as recipe.max_seq_length"
    return [*table.lines(), disk, unknown, at_limit]


def _describe_cost(cost: StageCost) -> list[str]:
    """Return the cells of a stage, in the order of _HEAD."""
    plan = cost.plan
    done = ", done" if cost.finished else ""
    return [
        plan.stage,
        cost.starts_from,
        plan.trainer,
        str(plan.parallel.width),
        format_number(cost.steps, ","),
        _describe_memory(cost.memory),
        _describe_size(cost.kept),
        _describe_size(cost.removable),
        _describe_time(cost.time),
        f"{plan.name}{done}",
    ]


def _describe_time(time: TimeForecast | None) -> str:
    if time is None or time.seconds is None:
        return "-"
    most = "up to " if time.at_limit else ""
    return f"{most}{format_duration(time.seconds)}"


def _describe_size(size: float | None) -> str:
    if size is None:
        return "-"
    return format_bytes(size) if size else "none"


def _describe_memory(memory: MemoryForecast | None) -> str:
    if memory is None or memory.expected is None:
        return "-"
    expected = f"{memory.expected.total:.1f}"
    if memory.card is None:
        return f"{expected} GiB"
    return f"{expected} of {memory.card.gib:.1f} GiB: {memory.fit}"
