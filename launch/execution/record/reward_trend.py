"""Tests over the steps of an RLVR run whether its reward rose."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any, Literal

from launch.execution.record.steps import logged_number
from launch.worker.finding import Finding

LEAST_STEPS = 10  # with fewer steps there is no verdict
SIGNIFICANT = 1.645  # 95% quantile of the normal distribution
_MOST_VALUES = 200  # more steps than this are compared by the means of this many equal parts
_SHARE = 5  # the means of the first and the last fifth of the steps are shown


@dataclass(frozen=True)
class RewardTrend:
    """The reward of a run over its logged steps.

    The statistic is that of Mann and Kendall: the number of pairs of steps in which the later step
    has the higher reward, minus the number of those in which it has the lower one, divided by the
    standard deviation of this difference for steps in random order. It assumes no distribution of
    the noise. If the reward does not change, it is found to rise in 5% of runs, and to fall in 5%.
    """

    steps: int  # the number of steps that logged a reward
    first: float  # mean reward of the first fifth of them
    last: float  # mean reward of the last fifth
    z: float

    @property
    def verdict(self) -> Literal["rose", "fell", "did not rise"]:
        if self.z > SIGNIFICANT:
            return "rose"
        return "fell" if self.z < -SIGNIFICANT else "did not rise"

    def describe(self) -> str:
        """Return `reward 0.4 to 0.97 (means of the first and the last 12 of 60 steps)`."""
        return f"reward {self._means}"

    @property
    def _means(self) -> str:
        count = self.steps // _SHARE
        means = f"{self.first:.3g} to {self.last:.3g}"
        return f"{means} (means of the first and the last {count} of {self.steps} steps)"

    def finding(self) -> Finding | None:
        """Return the warning about a reward that did not rise; None if it did."""
        if self.verdict == "rose":
            return None
        message = f"the reward {self.verdict}: {self._means}"
        cure = (
            "start from a model that earns it more often, raise recipe.learning_rate, or train "
            "more steps"
        )
        numbers = {"first": self.first, "last": self.last, "z": self.z}
        warning = Finding.warning("reward_not_risen", message, None, cure)
        return replace(warning, numbers=numbers)


def find_reward_trend(steps: Iterable[Mapping[str, Any]]) -> RewardTrend | None:
    """Return the trend of logged steps; None with fewer than LEAST_STEPS rewards.

    A step that a resumed run repeated counts with the reward that was logged last.
    """
    by_step = {}
    for step in steps:
        reward = logged_number(step, "reward")
        if reward is not None and math.isfinite(reward):
            by_step[step["step"]] = reward
    rewards = [by_step[step] for step in sorted(by_step)]
    if len(rewards) < LEAST_STEPS:
        return None
    count = len(rewards) // _SHARE
    z = measure_trend(_shorten(rewards))
    return RewardTrend(len(rewards), fmean(rewards[:count]), fmean(rewards[-count:]), z)


def _shorten(values: Sequence[float]) -> list[float]:
    """Return the means of at most _MOST_VALUES equal parts."""
    count = min(len(values), _MOST_VALUES)
    ends = [len(values) * part // count for part in range(count + 1)]
    return [fmean(values[ends[part] : ends[part + 1]]) for part in range(count)]


def measure_trend(values: Sequence[float]) -> float:
    """Return Mann and Kendall's statistic in standard deviations; 0 for equal values.

    It is corrected for ties and, because the difference is a whole number, for continuity.
    """
    difference = 0
    for earlier, later in combinations(values, 2):
        difference += (later > earlier) - (later < earlier)
    variance = _pairs_variance(len(values))
    variance -= sum(_pairs_variance(ties) for ties in Counter(values).values())
    if variance <= 0 or not difference:
        return 0.0
    return math.copysign(abs(difference) - 1, difference) / math.sqrt(variance)


def _pairs_variance(count: int) -> float:
    return count * (count - 1) * (2 * count + 5) / 18
