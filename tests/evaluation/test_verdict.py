"""Paired verdicts, and evaluations that are broken."""

from __future__ import annotations

import random

import pytest

from launch.evaluation.verdict import TaskScore, compare_scores, find_breakage


def score(
    values: list[float], *, higher: bool = True, responses: str = "", cut_off: float | None = None
) -> TaskScore:
    questions = tuple(f"q{number}" for number in range(len(values)))
    mean = sum(values) / len(values)
    return TaskScore(
        "acc", higher, mean, None, questions, tuple(values), cut_off, responses or str(values)
    )


def test_a_small_gain_on_every_question_is_told_apart_where_the_scores_overlap() -> None:
    draw = random.Random(0)
    base = [draw.gauss(0, 10) for _ in range(50)]
    better = [value + draw.gauss(0.5, 0.2) for value in base]
    gain = compare_scores(score(better), score(base))
    assert gain.verdict == "better" and gain.mean == pytest.approx(0.5, abs=0.1)
    assert compare_scores(score(base), score(better)).verdict == "worse"
    assert compare_scores(score(better, higher=False), score(base, higher=False)).verdict == "worse"


def test_noise_alone_is_rarely_a_verdict() -> None:
    """A 95% interval: of 200 comparisons of equal models about 5% are told apart."""
    draw = random.Random(1)
    verdicts = [
        compare_scores(
            score([draw.gauss(0, 1) for _ in range(20)]),
            score([draw.gauss(0, 1) for _ in range(20)]),
        ).verdict
        for _ in range(200)
    ]
    assert verdicts.count("same") >= 180


def test_questions_are_paired_by_name_and_one_is_not_enough() -> None:
    model = score([1.0, 1.0, 0.0])
    other = TaskScore("acc", True, 0.0, None, ("q2", "q0"), (0.0, 0.0), None, "x")
    gain = compare_scores(model, other)
    assert (gain.questions, gain.mean, gain.verdict) == (2, 0.5, "same")
    alone = TaskScore("acc", True, 0.0, None, ("q0",), (0.0,), None, "x")
    assert compare_scores(model, alone).verdict == "same"


def test_the_same_difference_on_every_question_is_certain() -> None:
    assert compare_scores(score([1.0] * 5), score([0.0] * 5)).verdict == "better"
    assert compare_scores(score([1.0] * 5), score([1.0] * 5)).verdict == "same"


@pytest.mark.parametrize(
    ("base", "judged", "reason"),
    [
        (score([0.5, 0.0]), score([0.0, 0.0]), "exactly 0"),
        (score([0.5, 0.0], responses="same"), score([0.5, 0.0], responses="same"), "same answers"),
        (
            score([0.5, 0.0] * 10, responses="a"),
            score([0.5, 0.0] * 10, responses="b"),
            "identical scores",
        ),
        (score([0.5, 0.0]), score([0.5, 1.0], cut_off=0.6), "60% of the answers"),
    ],
)
def test_a_broken_evaluation_is_recognised(base: TaskScore, judged: TaskScore, reason: str) -> None:
    assert [reason in sentence for sentence in find_breakage({"base": base, "run": judged})] == [
        True
    ]


def test_a_base_that_scores_nothing_and_equal_perfect_scores_are_not_broken() -> None:
    assert not list(find_breakage({"base": score([0.0] * 30), "run": score([0.0, 1.0] * 15)}))
    assert not list(
        find_breakage(
            {"base": score([1.0] * 30, responses="a"), "run": score([1.0] * 30, responses="b")}
        )
    )
    assert not list(
        find_breakage({"base": score([0.0, 1.0]), "run": score([1.0, 1.0], cut_off=0.5)})
    )


def test_two_models_that_write_every_answer_right_are_equal_and_not_broken() -> None:
    right = score([1.0] * 30, responses="same", cut_off=0.0)
    assert not list(find_breakage({"base": right, "run": right}))
    assert compare_scores(right, right).verdict == "same"
    # log-likelihoods to the last digit: one model was loaded twice
    likely = score([1.0] * 30, responses="same")
    assert [
        "same answers" in reason for reason in find_breakage({"base": likely, "run": likely})
    ] == [True]


def test_models_that_miss_the_same_few_questions_are_not_broken() -> None:
    few = [0.0] * 3 + [1.0] * 97
    assert not list(
        find_breakage({"base": score(few, responses="a"), "run": score(few, responses="b")})
    )


def test_a_loss_of_0_is_the_best_one() -> None:
    perfect = score([0.0] * 30, higher=False, responses="b")
    assert not list(
        find_breakage({"base": score([1.0] * 30, higher=False, responses="a"), "run": perfect})
    )
