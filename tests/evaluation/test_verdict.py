"""Paired verdicts, and evaluations that are broken."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from launch.evaluation.verdict import (
    TaskScore,
    compare_scores,
    find_breakage,
    sign_test_chance,
)


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


def test_the_same_difference_on_every_question_is_no_certainty() -> None:
    """Of two equal models one gains five of five questions in 1 of 16 comparisons."""
    five = compare_scores(score([1.0] * 5), score([0.0] * 5))
    assert (five.verdict, five.chance, five.gained, five.lost) == ("same", 2 / 2**5, 5, 0)
    assert compare_scores(score([1.0] * 6), score([0.0] * 6)).verdict == "better"
    twenty = compare_scores(score([1.0] * 20), score([0.0] * 20))
    assert (twenty.half, twenty.chance) == (0, 2 / 2**20)
    assert "20 of 20 questions gained, 0 lost: p = 1.9e-06" in twenty.describe()
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


@pytest.mark.parametrize(
    ("gains", "chance"),
    [
        ([1.0] * 4, 2 / 16),  # the interval of 4 in 15 questions excludes 0
        ([1.0, 1.0, 1.0, -1.0], 2 * 5 / 16),
        ([0.5, 1.0], 2 / 4),
        ([0.1, 0.2, 0.3, -0.3], 12 / 16),
        ([], 1.0),
    ],
)
def test_the_exact_chance_of_signs(gains: list[float], chance: float) -> None:
    assert sign_test_chance(gains) == pytest.approx(chance)
    assert sign_test_chance([-gain for gain in gains]) == pytest.approx(chance)
    gain = compare_scores(score(gains + [0.0] * (15 - len(gains))), score([0.0] * 15))
    assert gain.chance == pytest.approx(chance) and gain.verdict == "same"


def test_equal_models_with_few_scores_of_0_and_1_are_rarely_told_apart() -> None:
    draw = random.Random(2)
    different = 0
    for _ in range(2000):
        answers = [[float(draw.random() < 0.15) for _ in range(15)] for _ in range(2)]
        different += compare_scores(score(answers[0]), score(answers[1])).verdict != "same"
    assert different / 2000 <= 0.05


def test_one_answer_to_nearly_every_prompt_is_named() -> None:
    values = [1.0] * 6 + [0.0] * 9
    heavy = replace(score(values), commonest="heavy", commonest_count=14)
    assert heavy.repeated_answer == "the same answer to 14 of 15 prompts: 'heavy'"
    assert replace(heavy, commonest_count=11).repeated_answer is None
    right = replace(score([1.0] * 15), commonest="yes", commonest_count=15)
    assert right.repeated_answer is None  # it is the right one everywhere
    assert score(values).repeated_answer is None


def test_a_loss_of_0_is_the_best_one() -> None:
    perfect = score([0.0] * 30, higher=False, responses="b")
    assert not list(
        find_breakage({"base": score([1.0] * 30, higher=False, responses="a"), "run": perfect})
    )
