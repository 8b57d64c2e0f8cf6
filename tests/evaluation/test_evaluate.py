"""The verdict of a task in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.evaluation.evaluate import TaskResult
from launch.evaluation.verdict import TaskScore


def result(metric: str, *of_models: list[float], higher: bool) -> TaskResult:
    names = ["base", "sft/mine"][-len(of_models) :]
    questions = tuple(f"q{number}" for number in range(len(of_models[0])))
    scores = {
        name: TaskScore(
            metric,
            higher,
            sum(values) / len(values),
            None,
            questions,
            tuple(values),
            None,
            str(values),
        )
        for name, values in zip(names, of_models, strict=True)
    }
    return TaskResult("task", scores, dict.fromkeys(names, Path("answers")))


@pytest.mark.parametrize(
    ("metric", "base", "run", "higher", "words"),
    [
        ("bits", [2.0, 2.1, 2.2], [1.29, 1.39, 1.49], False, "0.71 bits a byte better than base"),
        ("bits", [1.0, 1.1, 1.2], [2.0, 2.1, 2.2], False, "1 bits a byte worse than base"),
        (
            "exact_answers",
            [0.0] * 4,
            [1.0] * 4,
            True,
            "better than base: 100% of its answers are exact, against 0%",
        ),
        ("acc", [0.0] * 4, [1.0] * 4, True, "1 better than base"),
        ("acc", [0.0, 1.0], [1.0, 0.0], True, "no significant difference from base"),
    ],
)
def test_better_is_said_in_words_and_never_by_a_sign(
    metric: str, base: list[float], run: list[float], higher: bool, words: str
) -> None:
    task = result(metric, base, run, higher=higher)
    assert task.summary == task.as_json()["summary"] == words


def test_a_model_alone_has_scores_and_no_verdict() -> None:
    alone = result("acc", [0.5, 1.0], higher=True)
    assert result("acc", [0.0, 0.0], higher=True).broken == []
    assert alone.summary is None and alone.as_json()["verdict"] is None
    assert alone.as_json()["models"][0]["score"] == 0.75
