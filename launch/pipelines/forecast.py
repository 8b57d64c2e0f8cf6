"""What a pipeline costs before anything starts: steps, memory, disk, and time where the rates are
known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.check.machine.disk import checkpoint_count, written_bytes
from launch.config.schema import Kind
from launch.execution.display import format_duration
from launch.execution.resume import is_finished
from launch.pipelines.links import Pipeline
from launch.planning.estimate.cards import card_named, rates_for_card
from launch.planning.estimate.forecast import MemoryForecast, forecast_on_machine
from launch.planning.estimate.speed import count_steps, predict_step
from launch.planning.plan import Plan
from launch.table import Table, format_bytes


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage; None where a number is unknown before it runs."""

    plan: Plan
    starts_from: str
    finished: bool
    steps: int | None  # of the optimizer
    memory: MemoryForecast | None  # None for a run on a CPU
    kept: float | None  # bytes of the model; of an adapter's merged model
    # bytes of the checkpoints, which nothing needs once the next stage is done
    removable: float | None
    seconds: float | None  # of training

    def as_json(self) -> dict[str, Any]:
        disk = {"kept_bytes": self.kept, "removable_bytes": self.removable}
        return {
            "finished": self.finished,
            "steps": self.steps,
            "disk": disk,
            "seconds": self.seconds,
        }


def forecast_pipeline(pipeline: Pipeline, environ: Mapping[str, str]) -> list[StageCost]:
    """Forecast the cost of each stage."""
    costs = []
    for index, plan in enumerate(pipeline.plans):
        model = plan.inputs.model
        source = (
            pipeline.plans[index - 1].stage
            if index
            else model.local.name
            if model.local
            else model.reference
        )
        size, checkpoint = written_bytes(plan, environ, merged=True) or (None, None)
        removable = None if checkpoint is None else checkpoint * checkpoint_count(plan)
        steps, memory = count_steps(plan), forecast_on_machine(plan)
        seconds = _predict_seconds(plan, steps, memory)
        costs.append(
            StageCost(plan, source, is_finished(plan), steps, memory, size, removable, seconds)
        )
    return costs


def _predict_seconds(plan: Plan, steps: int | None, memory: MemoryForecast | None) -> float | None:
    """Predict the time of the steps; None without the data's lengths, a known GPU or a model of its
    memory.
    """
    card, setting = (
        plan.machine.card or plan.config.cluster.gpu_type,
        memory.setting if memory else None,
    )
    lengths: Sequence[int] | None = memory.lengths.tokens if memory and memory.lengths else None
    if plan.config.stage.kind == Kind.rlvr:  # every prompt and response at its limit
        lengths = [plan.config.recipe.max_seq_length]
    if (
        steps is None
        or lengths is None
        or setting is None
        or card is None
        or card_named(card) is None
    ):
        return None
    if setting.compiled:  # the prediction of time was never compared with OLMo-core
        return None
    rates, balanced = rates_for_card(card).rates, plan.config.recipe.balanced
    return steps * predict_step(setting, lengths, rates, balanced=balanced).seconds


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
    kept = sum(cost.kept or 0 for cost in costs if not cost.finished)
    most = kept + max((cost.removable or 0 for cost in costs if not cost.finished), default=0)
    disk = (
        f"disk: {format_bytes(kept)} of models stay; at most {format_bytes(most)} are used at "
        "once if a stage's "
    )
    disk += "checkpoints (removable) are deleted when the next stage is done"
    unknown = "-: unknown before the data is tokenised, or for this model or GPU"
    return [*Table("", [_HEAD, *map(_describe, costs)]).lines(), disk, unknown]


def _describe(cost: StageCost) -> list[str]:
    plan, memory = cost.plan, _describe_memory(cost.memory)
    steps = "-" if cost.steps is None else f"{cost.steps:,}"
    disk = [
        "-" if size is None else format_bytes(size) if size else "none"
        for size in (cost.kept, cost.removable)
    ]
    time = "-" if cost.seconds is None else format_duration(cost.seconds)
    run = f"{plan.name}{', done' if cost.finished else ''}"
    return [
        plan.stage,
        cost.starts_from,
        plan.trainer,
        str(plan.parallel.width),
        steps,
        memory,
        *disk,
        time,
        run,
    ]


def _describe_memory(memory: MemoryForecast | None) -> str:
    if memory is None or memory.expected is None:
        return "-"
    card = f" of {memory.card.gib:.1f}" if memory.card else ""
    return f"{memory.expected.total:.1f}{card} GiB{f': {memory.fit}' if memory.card else ''}"
