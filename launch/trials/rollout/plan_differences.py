"""Finds the differences between the plans of a rollout's widths, and how large they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launch.config.kinds import Kind
from launch.config.recipe_keys import Packing, Precision
from launch.config.schema import Family, Launcher
from launch.planning.flags import values_of
from launch.planning.loss import EQUAL_WEIGHTS
from launch.planning.plan import Plan
from launch.worker.finding import Finding


@dataclass(frozen=True)
class PlanDifference:
    """A difference between the trainings at two widths, which one of the rules below has found.

    It is not a setting with two values (`SettingDifference`): it describes what the training does
    differently, and how large the effect is at most.
    """

    id: str
    what: str  # a clause that names the difference
    bound: str | None  # how much it differs at most; None where unknown
    cure: str | None = None  # how to avoid the difference

    def __str__(self) -> str:
        bound = self.bound or "by how much is unknown"
        return str(Finding.warning(self.id, f"{self.what}; {bound}", cure=self.cure))


def find_plan_differences(plans: Sequence[Plan]) -> tuple[PlanDifference, ...]:
    """Find everything that differs between the widths, except the number of accumulation steps."""
    if len(plans) < 2:
        return ()
    rules = (
        _other_flags,
        _master_weights,
        _warmup,
        _schedule,
        _last_step,
        _balanced_batches,
        _pair_weights,
        _dropout,
        _sharding,
    )
    differences = [rule(plans) for rule in rules]
    return tuple(difference for difference in differences if difference is not None)


def _other_flags(plans: Sequence[Plan]) -> PlanDifference | None:
    """Compare all flags except accumulation and output folder, which always differ."""
    flag_names = plans[0].config.trainer.launch
    expected = {flag_names.get("accumulation"), flag_names.get("output")}
    flags_of_plans = [values_of(plan.flags) for plan in plans]
    names = set().union(*flags_of_plans) - expected
    differing = []
    for name in sorted(names):
        values = {str(flags.get(name)) for flags in flags_of_plans}
        if len(values) > 1:
            differing.append(name)
    if not differing:
        return None
    what = f"the flags {', '.join(differing)} differ between the widths"
    return PlanDifference("other_flags", what, None)


def _master_weights(plans: Sequence[Plan]) -> PlanDifference | None:
    """finetune.py:596 and dpo_tune_cache.py:338 load bf16 weights; only DeepSpeed keeps fp32 master
    weights of them.
    """
    first = plans[0].config.trainer
    if first.family != Family.open_instruct or first.launcher == Launcher.torchrun:
        return None
    with_zero = [str(plan.parallel.width) for plan in plans if plan.parallel.zero_stage]
    without = [str(plan.parallel.width) for plan in plans if not plan.parallel.zero_stage]
    if not with_zero or not without or plans[0].parallel.precision != Precision.bf16:
        return None
    what = (
        f"AdamW updates bf16 weights at {', '.join(without)}, without DeepSpeed, "
        f"and fp32 master weights at {', '.join(with_zero)}"
    )
    bound = (
        "an update below 1/256 of a weight can be lost without them; the gate loss_parity has "
        "a tolerance of its own"
    )
    cure = None
    if any(plan.batch.width == 1 and not plan.parallel.zero_stage for plan in plans):
        cure = "parallel_at_one=zero2 (or zero3_offload to save memory) compares exactly"
    return PlanDifference("master_weights", what, bound, cure)


def _warmup(plans: Sequence[Plan]) -> PlanDifference | None:
    """open-instruct rounds the warm-up down in units of a rank's step: int(steps x ranks x ratio)
    (finetune.py:355, dpo_tune_cache.py:458); transformers rounds it up in optimizer steps at every
    width.
    """
    recipe = plans[0].config.recipe
    if not _steps_times_ranks(plans) or not recipe.warmup_ratio:
        return None
    if recipe.max_steps is None:
        what = "the end of the warm-up is rounded to the number of ranks"
        return PlanDifference("warmup_rounding", what, "less than one optimizer step")
    lengths = {}  # {number of ranks: optimizer steps}
    for plan in plans:
        ranks = plan.batch.width
        lengths[ranks] = warmup_steps(recipe.max_steps, recipe.warmup_ratio, ranks)
    shortest = min(lengths.values())
    longest = max(lengths.values())
    if shortest == longest:
        return None
    steps_by_ranks = ", ".join(f"{length:g} on {ranks}" for ranks, length in lengths.items())
    what = f"the warm-up is rounded to the number of ranks: {steps_by_ranks}"
    bound = f"{longest - shortest:g} optimizer steps"
    whole = max(1, math.ceil(shortest))
    ratio = (whole + 1e-4) / recipe.max_steps
    cure = f"recipe.warmup_ratio={ratio:.6f} is {whole} at every width"
    return PlanDifference("warmup_rounding", what, bound, cure)


def warmup_steps(steps: int, ratio: float, ranks: int) -> float:
    """Return the length of open-instruct's warm-up in optimizer steps.

    Its scheduler is stepped once per rank and step (accelerate/scheduler.py:76).
    """
    return int(steps * ranks * ratio) / ranks


def _schedule(plans: Sequence[Plan]) -> PlanDifference | None:
    """Without max_steps open-instruct counts the steps of the schedule before it shards the data
    (finetune.py:684).
    """
    if not _steps_times_ranks(plans) or plans[0].config.recipe.max_steps is not None:
        return None
    what = (
        "the length of the learning-rate schedule is computed before the data is split among "
        "the ranks, and rounded"
    )
    epochs = plans[0].config.recipe.epochs
    bound = "less than one optimizer step"
    if epochs > 1:
        bound += f" for each of the {epochs} epochs"
    return PlanDifference("schedule_rounding", what, bound, "recipe.max_steps=N sets it exactly")


def _last_step(plans: Sequence[Plan]) -> PlanDifference | None:
    """accelerate gives every rank the same number of micro batches by repeating samples from the
    beginning (data_loader.py, BatchSamplerShard, even_batches).
    """
    if plans[0].config.trainer.launcher == Launcher.torchrun:
        return None
    widest = max(plan.batch.width for plan in plans)
    samples = (widest - 1) * plans[0].batch.per_device
    what = (
        "the last optimizer step of an epoch is padded so that every rank has the same number "
        "of micro batches"
    )
    bound = f"at most {samples} samples of an epoch are seen twice on {widest} ranks"
    return PlanDifference("end_of_epoch", what, bound)


def _balanced_batches(plans: Sequence[Plan]) -> PlanDifference | None:
    """The best assignment of a global batch's samples depends on the ranks
    (launch/worker/length_balancing.py). It does not change the loss of dpo_tune_cache.py, which is
    a mean over pairs; the other DPO trainers have no balanced batches.
    """
    config = plans[0].config
    weighted = config.recipe.loss_averaging in EQUAL_WEIGHTS
    if not config.recipe.balanced or weighted or config.stage.kind == Kind.dpo:
        return None
    what = (
        "balanced batches group samples into different micro batches, and the loss is the mean "
        "of their means"
    )
    cure = "recipe.loss_averaging=tokens makes the loss the same"
    return PlanDifference("other_micro_batches", what, None, cure)


def _pair_weights(plans: Sequence[Plan]) -> PlanDifference | None:
    """dpo.py distributes the pairs of a global batch round robin (data_loader.py:298) and weighs a
    micro batch by its fraction of its rank's tokens (olmo_core_train_modules.py:236-243). A packed
    batch is one micro batch.
    """
    config = plans[0].config
    if not config.trainer.weighs_pairs or config.recipe.packing != Packing.none:
        return None
    what = (
        "dpo.py weighs a micro batch by its fraction of its rank's tokens, so a pair's weight "
        "depends on the ranks"
    )
    cure = "trainer=dpo_tune_cache takes the mean over all pairs"
    return PlanDifference("pairs_weighed_by_tokens", what, None, cure)


def _dropout(plans: Sequence[Plan]) -> PlanDifference | None:
    """Every rank draws its own dropout masks."""
    if not plans[0].trains_adapter or values_of(plans[0].flags).get("lora_dropout") == 0:
        return None
    what = "LoRA's dropout draws different masks on each rank"
    bound = "noise of the same size at every width"
    cure = "flags.lora_dropout=0.0 removes it"
    return PlanDifference("dropout", what, bound, cure)


def _sharding(plans: Sequence[Plan]) -> PlanDifference | None:
    """The trainers over OLMo-core are those that torchrun starts."""
    if plans[0].config.trainer.launcher != Launcher.torchrun:
        return None
    what = (
        f"{plans[0].trainer} shards its data and its model by OLMo-core, so equal steps are not "
        "proven"
    )
    cure = "the gates same_data and loss_parity compare the steps"
    return PlanDifference("olmo_core_sharding", what, None, cure)


def _steps_times_ranks(plans: Sequence[Plan]) -> bool:
    """Whether the trainer steps its scheduler once per rank and optimizer step."""
    trainer = plans[0].config.trainer
    return trainer.family == Family.open_instruct and trainer.launcher == Launcher.accelerate
