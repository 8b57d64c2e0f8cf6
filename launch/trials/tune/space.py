"""The settings that a search may choose from: those that train like the recipe's own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from launch.config.kinds import Kind
from launch.config.line import format_value, override_key
from launch.config.recipe_keys import LossAveraging, Packing, recipe_mapping
from launch.config.schema import Buckets, Device, Family, Mode, TrainerConfig
from launch.errors import refusal
from launch.planning.batch_split import divisors
from launch.planning.flags import values_of
from launch.planning.loss import EQUAL_WEIGHTS
from launch.planning.parallel import bucket_sizes, has_master_weights
from launch.planning.plan import Plan
from launch.planning.recipe import flags_of_key, value_of_flags
from launch.planning.rule_facts import PlanFacts, find_by_rules
from launch.worker.json_codec import to_json

# The attributes of a candidate that are searched, and their configuration keys.
SEARCHED_KEYS = {
    "per_device": "recipe.per_device_batch_size",
    "mode": "parallel",
    "packing": "recipe.packing",
    "checkpointing": "recipe.gradient_checkpointing",
    "liger": "recipe.liger",
    "attention": "recipe.attention",
    "balanced": "recipe.balanced",
}
# How much a difference in an attribute adds to the distance of two candidates.
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
    extra: tuple[tuple[str, Any], ...] = ()  # (key, value) of options without a predicted effect

    def keys(self) -> dict[str, Any]:
        """Return the configuration keys and their values."""
        keys: dict[str, Any] = {
            key: to_json(getattr(self, name)) for name, key in SEARCHED_KEYS.items()
        }
        if self.averaging is not None:
            keys["recipe.loss_averaging"] = self.averaging
        return keys | dict(self.extra)

    def overrides(self) -> list[str]:
        """Return the overrides of a command line."""
        return [f"{key}={format_value(value)}" for key, value in self.keys().items()]

    def label(self, accumulation: int) -> str:
        """Return a short name, which the run folder has as well: `zero2-8x2-flatten-liger`."""
        parts = [self.mode.value, f"{self.per_device}x{accumulation}"]
        if self.packing != Packing.none:
            parts.append(self.packing.value)
        if self.liger:
            parts.append("liger")
        if self.checkpointing:
            parts.append("ckpt")
        if self.balanced:
            parts.append("balanced")
        if self.attention != "auto":
            parts.append(self.attention)
        for key, value in self.extra:
            name = key.rpartition(".")[2]
            parts.append(f"{name}_{format_value(value)}")
        return "-".join(parts)

    @property
    def traits(self) -> frozenset[Trait]:
        """The properties that may keep the setting from running: its mode, its packing, and every
        option that does not have its default.
        """
        default = Candidate(self.per_device, self.mode, self.packing)
        traits: set[Trait] = {("mode", self.mode), ("packing", self.packing)}
        for name in ("checkpointing", "liger", "attention", "balanced", "averaging", "extra"):
            value = getattr(self, name)
            if value != getattr(default, name):
                traits.add((name, value))
        return frozenset(traits)

    def distance(self, other: Candidate) -> float:
        """Return how different two settings are.

        The distance is 0 for the same setting, and about 1 if other parts of a step dominate its
        time.
        """
        distance = 0.5 * abs(math.log2(self.per_device / other.per_device))
        for name, weight in _DISTANCES.items():
            if getattr(self, name) != getattr(other, name):
                distance += weight
        if self.extra != other.extra:
            distance += 0.1
        return distance


# The value of recipe.loss_averaging with which every token of the global batch has the same weight.
BY_TOKENS = LossAveraging.tokens.value
_WORKERS = "dataloader_num_workers"  # flag of TRL's trainers
_ON_GPUS = (Mode.ddp, Mode.zero1, Mode.zero2, Mode.zero3, Mode.zero3_offload)


@dataclass(frozen=True)
class Space:
    """The settings that a search may choose from."""

    base: Candidate  # the recipe's own setting
    candidates: tuple[Candidate, ...]  # all settings, `base` first
    held: tuple[str, ...]  # keys that the command line sets, which are not searched
    left_out: tuple[str, ...]  # sentences about what is not tried, and why


def build_space(plan: Plan, installed: Collection[str]) -> Space:
    """Return the settings of a plan's stage at its width.

    `installed`: packages that the trainer's interpreter has. Raises UserError: unpredicted_flag.
    """
    base = base_candidate(plan)
    explicit = {override_key(override) for override in plan.origins.overrides}
    held: list[str] = []
    left_out: list[str] = []
    possible = _possible_values(plan, base, installed, left_out)
    choices: dict[str, Iterable[Any]] = {}
    for name, key in SEARCHED_KEYS.items():
        recipe_key = key.partition(".")[2]
        is_set = bool(explicit & {key, f"{key}.mode"})
        if is_set or explicit_flags(plan, recipe_key):
            held.append(key)
            choices[name] = (getattr(base, name),)
        else:
            choices[name] = dict.fromkeys([getattr(base, name), *possible[name]])
    others = []
    for values in itertools.product(*choices.values()):
        candidate = replace(base, **dict(zip(choices, values, strict=True)))
        if candidate != base and _is_distinct(candidate, plan):
            others.append(candidate)
    if "recipe.loss_averaging" not in explicit and _can_weigh_tokens(plan):
        weighted = [_token_weighted(candidate, base, plan) for candidate in others]
        if weighted != others:
            left_out.append(
                "changed means of micro batches: such settings use recipe.loss_averaging=tokens "
                "instead"
            )
        others = weighted
    return Space(base, (base, *others), tuple(held), tuple(left_out))


def _possible_values(
    plan: Plan, base: Candidate, installed: Collection[str], left_out: list[str]
) -> dict[str, Iterable[Any]]:
    """Return the values that a search may try, by the attribute of a candidate.

    Appends to `left_out` what is not tried, and why.
    """
    trainer = plan.config.trainer
    on_gpus = plan.parallel.width.device == Device.cuda
    has_liger = on_gpus and "liger-kernel" in installed
    has_flash = on_gpus and "flash-attn" in installed and trainer.family == Family.trl
    possible: dict[str, Iterable[Any]] = {
        "per_device": divisors(plan.batch.global_ // plan.batch.data_ranks),
        "mode": _modes(plan, installed, left_out),
    }
    of_recipe: dict[str, Iterable[Any]] = {
        "packing": _packings(base, trainer, left_out),
        "checkpointing": (False, True),
        "liger": (False, True) if has_liger else (),
        "attention": ("flash_2",) if has_flash else (),
        "balanced": (False, True) if _is_compatible(plan, balanced=True) else (),
    }
    for name, values in of_recipe.items():
        recipe_key = SEARCHED_KEYS[name].removeprefix("recipe.")
        possible[name] = _supported(trainer, recipe_key, values)
    return possible


def _can_weigh_tokens(plan: Plan) -> bool:
    """Whether the trainer has recipe.loss_averaging=tokens and the recipe's flags permit it."""
    if BY_TOKENS not in _supported(plan.config.trainer, "loss_averaging", (BY_TOKENS,)):
        return False
    return _is_compatible(plan, loss_averaging=LossAveraging.tokens)


def extra_options(plan: Plan, best: Candidate) -> list[tuple[str, Any]]:
    """Return (key, value) pairs to try on the best setting, whose effect is not predicted.

    They are DeepSpeed's bucket sizes, and workers of the data loader where the trainer has a flag
    for them.
    """
    config = plan.config
    options: list[tuple[str, Any]] = []
    if config.parallel.buckets == Buckets.usual:
        sizes = [size for size in bucket_sizes(best.mode) if size != Buckets.usual]
        options += [("parallel.buckets", size.value) for size in sizes]
    if config.trainer.family == Family.trl and _WORKERS not in config.flags:
        options.append((f"flags.{_WORKERS}", 4))
    return options


def base_candidate(plan: Plan) -> Candidate:
    """Return the plan's own setting, as its flags set it. Raises UserError: unpredicted_flag."""
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
    """Return the value of a recipe key, or the one that the user's flags give it.

    Raises UserError: unpredicted_flag.
    """
    flags = explicit_flags(plan, key)
    if not flags:
        return getattr(plan.config.recipe, key)
    meaning = recipe_mapping(plan.config.trainer, key)
    try:
        return value_of_flags(meaning, values_of(plan.flags))
    except LookupError:
        given = " ".join(f"flags.{name}={value}" for name, value in flags.items())
        message = (
            f"{given} does not correspond to a value of recipe.{key}, so it cannot be predicted"
        )
        values = " or ".join(f"recipe.{key}={value}" for value in meaning or ())
        raise refusal("unpredicted_flag", message, f"flags.{min(flags)}", f"use {values}") from None


class SplitWeighting(StrEnum):
    """The weights of tokens, or of DPO's pairs, in the loss, compared with the recipe's own
    setting.
    """

    same = "same"
    # Every token has the same weight, while in the recipe its weight depends on the micro batch.
    token_weighted = "token_weighted"
    # The weights depend on other micro batches than the recipe's.
    micro_batches = "micro_batches"


def compare_loss(candidate: Candidate, base: Candidate, plan: Plan) -> SplitWeighting:
    """Return how a setting changes the weights in the loss.

    open-instruct's SFT takes the mean over the tokens of each micro batch and the mean of those
    (finetune.py:820), so a token's weight depends on its micro batch unless tokens are weighted
    equally. TRL divides by the tokens of the whole step (transformers trainer.py,
    num_items_in_batch). DPO's means are over pairs, equally many in each micro batch; but dpo.py
    always weighs micro batches by their tokens (olmo_core_train_modules.py:236-243).
    """
    same_size = candidate.per_device == base.per_device
    # KTO's KL term is that of a micro batch (trl/trainer/kto_trainer.py:1444).
    if plan.config.trainer.weighs_pairs or plan.config.stage.kind == Kind.kto:
        return SplitWeighting.same if same_size else SplitWeighting.micro_batches
    if plan.config.stage.kind != Kind.sft or plan.config.trainer.family == Family.trl:
        return SplitWeighting.same
    if candidate.averaging in EQUAL_WEIGHTS:
        same_averaging = candidate.averaging == base.averaging
        return SplitWeighting.same if same_averaging else SplitWeighting.token_weighted
    if same_size and _same_micro_batches(candidate, base):
        return SplitWeighting.same
    return SplitWeighting.micro_batches


def _same_micro_batches(candidate: Candidate, base: Candidate) -> bool:
    """Whether two settings with micro batches of one size group the same samples.

    Balanced batches differ between padding and packing (launch/worker/length_balancing.py).
    """
    if candidate.per_device == 1:
        return True
    if candidate.balanced != base.balanced:
        return False
    return not base.balanced or candidate.packing == base.packing


def _is_compatible(plan: Plan, **recipe: Any) -> bool:
    """Whether the rules allow the recipe with these changes beside the plan's flags."""
    changed = {**plan.resolved["recipe"], **recipe}
    settings = {**plan.resolved, "recipe": changed}
    facts = PlanFacts(plan.config, settings, plan.origins, plan.parallel, plan.flags)
    found = (*find_by_rules(facts, with_flags=False), *find_by_rules(facts, with_flags=True))
    return not any(finding.stops for finding in found)


def _token_weighted(candidate: Candidate, base: Candidate, plan: Plan) -> Candidate:
    """Return the candidate, with equal weights of all tokens if its micro batches would change the
    loss.
    """
    changes_loss = compare_loss(candidate, base, plan) == SplitWeighting.micro_batches
    return replace(candidate, averaging=BY_TOKENS) if changes_loss else candidate


def _is_distinct(candidate: Candidate, plan: Plan) -> bool:
    """Whether the candidate differs from all others.

    Packing a single sample has no effect, and neither has balancing micro batches of one sample on
    one rank.
    """
    if candidate.per_device > 1:
        return True
    if candidate.packing == Packing.flatten:
        return False
    return not candidate.balanced or plan.batch.width > 1


def _modes(plan: Plan, installed: Collection[str], left_out: list[str]) -> tuple[Mode, ...]:
    """Return the parallel modes that keep fp32 master weights if the plan's mode does.

    Appends to `left_out` the modes that are not tried, and why.
    """
    planned = plan.parallel.mode
    width = plan.parallel.width
    if width.device == Device.cpu or planned == Mode.fsdp:
        return (planned,)
    modes = [Mode.single, Mode.zero3_offload] if width.world_size == 1 else list(_ON_GPUS)
    if "deepspeed" not in installed:
        left_out.append("ZeRO: deepspeed is not installed in the trainer's interpreter")
        modes = [mode for mode in modes if mode in (Mode.single, Mode.ddp)]
    family = plan.config.trainer.family
    plan_has_masters = has_master_weights(family, plan.parallel)
    kept = []
    dropped = []
    for mode in modes:
        mode_has_masters = has_master_weights(family, replace(plan.parallel, mode=mode))
        if mode_has_masters == plan_has_masters:
            kept.append(mode)
        else:
            dropped.append(mode.value)
    if dropped:
        reason = f"it keeps fp32 master weights, and {planned.value} does not"
        if plan_has_masters:
            reason = f"it does not keep fp32 master weights, and {planned.value} does"
        left_out.append(f"{', '.join(dropped)}: {reason}")
    return tuple(kept)


def _packings(base: Candidate, trainer: TrainerConfig, left_out: list[str]) -> tuple[Packing, ...]:
    """Return the packings that keep the samples of a step.

    Appends to `left_out` those that are not tried, and why.
    """
    if base.packing == Packing.bins:
        left_out.append(
            "packing none and flatten: the recipe packs into bins, which changes the samples per "
            "step"
        )
        return ()
    values = recipe_mapping(trainer, "packing")
    if isinstance(values, Mapping) and Packing.bins.value in values:
        left_out.append("packing bins: it changes the global batch")
    return Packing.none, Packing.flatten


def _supported(trainer: TrainerConfig, key: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return those of the values of a recipe key for which the trainer has flags."""
    meaning = recipe_mapping(trainer, key)
    if meaning is None:
        return ()
    if isinstance(meaning, str):
        return tuple(values)
    return tuple(value for value in values if format_value(value) in meaning or "*" in meaning)


def held_flags(plan: Plan) -> dict[str, Any]:
    """Return the flags that the user set in place of keys that are searched, with their values."""
    names = {_WORKERS}
    for key in SEARCHED_KEYS.values():
        names.update(explicit_flags(plan, key.partition(".")[2]))
    return {name: value for name, value in plan.config.flags.items() if name in names}


def explicit_flags(plan: Plan, key: str) -> dict[str, Any]:
    """Return the flags of a recipe key that the user set; they take precedence over the recipe.

    `key` is "" for a key outside the recipe, which has no flags.
    """
    if not key:
        return {}
    flag_names = flags_of_key(recipe_mapping(plan.config.trainer, key))
    return {name: value for name, value in plan.config.flags.items() if name in flag_names}
