from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from launch.trials.bench.verdict import Ratio, format_ratio, judge_pairs, relative_change
from launch.trials.measurement import Figures


def figures(
    per_second: float = 1000.0, losses: tuple[float, ...] = (3.0, 2.8, 2.5), **more: Any
) -> Figures:
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


class Case(NamedTuple):
    name: str
    pairs: Sequence[tuple[Figures, Figures]]
    verdict: dict[str, str]  # of what the verdict judges
    summary: Sequence[str] = ()  # parts of it
    same_setting: bool = False


def rates(*pairs: tuple[float, float], **more: Any) -> list[tuple[Figures, Figures]]:
    return [(figures(first), figures(second, **more)) for first, second in pairs]


def memory(gib: float | None) -> list[tuple[Figures, Figures]]:
    return [(figures(), figures(memory_gib=gib))]


SAME = {"loss": "same", "data": "same", "memory": "same"}
OTHER = (3.0, 2.8, 2.7)
STILL = figures(losses=(12.50, 12.49, 12.48))
FIVE_TIMES = rates((1000, 5600), (1010, 5700))
CHANGED = {"speed": "faster", "loss": "differs"}
CASES = (
    Case(
        "faster", FIVE_TIMES, {"speed": "faster", **SAME}, ("B is faster", "2 pairs", "0.00% apart")
    ),
    Case("slower", rates((1000, 500), (1000, 505)), {"speed": "slower"}),
    Case("noisy", rates((1000, 1100), (1000, 950)), {"speed": "undecided"}, ("includes 1",)),
    Case("one pair", rates((1000, 5000)), {"speed": "undecided"}, ("one pair has no spread",)),
    Case(
        "faster with another loss",
        rates(*[(1000, 5600)] * 2, losses=OTHER),
        CHANGED,
        ("not one of the same training",),
    ),
    Case(
        "slower with another loss",
        rates((1000, 900), losses=OTHER),
        {"loss": "differs"},
        ("B changes the loss",),
    ),
    Case(
        "nan",
        rates((1000, 5000), losses=(3.0, 2.8, math.nan)),
        {"loss": "differs"},
        ("not a number",),
    ),
    Case(
        "infinite",
        rates((1000, 5000), losses=(3.0, 2.8, math.inf)),
        {"loss": "differs"},
        ("not a number",),
    ),
    Case(
        "a loss that hardly moved",
        [(STILL, STILL)],
        {"loss": "same"},
        ("shows little about learning",),
    ),
    Case("no losses", [(figures(losses=()), figures(losses=()))], {"loss": "unknown"}),
    Case(
        "other tokens",
        [(figures(), figures(tokens=(900.0, 1000.0, 1101.0)))],
        {"data": "differs"},
        ("different data",),
    ),
    Case("no tokens", [(figures(), figures(tokens=()))], {"data": "unknown"}),
    Case("more memory", memory(88.0), {"memory": "more"}),
    Case("less memory", memory(23.0), {"memory": "less"}),
    Case("nearly the same memory", memory(40.2), {"memory": "same"}),
    Case("unknown memory", memory(None), {"memory": "unknown"}, ("unknown",)),
    Case(
        "the same setting",
        rates((1000, 1010), (1000, 990)),
        {},
        ("the difference is noise",),
        same_setting=True,
    ),
    Case(
        "an unsteady machine",
        rates((1000, 2000), (1000, 2001)),
        {},
        ("not steady",),
        same_setting=True,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case: Case) -> None:
    result = judge_pairs(case.pairs, 0.05, same_setting=case.same_setting)
    assert result is not None
    assert {name: getattr(result, name) for name in case.verdict} == case.verdict
    assert [
        part for part in case.summary if not any(part in line for line in result.summary)
    ] == [], result.summary
    assert any("shows little" in line for line in result.summary) == (case.pairs[0][0] is STILL)
    assert ("unknown" in result.summary[-1]) == (result.memory == "unknown")


def test_the_difference_of_losses_is_relative() -> None:
    result, without = (
        judge_pairs(rates((1000, 1000), losses=losses), 0.05) for losses in (OTHER, ())
    )
    assert result is not None and result.loss_difference == pytest.approx(0.08)
    assert without is not None and without.loss_difference is None


def test_rates_of_other_units_are_not_compared() -> None:
    assert judge_pairs([(figures(), figures(unit="samples"))], 0.05) is None
    assert judge_pairs([], 0.05) is None


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (10.0, "10 x"),
        (10.55, "10.6 x"),
        (13.24, "13.2 x"),
        (5.617, "5.62 x"),
        (1.5, "1.50 x"),
        (1.1, "1.10 x"),
        (1.0149, "1.015 x"),
        (0.95, "0.950 x"),
        (0.5, "0.50 x"),
    ],
)
def test_format_ratio(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("low", "high", "speed"),
    [
        (1.01, 2.0, "faster"),
        (1.0, 2.0, "undecided"),
        (0.5, 0.99, "slower"),
        (0.5, 1.0, "undecided"),
        (0.9, 1.1, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_the_interval_decides_about_the_speed(
    low: float | None, high: float | None, speed: str
) -> None:
    assert Ratio((1.2,), 1.2, 1.2, 1.2, low, high).speed == speed


def test_a_loss_at_the_tolerance_is_the_same() -> None:
    pairs = [(figures(), figures(losses=(3.0, 2.8, 2.6)))]
    difference = relative_change(2.5, 2.6)
    assert difference is not None
    for tolerance, loss in ((difference, "same"), (0.99 * difference, "differs")):
        result = judge_pairs(pairs, tolerance)
        assert result is not None and result.loss == loss


def test_the_sentences_have_the_spread_and_only_a_gain_is_put_in_doubt() -> None:
    slower, one = (
        judge_pairs(rates(*pairs, losses=OTHER), 0.05)
        for pairs in ([(1000, 500), (1000, 505)], [(1000, 500)])
    )
    assert slower is not None and one is not None
    assert "0.50 x to 0.51 x; 95% interval 0.47" in slower.summary[0]
    assert "interval" not in one.summary[0] and " to " not in one.summary[0]
    assert (slower.speed, slower.loss) == ("slower", "differs")
    assert "speed-up" not in slower.summary[1]


def test_a_step_that_one_of_them_lacks_is_another_count_of_tokens() -> None:
    result = judge_pairs([(figures(tokens=(9.0,)), figures(tokens=(9.0, 1.0)))], 0.05)
    assert result is not None and result.data == "differs"
