"""Compares two models on the same questions, and finds broken evaluations."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launch.trials.bench.verdict import student_t
from launch.worker.held_out import EXACT
from launch.worker.held_out_reward import REWARD_METRIC

# The metrics of a run's own held-out rows, for which a score of 0 on all questions is possible.
_OF_RUN = (EXACT, REWARD_METRIC)
_MOST_CUT_OFF = 0.5  # maximum share of answers that are cut off
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


@dataclass(frozen=True)
class PairedDifference:
    """The gain of a model over another, paired by question; positive is better."""

    mean: float
    half: float  # half of the mean's 95% confidence interval; infinite for one question
    questions: int

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `same`: whether the confidence interval excludes 0."""
        if abs(self.mean) <= self.half or not self.mean:
            return "same"
        return "better" if self.mean > 0 else "worse"


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
    if count < 2:
        return PairedDifference(mean, math.inf, count)
    standard_error = statistics.stdev(gains) / math.sqrt(count)
    return PairedDifference(mean, student_t(count - 1) * standard_error, count)


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
