"""Compares two models on the same questions, and finds broken evaluations."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launch.trials.bench.verdict import student_t
from launch.worker.held_out import EXACT
from launch.worker.held_out_reward import REWARD_METRIC
from launch.worker.wording import count_of

# The metrics of a run's own held-out rows, for which a score of 0 on all questions is possible.
_OF_RUN = (EXACT, REWARD_METRIC)
_MOST_CUT_OFF = 0.5  # maximum share of answers that are cut off
_NEARLY_ALL = 0.8  # share of the prompts that get the same answer, from which it is named
_LEVEL = 0.05  # of the exact test, two-sided
_MOST_SIGNS = 16  # maximum number of gains of different sizes whose signs are all tried
# The minimum number of questions whose score is not the most frequent one: two models rarely have
# the same scores on so many.
_MIN_IDENTICAL = 10


@dataclass(frozen=True)
class TaskScore:
    """The scores of one model on one task."""

    metric: str
    higher_is_better: bool
    score: float
    stderr: float | None
    questions: tuple[str, ...]
    values: tuple[float, ...]  # score of each question
    cut_off: float | None  # share of the generated answers that were cut off
    responses: str  # digest of all answers
    commonest: str | None = None  # the most frequent of the generated answers
    commonest_count: int = 0  # the number of questions that got it

    @property
    def is_constant(self) -> bool:
        """Whether all questions have the same score, so that their spread shows no error."""
        return len(set(self.values)) == 1

    @property
    def repeated_answer(self) -> str | None:
        """A phrase about an answer that nearly every question got; None if there is none."""
        count = len(self.values)
        is_always_right = self.is_constant and self.values[0] == 1.0
        if self.commonest is None or is_always_right or count < _MIN_IDENTICAL:
            return None
        if self.commonest_count < _NEARLY_ALL * count:
            return None
        return f"the same answer to {self.commonest_count} of {count} prompts: '{self.commonest}'"


@dataclass(frozen=True)
class PairedDifference:
    """The gain of a model over another, paired by question; positive is better."""

    mean: float
    half: float  # half of the mean's 95% confidence interval; infinite for one question
    questions: int
    gained: int = 0  # questions with a better score
    lost: int = 0  # questions with a worse score
    # The exact test's probability of so large a difference between equal models; None where the
    # interval decides.
    chance: float | None = None

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `same`: by the exact test, else whether the interval excludes 0."""
        is_clear = abs(self.mean) > self.half
        if self.chance is not None:
            is_clear = self.chance <= _LEVEL
        if not is_clear or not self.mean:
            return "same"
        return "better" if self.mean > 0 else "worse"

    def describe(self) -> str:
        """Return what the verdict is based on."""
        if self.chance is None:
            return f"+- {self.half:.3g} a question, 95% interval"
        changes = (
            f"{self.gained} of {count_of(self.questions, 'question')} gained, {self.lost} lost"
        )
        return f"{changes}: p = {self.chance:.2g} by an exact test of their signs"


def compare_scores(model: TaskScore, other: TaskScore) -> PairedDifference:
    """Pair the values of both models over the questions that both answered."""
    sign = 1.0 if model.higher_is_better else -1.0
    other_values = dict(zip(other.questions, other.values, strict=True))
    gains = []
    for question, value in zip(model.questions, model.values, strict=True):
        if question in other_values:
            gains.append(sign * (value - other_values[question]))
    count = len(gains)
    mean = statistics.fmean(gains) if gains else 0.0
    half = math.inf
    if count > 1:
        half = student_t(count - 1) * statistics.stdev(gains) / math.sqrt(count)
    gained = sum(gain > 0 for gain in gains)
    lost = sum(gain < 0 for gain in gains)
    chance = None
    is_coarse = len({*model.values, *other.values}) <= count or model.metric == REWARD_METRIC
    changes = [gain for gain in gains if gain]
    if is_coarse and (len(changes) <= _MOST_SIGNS or _are_equal_sizes(changes)):
        chance = sign_test_chance(changes)
    return PairedDifference(mean, half, count, gained, lost, chance)


def _are_equal_sizes(gains: Sequence[float]) -> bool:
    return len({abs(gain) for gain in gains}) < 2


def sign_test_chance(gains: Sequence[float]) -> float:
    """Return the probability that gains of these sizes and random signs have a sum as far from 0.

    It is exact for any distribution of the scores (Fisher's randomisation test of pairs), also for
    a few scores of 0 and 1, whose spread says little; for equal sizes it is the sign test.
    """
    count = len(gains)
    if _are_equal_sizes(gains):
        fewest = min(sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains))
        tail = sum(math.comb(count, number) for number in range(fewest + 1))
        return min(1.0, float(2 * tail / 2**count))
    total = abs(sum(gains)) * (1 - 1e-9)  # sums in another order differ in their last digits
    extreme = 0
    for signs in itertools.product((1, -1), repeat=count):
        extreme += abs(sum(map(operator.mul, signs, gains))) >= total
    return float(extreme / 2**count)


def find_breakage(models: Mapping[str, TaskScore]) -> Iterator[str]:
    """Yield a sentence for each sign that the evaluation is at fault, and not the model.

    `models` has the scores by label, those of the evaluated model last.
    """
    label, evaluated = list(models.items())[-1]
    questions = len(evaluated.values)
    are_all_0 = bool(evaluated.values) and not any(evaluated.values)
    if are_all_0 and evaluated.higher_is_better and evaluated.metric not in _OF_RUN:
        yield f"{evaluated.metric} of {label} is exactly 0 on all {questions} questions"
    for (name, score), (other_name, other) in itertools.combinations(models.items(), 2):
        names = f"{name} and {other_name}"
        if score.responses == other.responses:
            # Two models may generate the same answers if all of them are right.
            are_all_right = all(value == 1.0 for value in score.values)
            if score.cut_off is None or not are_all_right:
                yield f"{names} gave the same answers to all questions"
        elif score.values == other.values and score.metric not in _OF_RUN:
            most_frequent = max(Counter(score.values).values(), default=0)
            if len(score.values) - most_frequent >= _MIN_IDENTICAL:
                yield f"{names} have identical scores on all {len(score.values)} questions"
    if evaluated.cut_off is not None and evaluated.cut_off > _MOST_CUT_OFF:
        share = f"{evaluated.cut_off:.0%} of the answers of {label}"
        yield f"{share} were cut off at their limit of tokens"
