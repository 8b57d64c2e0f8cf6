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
# The signs of a policy that gives one answer to everything.
_COLLAPSED = 0.5  # share of the first entropy that is left
_MOST_EQUAL = 0.5  # share of the last prompts whose answers all earn the same
_COLLAPSED_CURE = (
    "a larger recipe.prompts_per_step gives steadier steps, a lower recipe.learning_rate or "
    "recipe.kl_beta=0.05 keeps the policy from one answer to everything"
)
_CURE = (
    "start from a model that earns it more often, raise recipe.learning_rate, or train more steps"
)
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
    # Means of the first and the last fifth, where the trainer logs them.
    entropy: tuple[float, float] | None = None  # nats a token
    equal_groups: tuple[float, float] | None = None  # share of prompts whose answers earn the same

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
        collapse = self._describe_collapse()
        message = f"the reward {self.verdict}: {self._means}{collapse}"
        cure = _COLLAPSED_CURE if collapse else _CURE
        numbers = {"first": self.first, "last": self.last, "z": self.z}
        warning = Finding.warning("reward_not_risen", message, None, cure)
        return replace(warning, numbers=numbers)

    def _describe_collapse(self) -> str:
        """Return what shows that the policy gives one answer to everything; "" if nothing does.

        Groups that were equal from the beginning show that the rewards are too rare.
        """
        signs = []
        if self.entropy and self.entropy[1] < _COLLAPSED * self.entropy[0]:
            first, last = self.entropy
            signs.append(f"the entropy fell from {first:.2g} to {last:.2g} nats a token")
        if self.equal_groups and self.equal_groups[0] < _MOST_EQUAL < self.equal_groups[1]:
            last = self.equal_groups[1]
            signs.append(f"the answers to {last:.0%} of the last prompts all earn the same")
        return f", while {' and '.join(signs)}" if signs else ""


def find_reward_trend(steps: Iterable[Mapping[str, Any]]) -> RewardTrend | None:
    """Return the trend of logged steps; None with fewer than LEAST_STEPS rewards.

    A step that a resumed run repeated counts with the reward that was logged last.
    """
    logged = list(steps)
    rewards = _read_curve(logged, "reward")
    if len(rewards) < LEAST_STEPS:
        return None
    first, last = _end_means(rewards)
    entropies = _read_curve(logged, "entropy")
    equal = _read_curve(logged, "frac_reward_zero_std")
    return RewardTrend(
        steps=len(rewards),
        first=first,
        last=last,
        z=measure_trend(_shorten(rewards)),
        entropy=_end_means(entropies) if len(entropies) >= LEAST_STEPS else None,
        equal_groups=_end_means(equal) if len(equal) >= LEAST_STEPS else None,
    )


def _read_curve(steps: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """Return the finite values of a metric in the order of the steps."""
    by_step = {}
    for step in steps:
        value = logged_number(step, name)
        if value is not None and math.isfinite(value):
            by_step[step["step"]] = value
    return [by_step[step] for step in sorted(by_step)]


def _end_means(values: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and the last fifth."""
    count = len(values) // _SHARE
    return fmean(values[:count]), fmean(values[-count:])


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
