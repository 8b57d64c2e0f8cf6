"""The range of a number, beside its default in the schema: `epochs: int = COUNT.of(1)`.

A bound is only where a value beyond it cannot work: a learning rate of 1 is a warning, and the guards stop it.
The nodes `bench`, `tune` and `rollout` have none: their verbs check them, as their numbers depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

MOST = 2**31 - 1  # the largest 32-bit integer: no trainer counts steps, samples or tokens beyond it
_MOST_RANKS = 65_536  # of nodes, and of ranks in one: Slurm's own maximum of nodes, slurm.h MAX_SLURM_NODES


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

    def of(self, default: Any) -> Any:
        """Return the field of a dataclass whose numbers are in this range, with its default."""
        return field(default=default, metadata={"range": self})


COUNT = Range(1, MOST)
COUNT_OR_ZERO = Range(0, MOST)
POSITIVE = Range(0, includes_low=False)
NOT_NEGATIVE = Range(0)
FRACTION = Range(0, 1, includes_low=False)
FRACTION_OR_ZERO = Range(0, 1)
BELOW_ONE = Range(0, 1, includes_high=False)
RANKS = Range(1, _MOST_RANKS)
RANKS_OR_ZERO = Range(0, _MOST_RANKS)
LENGTH = Range(2, MOST)  # a single token has no next one to predict
SEED = Range(0, 2**32 - 1)  # numpy.random.seed's
HEARTBEAT = Range(5, also=(0,))
SIGNAL_TIME = Range(30, 65_535, also=(0,))  # sbatch(1), --signal


def find_numbers(node: Any, above: str = "") -> Iterator[tuple[str, float | None, Range]]:
    """Yield the numbers below a node of the configuration that have a range: key, value, range."""
    for entry in fields(node):
        value, key = getattr(node, entry.name), f"{above}{entry.name}"
        if "range" in entry.metadata:
            yield key, value, entry.metadata["range"]
        elif is_dataclass(value):
            yield from find_numbers(value, f"{key}.")
        elif isinstance(value, list):
            for position, item in enumerate(value):
                if is_dataclass(item):
                    yield from find_numbers(item, f"{key}[{position}].")
