"""Judge two models on the same questions: better, worse or no significant difference; find a broken
evaluation.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launch.trials.bench.verdict import student_t
from launch.worker.held_out import EXACT

_MOST_CUT_OFF = 0.5
# questions off the most frequent score: so many are rarely the same for two models
_MIN_IDENTICAL = 10


@dataclass(frozen=True)
class TaskScore:
    """The scores of one model on one task."""

    metric: str
    higher_is_better: bool
    score: float
    stderr: float | None
    questions: tuple[str, ...]
    values: tuple[float, ...]  # of each question
    cut_off: float | None  # share of the generated answers
    responses: str  # digest of all answers


@dataclass(frozen=True)
class PairedDifference:
    """How much a model gains over another, question by question; positive is better."""

    mean: float
    half: float  # of the 95% confidence interval of the mean; infinite for one question
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
    of_other = dict(zip(other.questions, other.values, strict=True))
    pairs = [
        sign * (value - of_other[question])
        for question, value in zip(model.questions, model.values, strict=True)
        if question in of_other
    ]
    if len(pairs) < 2:
        return PairedDifference(statistics.fmean(pairs) if pairs else 0.0, math.inf, len(pairs))
    standard_error = statistics.stdev(pairs) / math.sqrt(len(pairs))
    return PairedDifference(
        statistics.fmean(pairs), student_t(len(pairs) - 1) * standard_error, len(pairs)
    )


def find_breakage(models: Mapping[str, TaskScore]) -> Iterator[str]:
    """Yield why the evaluation of a task is broken rather than a model bad, a sentence each.

    `models` by label, the one that is judged last.
    """
    label, judged = list(models.items())[-1]
    if (
        judged.values
        and judged.higher_is_better
        and not any(judged.values)
        and judged.metric != EXACT
    ):
        yield f"{judged.metric} of {label} is exactly 0 on all {len(judged.values)} questions"
    for (name, score), (other_name, other) in itertools.combinations(models.items(), 2):
        generated_all_right = score.cut_off is not None and all(
            value == 1.0 for value in score.values
        )
        unusual = len(score.values) - max(Counter(score.values).values(), default=0)
        if score.responses == other.responses:
            if not generated_all_right:
                yield f"{name} and {other_name} gave the same answers to all questions"
        elif score.values == other.values and unusual >= _MIN_IDENTICAL and score.metric != EXACT:
            yield (
                f"{name} and {other_name} have identical scores on all {len(score.values)} "
                "questions"
            )
    if judged.cut_off is not None and judged.cut_off > _MOST_CUT_OFF:
        yield (
            f"{judged.cut_off:.0%} of the answers of {label} were cut off at their limit of tokens"
        )
