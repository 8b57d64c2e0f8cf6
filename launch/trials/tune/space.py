"""The settings that are the same training: same global batch, same master weights, same user
keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from launch.config.line import format_value, override_key
from launch.config.schema import (
    Buckets,
    Device,
    Family,
    Kind,
    LossAveraging,
    Mode,
    Packing,
    TrainerConfig,
)
from launch.errors import UserError, refusal
from launch.planning.checks import check_dealing
from launch.planning.flags import values_of
from launch.planning.loss import EQUAL_WEIGHTS
from launch.planning.parallel import bucket_sizes, divisors, has_master_weights
from launch.planning.plan import Plan
from launch.planning.recipe import flags_of_key, value_of_flags
from launch.worker.json_codec import to_json

# the values of a candidate that are searched, and their keys
KEYS = {
    "per_device": "recipe.per_device_batch_size",
    "mode": "parallel",
    "packing": "recipe.packing",
    "checkpointing": "recipe.gradient_checkpointing",
    "liger": "recipe.liger",
    "attention": "recipe.attention",
    "balanced": "recipe.balanced",
}
_DISTANCES = {
    "mode": 1.0,
    "checkpointing": 0.7,
    "packing": 0.7,
    "attention": 0.5,
    "liger": 0.3,
    "balanced": 0.3,
}


Trait = tuple[str, Any]  # an attribute of a setting and its value


@dataclass(frozen=True)
class Candidate:
    """The values of the keys that are searched."""

    per_device: int
    mode: Mode
    packing: Packing = Packing.none
    checkpointing: bool = False
    liger: bool = False
    attention: str = "auto"
    balanced: bool = False
    averaging: str | None = None  # recipe.loss_averaging
    extra: tuple[tuple[str, Any], ...] = ()  # keys whose effect nothing predicts, with their values

    def keys(self) -> dict[str, Any]:
        """The configuration keys and their values."""
        keys: dict[str, Any] = {key: to_json(getattr(self, name)) for name, key in KEYS.items()}
        if self.averaging is not None:
            keys["recipe.loss_averaging"] = self.averaging
        return keys | dict(self.extra)

    def overrides(self) -> list[str]:
        """The overrides of a command line."""
        return [f"{key}={format_value(value)}" for key, value in self.keys().items()]

    def label(self, accumulation: int) -> str:
        """A short name, which its run folder has as well: `zero2-8x2-flatten-liger`."""
        marks = [self.packing.value] if self.packing != Packing.none else []
        marks += ["liger"] if self.liger else []
        marks += ["ckpt"] if self.checkpointing else []
        marks += ["balanced"] if self.balanced else []
        marks += [self.attention] if self.attention != "auto" else []
        marks += [f"{key.rpartition('.')[2]}_{format_value(value)}" for key, value in self.extra]
        return "-".join([self.mode.value, f"{self.per_device}x{accumulation}", *marks])

    @property
    def traits(self) -> frozenset[Trait]:
        """What may keep the setting from running: its mode, its packing, and every option that is
        not default.
        """
        default = Candidate(self.per_device, self.mode, self.packing)
        names = ("checkpointing", "liger", "attention", "balanced", "averaging", "extra")
        changed = (
            (name, getattr(self, name))
            for name in names
            if getattr(self, name) != getattr(default, name)
        )
        return frozenset({("mode", self.mode), ("packing", self.packing), *changed})

    def distance(self, other: Candidate) -> float:
        """0 for the same setting, about 1 where other parts of a step dominate its time."""
        distance = 0.5 * abs(math.log2(self.per_device / other.per_device))
        distance += sum(
            weight
            for name, weight in _DISTANCES.items()
            if getattr(self, name) != getattr(other, name)
        )
        return distance + (0.1 if self.extra != other.extra else 0.0)


# of recipe.loss_averaging: every token of the global batch has the same weight
TOKENS = LossAveraging.tokens.value
_WORKERS = "dataloader_num_workers"
_ON_GPUS = (Mode.ddp, Mode.zero1, Mode.zero2, Mode.zero3, Mode.zero3_offload)


@dataclass(frozen=True)
class Space:
    """The settings that a search may choose from."""

    base: Candidate  # the recipe's own setting
    candidates: tuple[Candidate, ...]  # `base` and the others
    held: tuple[str, ...]  # keys that the command line sets, which are not searched
    left_out: tuple[str, ...]  # what is not tried, and why, a sentence each


def build_space(plan: Plan, installed: Collection[str]) -> Space:
    """The settings of a plan's stage at its width. `installed`: packages that the trainer's
    interpreter has.
    """
    trainer = plan.config.trainer
    base = base_candidate(plan)
    explicit = {override_key(override) for override in plan.origins.overrides}
    on_gpus = plan.parallel.width.device == Device.cuda
    held: list[str] = []
    left_out: list[str] = []
    others: dict[str, Iterable[Any]] = {
        "per_device": divisors(plan.batch.global_ // plan.batch.width),
        "mode": _modes(plan, installed, left_out),
        "packing": _packings(base, trainer, left_out),
        "checkpointing": (False, True),
        "liger": (False, True) if on_gpus and "liger-kernel" in installed else (),
        "attention": ("flash_2",)
        if on_gpus and "flash-attn" in installed and trainer.family == Family.trl
        else (),
        "balanced": (False, True) if _is_compatible(plan, balanced=True) else (),
    }
    choices: dict[str, Iterable[Any]] = {}
    for name, key in KEYS.items():
        recipe_key = key.partition(".")[2]
        if explicit & {key, f"{key}.mode"} or explicit_flags(plan, recipe_key):
            held.append(key)
            choices[name] = (getattr(base, name),)
        else:
            possible = (
                others[name]
                if name in ("per_device", "mode")
                else _supported(trainer, recipe_key, others[name])
            )
            choices[name] = dict.fromkeys([getattr(base, name), *possible])
    combinations = itertools.product(*choices.values())
    candidates = [
        replace(base, **dict(zip(choices, values, strict=True))) for values in combinations
    ]
    distinct = [
        candidate for candidate in candidates if candidate != base and _is_distinct(candidate, plan)
    ]
    has_token_weighting = TOKENS in _supported(trainer, "loss_averaging", (TOKENS,))
    is_free = has_token_weighting and _is_compatible(plan, loss_averaging=LossAveraging.tokens)
    if "recipe.loss_averaging" not in explicit and is_free:
        weighted = [_token_weighted(candidate, base, plan) for candidate in distinct]
        if weighted != distinct:
            left_out.append(
                "changed means of micro batches: such settings use recipe.loss_averaging=tokens "
                "instead"
            )
        distinct = weighted
    return Space(base, (base, *distinct), tuple(held), tuple(left_out))


def extra_options(plan: Plan, best: Candidate) -> list[tuple[str, Any]]:
    """(key, value) pairs to try on the best setting, whose effect is not predicted: DeepSpeed's
    bucket sizes, and workers of the data loader where the trainer has a flag for them.
    """
    config = plan.config
    options: list[tuple[str, Any]] = []
    if config.parallel.buckets == Buckets.usual:
        options += [
            ("parallel.buckets", size.value)
            for size in bucket_sizes(best.mode)
            if size != Buckets.usual
        ]
    if config.trainer.family == Family.trl and _WORKERS not in config.flags:
        options.append((f"flags.{_WORKERS}", 4))
    return options


def base_candidate(plan: Plan) -> Candidate:
    """The plan's own setting, as its flags set it. Raises UserError: unpredicted_flag."""
    recipe = plan.config.recipe
    return Candidate(
        per_device=plan.batch.per_device,
        mode=plan.parallel.mode,
        packing=Packing(_effective(plan, "packing")),
        checkpointing=bool(_effective(plan, "gradient_checkpointing")),
        liger=bool(_effective(plan, "liger")),
        attention=str(_effective(plan, "attention")),
        balanced=recipe.balanced,
        averaging=recipe.loss_averaging.value if recipe.loss_averaging else None,
    )


def _effective(plan: Plan, key: str) -> Any:
    """The value of a recipe key, or the one that flags set by the user give it."""
    flags = explicit_flags(plan, key)
    if not flags:
        return getattr(plan.config.recipe, key)
    meaning = plan.config.trainer.recipe[key]
    try:
        return value_of_flags(meaning, values_of(plan.flags))
    except LookupError:
        given = " ".join(f"flags.{name}={value}" for name, value in flags.items())
        message = (
            f"{given} does not correspond to a value of recipe.{key}, so it cannot be predicted"
        )
        values = " or ".join(f"recipe.{key}={value}" for value in meaning)
        raise refusal("unpredicted_flag", message, f"flags.{min(flags)}", f"use {values}") from None


class SplitWeighting(StrEnum):
    """The weights of tokens, or of DPO's pairs, in the loss, compared with the recipe's own
    setting.
    """

    same = "same"
    # every token has the same weight; in the recipe it depends on the micro batch
    token_weighted = "token_weighted"
    micro_batches = "micro_batches"  # the weights depend on other micro batches than the recipe's


def compare_loss(candidate: Candidate, base: Candidate, plan: Plan) -> SplitWeighting:
    """How a setting changes the weights in the loss.

    open-instruct's SFT takes the mean over the tokens of each micro batch and the mean of those
    (finetune.py:820), so a token's weight depends on its micro batch unless tokens are weighted
    equally. TRL divides by the tokens of the whole step (transformers trainer.py,
    num_items_in_batch). DPO's means are over pairs, equally many in each micro batch; but dpo.py
    always weighs micro batches by their tokens (olmo_core_train_modules.py:236-243).
    """
    if plan.config.trainer.weighs_pairs:
        return (
            SplitWeighting.same
            if candidate.per_device == base.per_device
            else SplitWeighting.micro_batches
        )
    if plan.config.stage.kind != Kind.sft or plan.config.trainer.family == Family.trl:
        return SplitWeighting.same
    if candidate.averaging in EQUAL_WEIGHTS:
        return (
            SplitWeighting.same
            if base.averaging == candidate.averaging
            else SplitWeighting.token_weighted
        )
    same = candidate.per_device == base.per_device and _same_micro_batches(candidate, base)
    return SplitWeighting.same if same else SplitWeighting.micro_batches


def _same_micro_batches(candidate: Candidate, base: Candidate) -> bool:
    """Whether both settings, of one size, group the same samples; balanced batches differ between
    padding and packing (launch/worker/dealing.py).
    """
    if candidate.per_device == 1:
        return True
    if candidate.balanced != base.balanced:
        return False
    return not base.balanced or candidate.packing == base.packing


def _is_compatible(plan: Plan, **recipe: Any) -> bool:
    """Whether the recipe with these changes is compatible with the flags."""
    try:
        check_dealing(replace(plan.config, recipe=replace(plan.config.recipe, **recipe)))
    except UserError:
        return False
    return True


def _token_weighted(candidate: Candidate, base: Candidate, plan: Plan) -> Candidate:
    """The candidate, with equal weights of all tokens if its micro batches would change the
    loss.
    """
    changes_loss = compare_loss(candidate, base, plan) == SplitWeighting.micro_batches
    return replace(candidate, averaging=TOKENS) if changes_loss else candidate


def _is_distinct(candidate: Candidate, plan: Plan) -> bool:
    """Whether the candidate differs from all others: packing or balancing a single sample has no
    effect.
    """
    if candidate.per_device == 1 and candidate.packing == Packing.flatten:
        return False
    return not (candidate.balanced and plan.batch.width == 1 and candidate.per_device == 1)


def _modes(plan: Plan, installed: Collection[str], left_out: list[str]) -> tuple[Mode, ...]:
    """The modes that keep the same master weights, as fp32 or not at all."""
    own, width = plan.parallel.mode, plan.parallel.width
    if width.device == Device.cpu or own == Mode.fsdp:
        return (own,)
    modes: tuple[Mode, ...] = (
        (Mode.single, Mode.zero3_offload) if width.world_size == 1 else _ON_GPUS
    )
    if "deepspeed" not in installed:
        left_out.append("ZeRO: deepspeed is not installed in the trainer's interpreter")
        modes = tuple(mode for mode in modes if mode in (Mode.single, Mode.ddp))
    has_masters = partial(has_master_weights, plan.config.trainer.family)
    masters = has_masters(plan.parallel)
    kept = [mode for mode in modes if has_masters(replace(plan.parallel, mode=mode)) == masters]
    dropped = ", ".join(mode.value for mode in modes if mode not in kept)
    if dropped:
        verbs = ("does not keep", "does") if masters else ("keeps", "does not")
        left_out.append(f"{dropped}: it {verbs[0]} fp32 master weights, and {own.value} {verbs[1]}")
    return tuple(kept)


def _packings(base: Candidate, trainer: TrainerConfig, left_out: list[str]) -> tuple[Packing, ...]:
    if base.packing == Packing.bins:
        left_out.append(
            "packing none and flatten: the recipe packs into bins, which changes the samples per "
            "step"
        )
        return ()
    values = trainer.recipe.get("packing", {})
    if isinstance(values, Mapping) and Packing.bins.value in values:
        left_out.append("packing bins: it changes the global batch")
    return Packing.none, Packing.flatten


def _supported(trainer: TrainerConfig, key: str, values: Iterable[Any]) -> tuple[Any, ...]:
    meaning = trainer.recipe.get(key)
    if meaning is None:
        return ()
    if isinstance(meaning, str):
        return tuple(values)
    return tuple(value for value in values if format_value(value) in meaning or "*" in meaning)


def held_flags(plan: Plan) -> dict[str, Any]:
    """The flags set by the user in place of keys that are searched."""
    names = {_WORKERS}.union(
        *(explicit_flags(plan, key.partition(".")[2]) for key in KEYS.values())
    )
    return {name: value for name, value in plan.config.flags.items() if name in names}


def explicit_flags(plan: Plan, key: str) -> dict[str, Any]:
    """The flags of a recipe key that the user set explicitly; they take precedence over the
    recipe.
    """
    carried = flags_of_key(plan.config.trainer.recipe.get(key))
    return {name: value for name, value in plan.config.flags.items() if name in carried}
