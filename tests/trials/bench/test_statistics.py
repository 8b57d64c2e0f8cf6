from __future__ import annotations

import json
import random

import pytest

from launch import resources
from launch.trials.bench.verdict import count_steps_needed, paired_ratio, student_t


def test_nothing_and_one_pair() -> None:
    assert (
        paired_ratio([]) is None
        and paired_ratio([0.0]) is None
        and paired_ratio([1.0, float("inf")]) is None
    )
    single = paired_ratio([1.5])
    assert single is not None and (single.median, single.low, single.high) == (1.5, None, None)
    assert single.speed == "undecided"


def test_the_interval_of_three_pairs_is_the_textbooks() -> None:
    """Logarithms 0.1, 0.2, 0.3: mean 0.2, standard deviation 0.1, t = 4.303 for two degrees of
    freedom.
    """
    ratio = paired_ratio([1.105170918, 1.221402758, 1.349858808])
    assert ratio is not None
    half = 4.303 * 0.1 / 3**0.5
    assert ratio.low == pytest.approx(2.718281828 ** (0.2 - half), rel=1e-6)
    assert ratio.high == pytest.approx(2.718281828 ** (0.2 + half), rel=1e-6)
    assert (ratio.median, ratio.least, ratio.most) == (1.221402758, 1.105170918, 1.349858808)


def test_a_large_difference_is_seen_in_two_pairs_and_a_small_one_is_not() -> None:
    large, small = paired_ratio([5.60, 5.65]), paired_ratio([1.01, 1.03])
    assert large is not None and large.speed == "faster"
    assert small is not None and small.speed == "undecided"
    slower = paired_ratio([0.20, 0.201])
    assert slower is not None and slower.speed == "slower"


@pytest.mark.parametrize("pairs", [2, 3, 5, 30])
def test_two_runs_of_one_setting_seldom_differ_significantly(pairs: int) -> None:
    """One time in twenty, as it says: over 2,000 benches of noise alone."""
    noise = random.Random(7)
    rejections = 0
    for _ in range(2000):
        ratio = paired_ratio(
            [noise.lognormvariate(0, 0.02) / noise.lognormvariate(0, 0.02) for _ in range(pairs)]
        )
        assert ratio is not None
        rejections += ratio.speed != "undecided"
    assert rejections / 2000 == pytest.approx(0.05, abs=0.02)


def test_turning_the_sides_around_turns_the_ratio_around() -> None:
    values = [1.2, 1.1, 1.3, 1.25]
    ratio, other = paired_ratio(values), paired_ratio([1 / value for value in values])
    assert (
        ratio is not None and other is not None and ratio.low is not None and other.high is not None
    )
    assert other.high == pytest.approx(1 / ratio.low)


def test_steady_steps_need_two_and_a_single_one_tells_nothing() -> None:
    assert count_steps_needed([[100.0, 100.0, 100.1]]) == 2
    assert count_steps_needed([[100.0]]) is None and count_steps_needed([]) is None


@pytest.mark.parametrize(
    ("runs", "needed"),
    [
        ([[100, 101]], 3),
        ([[100, 110, 105]], 7),
        ([[100, 110], [50, 60]], 21),
        ([[100, 150]], 133),
        ([[100, 130, 90, 120], []], 50),
    ],
)
def test_steps_until_the_rate_is_within_five_percent(runs: list[list[float]], needed: int) -> None:
    assert count_steps_needed(runs) == needed


def test_the_quantile_is_that_of_the_next_lower_degree_in_the_table() -> None:
    degrees = {1: 12.706, 2: 4.303, 15: 2.131, 29: 2.131, 30: 2.042, 59: 2.042, 60: 1.96}
    assert {freedom: student_t(freedom) for freedom in degrees} == degrees


def test_the_spread_is_that_within_the_runs() -> None:
    assert count_steps_needed([[100.0, 101.0], [200.0, 202.0]]) == count_steps_needed(
        [[100.0, 101.0], [50.0, 50.5]]
    )


def test_more_steps_are_needed_the_more_they_vary() -> None:
    needed = [count_steps_needed([[100.0, 100.0 * factor] * 4]) for factor in (1.02, 1.1, 1.3)]
    assert needed == sorted(needed, key=lambda count: count or 0) and len(set(needed)) == 3


def test_four_steps_were_too_few_for_the_fast_setting_and_its_steady_steps_agree_better() -> None:
    """SFT 8b, zero1 16x2 on four H200s: the second step still was slower than those after it."""
    runs = json.loads(
        (resources.ROOT / "benchmarks" / "h200_steps_8b.json").read_text(encoding="utf-8")
    )["runs"]
    steps = runs["sft zero1 16x2 gpu4 global 128"]["steps"]
    rates = [step["tokens"] / step["seconds"] for step in steps]
    few, steady = count_steps_needed([rates[1:4]]), count_steps_needed([rates[2:]])
    assert few is not None and steady is not None
    assert few > 3 and steady < few
