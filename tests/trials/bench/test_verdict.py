from __future__ import annotations

import math
from typing import Any

import pytest

from launch.trials.bench.verdict import BenchVerdict, format_ratio, judge_pairs
from launch.trials.measurement import Figures


def figures(per_second: float = 1000.0, losses: tuple[float, ...] = (3.0, 2.8, 2.5), **more: Any) -> Figures:
    values: dict[str, Any] = {
        "per_second": per_second,
        "unit": "tokens",
        "padded_per_second": None,
        "step_seconds": 1000 / per_second,
        "counted_steps": 3,
        "padding": None,
        "flops": None,
        "mfu_measured": None,
        "mfu_datasheet": None,
        "memory_gib": 40.0,
        "reserved_gib": None,
        "first_loss": losses[0] if losses else None,
        "loss": losses[-1] if losses else None,
        "losses": losses,
        "tokens": (900.0, 1000.0, 1100.0),
        "before": 1.0,
    }
    return Figures(**{**values, **more})


def verdict(*pairs: tuple[Figures, Figures], **more: Any) -> BenchVerdict:
    result = judge_pairs(pairs, 0.05, **more)
    assert result is not None
    return result


def test_faster_with_the_same_loss() -> None:
    result = verdict((figures(1000), figures(5600)), (figures(1010), figures(5700)))
    assert (result.speed, result.loss, result.data, result.memory) == ("faster", "same", "same", "same")
    assert "B is faster" in result.summary[0] and "2 pairs" in result.summary[0]
    assert "0.00% apart" in result.summary[1]


def test_slower_and_undecided() -> None:
    assert verdict((figures(1000), figures(500)), (figures(1000), figures(505))).speed == "slower"
    noisy = verdict((figures(1000), figures(1100)), (figures(1000), figures(950)))
    assert noisy.speed == "undecided" and "includes 1" in noisy.summary[0]
    single = verdict((figures(1000), figures(5000)))
    assert single.speed == "undecided" and "one pair has no spread" in single.summary[0]


def test_a_speed_up_that_changes_the_loss_is_not_called_one() -> None:
    other = figures(5600, losses=(3.0, 2.8, 2.7))
    result = verdict((figures(1000), other), (figures(1000), other))
    assert (result.speed, result.loss) == ("faster", "differs")
    assert result.loss_difference == pytest.approx(0.08)
    assert "speed-up is not one of the same training" in result.summary[1]
    slow = verdict((figures(1000), figures(900, losses=(3.0, 2.8, 2.7))))
    assert "B changes the loss" in slow.summary[1]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_different_loss(broken: float) -> None:
    result = verdict((figures(), figures(5000, losses=(3.0, 2.8, broken))))
    assert result.loss == "differs" and "not a number" in result.summary[1]


def test_a_loss_that_hardly_moved_shows_little() -> None:
    still = figures(losses=(12.50, 12.49, 12.48))
    assert "shows little about learning" in verdict((still, still)).summary[1]
    assert "says little" not in verdict((figures(), figures())).summary[1]


def test_no_losses() -> None:
    result = verdict((figures(losses=()), figures(losses=())))
    assert result.loss == "unknown" and result.loss_difference is None


def test_other_tokens_are_other_data() -> None:
    result = verdict((figures(), figures(tokens=(900.0, 1000.0, 1101.0))))
    assert result.data == "differs" and any("different data" in line for line in result.summary)
    assert verdict((figures(), figures(tokens=()))).data == "unknown"


@pytest.mark.parametrize(("gib", "word"), [(88.0, "more"), (23.0, "less"), (40.2, "same"), (None, "unknown")])
def test_memory(gib: float | None, word: str) -> None:
    result = verdict((figures(), figures(memory_gib=gib)))
    assert result.memory == word
    assert ("unknown" in result.summary[-1]) == (gib is None)


def test_the_same_setting_twice_is_noise_or_an_unsteady_machine() -> None:
    even = verdict((figures(1000), figures(1010)), (figures(1000), figures(990)), same_setting=True)
    assert "the difference is noise" in even.summary[0]
    uneven = verdict((figures(1000), figures(2000)), (figures(1000), figures(2001)), same_setting=True)
    assert "not steady" in uneven.summary[0]


def test_rates_of_other_units_are_not_compared() -> None:
    assert judge_pairs([(figures(), figures(unit="samples"))], 0.05) is None
    assert judge_pairs([], 0.05) is None


def test_format_ratio() -> None:
    assert (format_ratio(5.617), format_ratio(1.0149), format_ratio(13.24)) == ("5.62 x", "1.015 x", "13.2 x")
