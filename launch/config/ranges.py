"""The range of every number that a stage may set, beside the types of launch/config/schema.py.

A bound is only where a value beyond it cannot work: a learning rate of 1 is a warning, and the guards stop it.
The nodes `bench`, `tune` and `rollout` are checked by their verbs, as their numbers depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launch.config.origins import Origins
from launch.config.schema import RootConfig
from launch.errors import Problem

_MOST = 2**31 - 1  # the largest 32-bit integer: no trainer counts steps, samples or tokens beyond it
_MOST_RANKS = 65_536  # of nodes, and of ranks in one: Slurm's own maximum of nodes, slurm.h MAX_SLURM_NODES
HIGH_LEARNING_RATE = 0.01  # above it nearly every model diverges


@dataclass(frozen=True)
class Range:
    """The finite numbers between two bounds."""

    low: float
    high: float | None = None  # None: no bound
    includes_low: bool = True
    includes_high: bool = True
    also: tuple[float, ...] = ()  # single values outside the bounds

    def contains(self, value: float) -> bool:
        """Whether a number is in the range; NaN and infinities never are."""
        if value in self.also:
            return True
        if not math.isfinite(value) or value < self.low or (value == self.low and not self.includes_low):
            return False
        return self.high is None or value < self.high or (value == self.high and self.includes_high)

    def describe(self, value: float) -> str:
        """Return `at least 0 and below 1`; the upper bound of a count only where `value` is above it."""
        low = f"{'at least' if self.includes_low else 'above'} {self.low:g}"
        shows_high = self.high is not None and (self.high < _MOST_RANKS or value > self.high)
        high = f" and {'at most' if self.includes_high else 'below'} {self.high:.12g}" if shows_high else ""
        special = "".join(f"{single:g}, or " for single in self.also)
        return f"{special}{low}{high}"


_COUNT = Range(1, _MOST)
_COUNT_OR_ZERO = Range(0, _MOST)
_POSITIVE = Range(0, includes_low=False)
_NOT_NEGATIVE = Range(0)
_FRACTION = Range(0, 1, includes_low=False)
_FRACTION_OR_ZERO = Range(0, 1)
_BELOW_ONE = Range(0, 1, includes_high=False)

RANGES: Mapping[str, Range] = {
    "nodes": Range(1, _MOST_RANKS),
    "gpus": Range(0, _MOST_RANKS),
    "processes": Range(1, _MOST_RANKS),
    **{f"recipe.{key}": _COUNT for key in ("global_batch_size", "per_device_batch_size", "epochs", "max_steps")},
    "recipe.learning_rate": _POSITIVE,
    "recipe.warmup_ratio": _BELOW_ONE,  # TRL takes 1 for one step (transformers training_args.py, warmup_steps)
    "recipe.weight_decay": _NOT_NEGATIVE,
    "recipe.max_seq_length": Range(2, _MOST),  # a single token has no next one to predict
    "recipe.max_grad_norm": _NOT_NEGATIVE,
    "recipe.seed": Range(0, 2**32 - 1),  # numpy.random.seed's
    **{f"recipe.{key}": _COUNT for key in ("checkpoint_steps", "eval_steps", "early_stop")},
    "recipe.beta": _POSITIVE,
    "recipe.lora.rank": _COUNT,
    "recipe.lora.alpha": _COUNT,
    "recipe.lora.dropout": _BELOW_ONE,
    "data.fraction": _POSITIVE,  # above 1 repeats rows
    "data.mix.share": _POSITIVE,
    "model.shape.parameters": _POSITIVE,
    **{f"model.shape.{key}": _COUNT for key in ("layers", "hidden", "intermediate", "heads", "kv_heads", "vocabulary")},
    "guards.non_finite.steps": _COUNT,
    "guards.divergence.factor": _POSITIVE,
    "guards.divergence.margin": _NOT_NEGATIVE,
    "guards.divergence.window": _COUNT,
    "guards.divergence.memory": _COUNT,
    "guards.grad_norm.factor": _POSITIVE,
    "guards.grad_norm.floor": _NOT_NEGATIVE,
    "guards.grad_norm.steps": _COUNT,
    "guards.grad_norm.window": _COUNT,
    **{
        f"guards.stall.{key}": _POSITIVE
        for key in ("importing", "tokenize", "load", "reference_logprobs", "first_step", "training", "factor")
    },
    **{f"guards.stall.{key}": _POSITIVE for key in ("evaluate", "checkpoint", "save", "push")},
    "guards.dead_rank.after_error": _NOT_NEGATIVE,
    "guards.dead_rank.silent": _NOT_NEGATIVE,
    "guards.memory_creep.window": _COUNT,
    "guards.memory_creep.windows": _COUNT,
    "guards.memory_creep.share": _POSITIVE,  # of the first window's peak: memory may more than double
    "guards.disk.margin": _POSITIVE,
    "guards.disk.ahead": _NOT_NEGATIVE,
    "guards.throughput.share": _FRACTION,
    "guards.throughput.steps": _COUNT,
    "guards.throughput.seconds": _NOT_NEGATIVE,
    "guards.throughput.window": _COUNT,
    "gates.loss_falls.short": _COUNT,
    "gates.loss_falls.long": _COUNT,
    "gates.loss_falls.share": _FRACTION_OR_ZERO,
    "gates.loss_falls.trend": _NOT_NEGATIVE,
    "gates.loss_falls.rise": _NOT_NEGATIVE,
    "gates.grad_norm_sane.limit": _POSITIVE,
    "gates.grad_norm_sane.spike": _POSITIVE,
    "gates.grad_norm_sane.spikes": _FRACTION_OR_ZERO,
    "gates.memory_room.room": _BELOW_ONE,
    "gates.throughput_steady.skip": _COUNT_OR_ZERO,
    "gates.throughput_steady.steps": _COUNT,
    "gates.throughput_steady.slower": _FRACTION_OR_ZERO,
    "gates.throughput_steady.collapsed": _FRACTION_OR_ZERO,
    "gates.padding.much": _FRACTION_OR_ZERO,
    "gates.padding.most": _FRACTION_OR_ZERO,
    "gates.scaling.low": _NOT_NEGATIVE,  # a rank of the wider run may be the faster one
    "gates.scaling.least": _NOT_NEGATIVE,
    "gates.loss_parity.steps": _COUNT,
    **{f"gates.loss_parity.{key}": _POSITIVE for key in ("first_fp32", "first_bf16", "fp32", "bf16", "masters")},
    "gates.same_schedule.differs": _NOT_NEGATIVE,
    "gates.same_schedule.wrong": _NOT_NEGATIVE,
    "gates.first_dpo_loss.tolerance": _POSITIVE,
    "cluster.cpus_per_rank": _COUNT,
    "cluster.gpu_memory": _POSITIVE,
    "cluster.heartbeat": Range(5, also=(0,)),
    "cluster.warn_before": Range(30, 65_535, also=(0,)),  # sbatch(1), --signal
    "cluster.requeues": _COUNT_OR_ZERO,
    "cluster.retries": _COUNT_OR_ZERO,
    "cluster.array_limit": _COUNT,
    "cluster.tokenize_cpus": _COUNT,
}

# Flags whose numbers are not those of their recipe key, and flags without one that a library refuses as the run starts.
FLAG_RANGES: Mapping[str, Range] = {
    "warmup_steps": _NOT_NEGATIVE,  # a fraction below 1, steps from 1 on (transformers training_args.py)
    "max_steps": Range(1, _MOST, also=(-1,)),  # -1: the epochs end the run (transformers training_args.py)
    "num_train_epochs": _POSITIVE,  # a part of one, too (transformers training_args.py)
    **dict.fromkeys(("save_steps", "eval_steps"), _POSITIVE),  # below 1 a fraction of all steps (training_args.py)
    "clip_grad_norm": Range(0, also=(-1,)),  # finetune.py:847
    **dict.fromkeys(("adam_beta1", "adam_beta2"), _BELOW_ONE),  # torch/optim/adamw.py
    "adam_epsilon": _NOT_NEGATIVE,
    "dataloader_num_workers": _COUNT_OR_ZERO,  # torch/utils/data/dataloader.py
    "dataset_num_proc": _COUNT,  # datasets/arrow_dataset.py, map
    **dict.fromkeys(("timeout", "ddp_timeout"), _POSITIVE),  # of a collective, in seconds
}


def range_problems(config: RootConfig, origins: Origins) -> list[Problem]:
    """Find every number outside its range, with the override or the line that sets it."""
    problems = []
    for key, allowed in RANGES.items():
        for shown, value in _numbers_of(config, key):
            if not allowed.contains(value):
                where = origins.of("data.mix" if key == "data.mix.share" else key).where
                problems.append(out_of_range(shown, value, allowed, where))
    return problems


def flag_problem(flag: str, recipe_key: str | None, value: Any, where: str) -> Problem | None:
    """Return the problem of a trainer's flag, which may stand for a recipe key; None where its value may work."""
    allowed = FLAG_RANGES.get(flag) or RANGES.get(f"recipe.{recipe_key}")
    if allowed is None or isinstance(value, bool) or not isinstance(value, int | float) or allowed.contains(value):
        return None
    return out_of_range(f"--{flag}", value, allowed, where)


def out_of_range(name: str, value: float, allowed: Range, where: str | None) -> Problem:
    """Return the problem of one number."""
    return Problem("out_of_range", f"{name} must be {allowed.describe(value)}, got {_shorten(value)}", where)


def _numbers_of(config: RootConfig, key: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers that a key of the table has, by the names to show; none where it or a node above is null."""
    if key == "data.mix.share":
        for position, entry in enumerate(config.data.mix):
            yield f"data.mix[{position}].share", entry.share
        return
    node: Any = config
    for part in key.split("."):
        node = getattr(node, part) if node is not None else None
    if node is not None:
        yield key, node


def _shorten(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}... ({len(text)} digits)"
