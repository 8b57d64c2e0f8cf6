"""Whether a reward rose: simulated runs of which it is known, and what each view says of one."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.api.tables import status
from launch.execution.record.outcome import Outcome
from launch.execution.record.reward_trend import find_reward_trend, measure_trend
from launch.execution.record.run import Run
from launch.execution.report.page import render_runs
from tests.execution.report.folders import write_run

Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "normal": lambda dice: dice.gauss(0.4, 0.1),
    "rare successes": lambda dice: sum(dice.random() < 0.05 for _ in range(64)) / 64,
    "skewed": lambda dice: dice.random() ** 8,
}
RUNS = 200


def logged(rewards: list[float]) -> list[dict[str, float]]:
    return [{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)]


def verdicts(make: Callable[[random.Random], list[float]]) -> Counter[str]:
    """Count the verdicts on RUNS simulated runs."""
    dice = random.Random(0)
    counted: Counter[str] = Counter()
    for _ in range(RUNS):
        trend = find_reward_trend(logged(make(dice)))
        assert trend is not None
        counted[trend.verdict] += 1
    return counted


@pytest.mark.parametrize(("steps", "runs"), [(10, RUNS), (40, RUNS), (300, 15)])
@pytest.mark.parametrize("noise", NOISES)
def test_of_runs_that_learn_nothing_5_percent_are_said_to_rise(
    noise: str, steps: int, runs: int
) -> None:
    """Whatever the noise: 3 standard deviations of the count are allowed for."""
    dice = random.Random(1)
    rose = 0
    for _ in range(runs):
        trend = find_reward_trend(logged([NOISES[noise](dice) for _ in range(steps)]))
        assert trend is not None
        rose += trend.verdict == "rose"
    assert rose / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize(
    ("steps", "rise", "least"), [(60, 2.0, 0.95), (20, 3.0, 0.9), (40, 1.0, 0.4)]
)
def test_a_reward_that_rises_is_rarely_said_not_to(steps: int, rise: float, least: float) -> None:
    """`rise`: over the run, in standard deviations of a step's reward."""
    counted = verdicts(lambda dice: [dice.gauss(rise * step / steps, 1.0) for step in range(steps)])
    assert counted["rose"] / RUNS >= least
    assert counted["fell"] == 0


def test_what_the_statistic_is() -> None:
    """S of 1 to 4 is 6 pairs; its variance without ties is 4 * 3 * 13 / 18."""
    assert measure_trend([1, 2, 3, 4]) == pytest.approx(5 / math.sqrt(4 * 3 * 13 / 18))
    assert measure_trend([4, 3, 2, 1]) == -measure_trend([1, 2, 3, 4])
    assert measure_trend([0, 0, 0, 0]) == 0
    tied = math.sqrt((4 * 3 * 13 - 2 * 1 * 9) / 18)
    assert measure_trend([1, 1, 2, 3]) == pytest.approx(4 / tied)


def test_what_is_counted() -> None:
    assert find_reward_trend(logged([0.1] * 9)) is None
    assert find_reward_trend([{"step": step, "loss": 1.0} for step in range(99)]) is None
    repeated = logged([9.0] * 5) + logged([float(step) for step in range(20)])  # a resumed run
    trend = find_reward_trend(repeated)
    assert trend is not None and (trend.steps, trend.first, trend.last) == (20, 1.5, 17.5)
    with_gap = find_reward_trend([*logged([0.5] * 10), {"step": 11, "reward": math.nan}])
    assert with_gap is not None and with_gap.steps == 10


@pytest.mark.parametrize(
    ("entropy", "equal", "signs"),
    [
        ((0.71, 0.13), (0.2, 0.88), ["0.71", "0.13", "88%"]),
        ((0.71, 0.13), (0.1, 0.2), ["0.71", "0.13"]),
        ((0.71, 0.6), (0.2, 0.88), ["88%"]),
        ((0.71, 0.6), (0.9, 0.9), []),  # rewards were rare from the beginning
        ((0.71, 0.6), (0.2, 0.2), []),
    ],
)
def test_the_cure_follows_what_the_run_logged(
    entropy: tuple[float, float], equal: tuple[float, float], signs: list[str]
) -> None:
    steps = logged([0.4] * 20)
    for index, step in enumerate(steps):
        is_late = index >= 10
        step |= {"entropy": entropy[is_late], "frac_reward_zero_std": equal[is_late]}
    trend = find_reward_trend(steps)
    assert trend is not None
    finding = trend.finding()
    assert finding is not None
    assert all(sign in finding.message for sign in signs)
    assert ("while" in finding.message) == bool(signs)
    cure = str(finding.cure)
    assert ("recipe.kl_beta" in cure and "recipe.prompts_per_step" in cure) == bool(signs)
    assert ("raise recipe.learning_rate" in cure) == (not signs)


@pytest.mark.parametrize(
    ("rewards", "verdict"),
    [
        ([0.4] * 30, "did not rise"),
        ([1 - step / 30 for step in range(30)], "fell"),
        ([step / 30 for step in range(30)], "rose"),
    ],
)
def test_status_and_the_page_say_whether_it_rose(
    tmp_path: Path, rewards: list[float], verdict: str
) -> None:
    steps = [{"loss": 0.0, "reward": reward} for reward in rewards]
    trend = find_reward_trend(logged(rewards))
    assert trend is not None
    outcome = Outcome(0, 10.0, 30, 0.0, reward=trend)
    run = Run(write_run(tmp_path / "demo_rlvr" / "x", steps, outcome))
    assert run.outcome is not None and run.outcome.reward == trend
    shown = str(status(folder=tmp_path))
    page = render_runs([run])
    assert ("[reward_not_risen]" in shown) == (verdict != "rose")
    assert ("reward_not_risen" in page) == (verdict != "rose")
    assert f"it {verdict}: reward" in page
    heads, row, *_ = [line.split() for line in shown.splitlines()]
    assert heads.index("reward") == heads.index("loss") + 1 and f"{trend.last:.4f}" in row
    [content] = status(folder=tmp_path).as_json
    assert (content["reward"], content["loss"]) == (rewards[-1], 0.0)
    assert content["reward_trend"]["z"] == trend.z
