"""The ranges of numbers: of a key beside its default in the schema (`epochs: int = COUNT.of(1)`),
of flags here.

A bound is only where a value beyond it cannot work: a learning rate of 1 is a warning, and the
guards stop it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from launch.worker.finding import Finding

_Default = TypeVar("_Default")  # so that a default is checked against its key's type
# the largest 32-bit integer: no trainer counts steps, samples or tokens beyond it
_MOST = 2**31 - 1
# of nodes, and of ranks in one: Slurm's own maximum of nodes, slurm.h MAX_SLURM_NODES
_MOST_RANKS = 65_536
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
        if (
            not math.isfinite(value)
            or value < self.low
            or (value == self.low and not self.includes_low)
        ):
            return False
        return self.high is None or value < self.high or (value == self.high and self.includes_high)

    def describe(self, value: float) -> str:
        """Return `at least 0 and below 1`; the upper bound of a count only where `value` is above
        it.
        """
        low = f"{'at least' if self.includes_low else 'above'} {self.low:g}"
        shows_high = self.high is not None and (self.high < _MOST_RANKS or value > self.high)
        high = (
            f" and {'at most' if self.includes_high else 'below'} {self.high:.12g}"
            if shows_high
            else ""
        )
        special = "".join(f"{single:g}, or " for single in self.also)
        return f"{special}{low}{high}"

    def of(self, default: _Default) -> _Default:
        """Return the field of a dataclass whose numbers are in this range, with its default."""
        return field(default=default, metadata={"range": self})


COUNT = Range(1, _MOST)
GROUP = Range(2, _MOST)  # completions of a prompt: a single one has nothing to be better than
COUNT_OR_ZERO = Range(0, _MOST)
POSITIVE = Range(0, includes_low=False)
NOT_NEGATIVE = Range(0)
REWARD = Range(-_MOST, _MOST)
FRACTION = Range(0, 1, includes_low=False)
FRACTION_OR_ZERO = Range(0, 1)
BELOW_ONE = Range(0, 1, includes_high=False)
RANKS = Range(1, _MOST_RANKS)
RANKS_OR_ZERO = Range(0, _MOST_RANKS)
LENGTH = Range(2, _MOST)  # a single token has no next one to predict
SEED = Range(0, 2**32 - 1)  # numpy.random.seed's
HEARTBEAT = Range(5, also=(0,))
SIGNAL_TIME = Range(30, 65_535, also=(0,))  # sbatch(1), --signal

# Flags whose numbers are not those of their recipe key, and flags without one that a library
# refuses as the run starts.
FLAG_RANGES: Mapping[str, Range] = {
    # a fraction below 1, steps from 1 on (transformers training_args.py)
    "warmup_steps": NOT_NEGATIVE,
    # -1: the epochs end the run (transformers training_args.py)
    "max_steps": Range(1, _MOST, also=(-1,)),
    "num_train_epochs": POSITIVE,  # a part of one, too (transformers training_args.py)
    # below 1 a fraction of all steps (training_args.py)
    **dict.fromkeys(("save_steps", "eval_steps"), POSITIVE),
    "clip_grad_norm": Range(0, also=(-1,)),  # finetune.py:847
    **dict.fromkeys(("adam_beta1", "adam_beta2"), BELOW_ONE),  # torch/optim/adamw.py
    "adam_epsilon": NOT_NEGATIVE,
    "dataloader_num_workers": COUNT_OR_ZERO,  # torch/utils/data/dataloader.py
    "dataset_num_proc": COUNT,  # datasets/arrow_dataset.py, map
    **dict.fromkeys(("timeout", "ddp_timeout"), POSITIVE),  # of a collective, in seconds
}


def out_of_range(name: str, value: float, allowed: Range, where: str | None) -> Finding:
    """Return the problem of one number."""
    return Finding.error(
        "out_of_range", f"{name} must be {allowed.describe(value)}, got {_shorten(value)}", where
    )


def _shorten(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}... ({len(text)} digits)"
