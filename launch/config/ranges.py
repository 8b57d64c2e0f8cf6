"""Holds the ranges of numbers: what a range is, which one a key or a flag has, and how a value is
judged by it.

A key has its range beside its default in the schema (`epochs: int = COUNT.of(1)`). A flag has that
of the recipe key that it stands for, or a row out_of_range in launch/rules/table.yaml. A bound is
only where a value beyond it cannot work: a learning rate of 1 is a warning, and the guards stop it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

from launch.config.nodes import walk_values
from launch.worker.finding import Finding

_Default = TypeVar("_Default")  # so that a default is checked against its key's type
METADATA = "range"  # name of a field's range in its metadata
# the largest 32-bit integer: no trainer counts steps, samples or tokens beyond it
_MOST = 2**31 - 1
# of nodes, and of ranks in one: Slurm's own maximum of nodes, slurm.h MAX_SLURM_NODES
_MOST_RANKS = 65_536
_INTERVAL = re.compile(r"([\[(])([\d.e+-]+), ([\d.e+-]+|inf)([\])])")
_LONGEST_NUMBER = 24  # characters of a number that a message shows whole


@dataclass(frozen=True)
class Range:
    """The finite numbers between two bounds."""

    low: float
    high: float | None = None  # None: no bound
    includes_low: bool = True
    includes_high: bool = True
    also: tuple[float, ...] = ()  # single values outside the bounds

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read a range as it is written in mathematics, with single values after `or`.

        >>> Range.parse("[0, 1)").describe(2)
        'at least 0 and below 1'
        >>> Range.parse("[1, inf) or -1").contains(-1)
        True

        Raises ValueError for another text.
        """
        interval, *singles = text.split(" or ")
        found = _INTERVAL.fullmatch(interval)
        if found is None:
            raise ValueError(f"'{text}' is not a range such as [0, 1) or (0, inf)")
        low_bracket, low, high, high_bracket = found.groups()
        return cls(
            float(low),
            None if high == "inf" else float(high),
            includes_low=low_bracket == "[",
            includes_high=high_bracket == "]",
            also=tuple(map(float, singles)),
        )

    def contains(self, value: object) -> bool:
        """Return whether a value is a number in the range. NaN and infinities never are."""
        if not is_number(value):
            return False
        if value in self.also:
            return True
        if not math.isfinite(value):
            return False
        if value < self.low or (value == self.low and not self.includes_low):
            return False
        return self.high is None or value < self.high or (value == self.high and self.includes_high)

    def describe(self, value: object) -> str:
        """Describe the range in a message about `value`: `at least 0 and below 1`.

        The large upper bound of a count is named only where the value is above it.
        """
        text = f"{'at least' if self.includes_low else 'above'} {self.low:g}"
        if self.high is not None:
            is_above = is_number(value) and value > self.high
            if is_above or self.high < _MOST_RANKS:
                text += f" and {'at most' if self.includes_high else 'below'} {self.high:.12g}"
        special = "".join(f"{single:g}, or " for single in self.also)
        return special + text

    def json_schema(self) -> dict[str, float]:
        """Return the bounds as keywords of JSON Schema. Single values widen the lower bound."""
        low = "minimum" if self.includes_low or self.also else "exclusiveMinimum"
        bounds = {low: min(self.low, *self.also) if self.also else self.low}
        if self.high is not None:
            high = "maximum" if self.includes_high else "exclusiveMaximum"
            bounds[high] = self.high
        return bounds

    def of(self, default: _Default) -> _Default:
        """Return the field of a dataclass whose numbers are in this range, with its default."""
        return field(default=default, metadata={METADATA: self})


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
# Numbers in values that may also be a text or a list: the fraction of the rows in data.validation,
# and the weight of a verifier in recipe.verifier.
HELD_OUT_FRACTION = Range(0, 1, includes_low=False, includes_high=False)
VERIFIER_WEIGHT = POSITIVE


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number. True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def range_of(metadata: Mapping[str, Any]) -> Range | None:
    """Return the range in the metadata of a key's field; None for a key without one."""
    return metadata.get(METADATA)


def find_numbers(node: Any, prefix: str = "") -> Iterator[tuple[str, float | None, Range]]:
    """Yield the key, value and range of the keys below a node that have a range."""
    for entry in walk_values(node, prefix):
        allowed = range_of(entry.metadata)
        if allowed is not None:
            yield entry.key, entry.value, allowed


def find_keys_out_of_range(node: Any, where: Callable[[str], str | None]) -> list[Finding]:
    """Find every number below a node that is outside its range.

    `where` gives the override or the line that sets a key.
    """
    return [
        out_of_range(key, value, allowed, where(key))
        for key, value, allowed in find_numbers(node)
        if value is not None and not allowed.contains(value)
    ]


def out_of_range(name: str, value: float, allowed: Range, where: str | None) -> Finding:
    """Return the problem of one number."""
    message = f"{name} must be {allowed.describe(value)}, got {shorten_number(value)}"
    return Finding.error("out_of_range", message, where)


def shorten_number(value: float) -> str:
    """Return a number as text; of a very long one, its first digits."""
    text = str(value)
    if len(text) <= _LONGEST_NUMBER:
        return text
    return f"{text[:12]}... ({len(text)} digits)"
