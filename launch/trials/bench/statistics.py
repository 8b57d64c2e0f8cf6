"""Paired ratios: their median, their range, and a confidence interval that includes 1 or not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
# Student's t: the 97.5% quantile of 1, 2, ... degrees of freedom, of 30 to 59, and of more
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T_30, _NORMAL = 2.042, 1.96

RATE_PRECISION = 0.05  # relative: how well the rate of a run should be known


@dataclass(frozen=True)
class Ratio:
    """B over A, pair by pair."""

    values: tuple[float, ...]
    median: float
    least: float
    most: float
    low: float | None  # bounds of the 95% interval of the mean ratio, None for one pair
    high: float | None

    @property
    def above(self) -> bool:
        """Whether the whole interval is above 1."""
        return self.low is not None and self.low > 1

    @property
    def below(self) -> bool:
        """Whether the whole interval is below 1."""
        return self.high is not None and self.high < 1


def student_t(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t, rounded up between the tabulated ones."""
    if freedom < 30:
        return _STUDENT_T[min(freedom, len(_STUDENT_T)) - 1]
    return _T_30 if freedom < 60 else _NORMAL


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that there are; None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def paired_ratio(values: Sequence[float]) -> Ratio | None:
    """Summarise the ratios of the pairs, each above 0; None without any.

    The interval is Student's t over the logarithms of the ratios: whatever slows down both runs of a pair cancels out.
    Two pairs have one degree of freedom, so the interval is 13 times as wide as their distance: a large difference
    still lies outside of it, a small one is not mistaken for one.
    """
    if not values or min(values) <= 0 or not all(math.isfinite(value) for value in values):
        return None
    low = high = None
    if len(values) > 1:
        logs = [math.log(value) for value in values]
        half = student_t(len(values) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        centre = statistics.fmean(logs)
        low, high = math.exp(centre - half), math.exp(centre + half)
    return Ratio(tuple(values), statistics.median(values), min(values), max(values), low, high)


def count_steps_needed(runs: Sequence[Sequence[float]]) -> int | None:
    """Return how many counted steps a run needs until its rate is known to RATE_PRECISION, with 95% confidence.

    `runs`: the rate of each counted step of each run of one setting. The spread is that within the runs. None where no
    run has two steps.
    """
    squares, freedom = 0.0, 0
    for rates in runs:
        logs = [math.log(rate) for rate in rates]
        squares += sum((log - statistics.fmean(logs)) ** 2 for log in logs)
        freedom += max(len(logs) - 1, 0)
    if freedom == 0:
        return None
    variance, count = squares / freedom, 2
    while student_t(count - 1) ** 2 * variance / count > math.log1p(RATE_PRECISION) ** 2:
        count += 1
    return count
