"""How the loss of an optimizer step weights its tokens or pairs, and whether that depends on how
the batch is split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.config.kinds import Kind
from launch.config.recipe_keys import LossAveraging, Packing
from launch.config.schema import Family, Launcher, RootConfig
from launch.planning.batch_split import Batch
from launch.worker.finding import Fix

# The values of recipe.loss_averaging with which each token of a global batch has the same weight,
# whatever its micro batch.
EQUAL_WEIGHTS = (LossAveraging.sum, LossAveraging.tokens)
_BY_AVERAGING = {
    LossAveraging.sum: "the sum over all tokens of the global batch, divided by its number of "
    "samples: every token has the same weight",
    LossAveraging.tokens: "the mean over all tokens of the global batch: every token has the same "
    "weight",
}
_MEANS = "the mean over the tokens of each micro batch, then over the micro batches"
_VARIES_BY_MICRO_BATCH = "a token counts more in a short micro batch"
_VARIES_BY_RANK = "a token counts more on a rank with few of them"
# What TRL's GRPO takes the mean of, by --loss_type (trl/trainer/grpo_trainer.py). Other types have
# normalisations of their own.
_BY_LOSS_TYPE = {
    "grpo": "the mean over the tokens of each completion, then over the completions",
    "dr_grpo": "the sum over the tokens, divided by the longest completion that is allowed and the "
    "completions",
    "dapo": "the mean over the completions' tokens of the global batch",
    "bnpo": "the mean over the completions' tokens of each micro batch, then over the micro "
    "batches",
}


# Other trainers have no batch in tokens, so that no line changes this one alone.
_TOKEN_BATCH_CURE = (
    "no key of this trainer changes that; finetune with recipe.loss_averaging=sum weights every "
    "token equally, and counts its batch in chats"
)


@dataclass(frozen=True)
class LossWeighting:
    """What the loss of an optimizer step is a mean of."""

    text: str
    # why the same samples have another loss when they are split otherwise; empty if they have the
    # same
    reason: str = ""
    cure: Fix | None = None  # what makes the loss independent of the split


def weigh_loss(config: RootConfig, batch: Batch, flags: Mapping[str, Any]) -> LossWeighting:
    """Return how a trainer weights what its loss is computed of. `flags` are the trainer's values
    by name.
    """
    if config.stage.kind == Kind.sft:
        return _weigh_sft(config, batch, flags)
    if config.stage.kind == Kind.rlvr:
        return _weigh_rlvr(config, flags)
    if config.stage.kind == Kind.kto:
        return LossWeighting(_describe_kto(flags))
    if config.trainer.weighs_pairs and config.recipe.packing == Packing.none:
        # olmo_core_train_modules.py:236-243
        text = (
            "the mean over the pairs of each micro batch, weighted by its tokens on its rank, "
            "then over the ranks"
        )
        if batch.accumulation == 1:
            return LossWeighting(text)
        cure = Fix.of("{0} takes the mean over all pairs", "trainer=dpo_tune_cache")
        reason = "a pair counts more in a long micro batch"
        return LossWeighting(text, reason, cure)
    return LossWeighting(
        "the mean over the pairs of the global batch: every pair has the same weight"
    )


def _describe_kto(flags: Mapping[str, Any]) -> str:
    """Describe KTO's loss (trl/trainer/kto_trainer.py:1451-1482)."""
    weights = [flags.get(name) for name in ("desirable_weight", "undesirable_weight")]
    good, bad = ("1" if weight is None else f"{weight:g}" for weight in weights)
    text = f"the mean over the answers of the global batch, good ones times {good}, bad ones times {bad}"
    if flags.get("loss_type", "kto") != "kto":
        return text
    return f"{text}; its KL term is the mean of a micro batch's mismatched answers over all ranks"


def _weigh_sft(config: RootConfig, batch: Batch, flags: Mapping[str, Any]) -> LossWeighting:
    trainer = config.trainer
    if trainer.launcher == Launcher.torchrun:
        # olmo_core/train/train_module/transformer/train_module.py:402
        if config.recipe.global_batch_tokens is not None:
            return _weigh_ranks(batch, Fix.of(_TOKEN_BATCH_CURE))
        cure = Fix.of(
            "{0} weights every token equally",
            "trainer=finetune recipe.packing=flatten recipe.loss_averaging=sum",
        )
        return _weigh_ranks(batch, cure)
    if trainer.family == Family.trl and flags.get("average_tokens_across_devices") is False:
        return _weigh_ranks(batch, Fix.of("remove {0}", "~flags.average_tokens_across_devices"))
    averaging = config.recipe.loss_averaging or LossAveraging.micro_batch_means
    averages_whole_batch = (
        trainer.family == Family.trl or batch.data_ranks * batch.accumulation == 1
    )
    if averages_whole_batch and averaging != LossAveraging.sum:
        averaging = LossAveraging.tokens
    if averaging in EQUAL_WEIGHTS:
        return LossWeighting(_BY_AVERAGING[averaging])
    overrides = [f"recipe.loss_averaging={value}" for value in EQUAL_WEIGHTS]
    sentence = (
        "{0} weights every token equally, as Tulu 3 did, and {1} with the mean's gradient norm"
    )
    cure = Fix.of(sentence, *overrides)
    return LossWeighting(_MEANS, _VARIES_BY_MICRO_BATCH, cure)


def _weigh_ranks(batch: Batch, cure: Fix) -> LossWeighting:
    """Return the weighting of a trainer whose ranks average over their own tokens. `cure` is what
    changes that.
    """
    if batch.data_ranks == 1:
        return LossWeighting(_BY_AVERAGING[LossAveraging.tokens])
    text = "the mean over the tokens of each rank's samples, then over the ranks"
    return LossWeighting(text, _VARIES_BY_RANK, cure)


def _weigh_rlvr(config: RootConfig, flags: Mapping[str, Any]) -> LossWeighting:
    if config.trainer.family != Family.trl:
        # grpo_utils.py:141
        denominator = flags.get("loss_denominator") or "token"
        return LossWeighting(
            f"the sum over the completions' tokens, divided by --loss_denominator {denominator}"
        )
    loss_type = str(flags.get("loss_type") or "dapo")
    text = _BY_LOSS_TYPE.get(loss_type, f"as --loss_type {loss_type} has it")
    if loss_type != "bnpo":
        return LossWeighting(text)
    cure = Fix.of("{0} takes the mean over all tokens", "recipe.loss=dapo")
    return LossWeighting(text, _VARIES_BY_MICRO_BATCH, cure)
