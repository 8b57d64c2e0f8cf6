"""The guards of a step's numbers, at their borders."""

from __future__ import annotations

import math
import random

import pytest

from launch.config.guards import (
    ContinuityLimits,
    DivergenceLimits,
    GradNormLimits,
    MemoryCreepLimits,
    NonFiniteLimits,
    ThroughputLimits,
)
from launch.execution.facts import GuardContext, LoggedStep
from launch.execution.guards import Continuity, Divergence, GradNorm, MemoryCreep, NonFinite, Throughput
from tests.execution.guards.facts import first, steps

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(("key", "bad"), [("loss", NAN), ("loss", INF), ("grad_norm", NAN), ("grad_norm", -INF)])
def test_non_finite_at_the_first_such_step(key: str, bad: float) -> None:
    at, finding = first(NonFinite(NonFiniteLimits()), steps(key, [2.5, 2.25, bad, 2.0])) or (None, None)
    assert at == 2
    assert finding is not None and finding.stops
    assert finding.good_until == 2.0
    assert finding.numbers["last_good_step"] == 2
    assert f"is {bad} at step 3 (it was 2.25 at step 2)" in finding.message


def test_non_finite_from_the_start_has_no_good_moment() -> None:
    result = first(NonFinite(NonFiniteLimits()), steps("loss", [NAN]))
    assert result is not None and result[1].good_until == -INF


def test_non_finite_may_be_allowed_a_few_in_a_row() -> None:
    guard = NonFinite(NonFiniteLimits(steps=2))
    result = first(guard, steps("loss", [2.0, NAN, 2.0, NAN, NAN]))
    assert result is not None and result[0] == 4


def test_steps_without_a_loss_are_no_judgement() -> None:
    assert first(NonFinite(NonFiniteLimits()), [LoggedStep(1.0, 1, {"lr": 1e-5})]) is None


def test_divergence_at_the_border() -> None:
    config = DivergenceLimits(factor=2.0, margin=1.0, window=3)
    below = steps("loss", [2.0] * 5 + [4.0] * 10)  # the limit is max(2 x 2, 2 + 1) = 4
    above = steps("loss", [2.0] * 5 + [4.001] * 10)
    assert first(Divergence(config), below) is None
    at, finding = first(Divergence(config), above) or (None, None)
    assert at == 6  # two of the last three are high
    assert finding is not None
    assert (finding.numbers["best"], finding.numbers["limit"]) == (2.0, 4.0)
    assert finding.good_until == 3.0


def test_divergence_of_a_small_loss_needs_the_margin() -> None:
    config = DivergenceLimits(factor=2.0, margin=1.0, window=3)
    assert first(Divergence(config), steps("loss", [0.01] * 5 + [1.0] * 10)) is None
    assert first(Divergence(config), steps("loss", [0.01] * 5 + [1.02] * 10)) is not None


def test_single_spikes_are_no_divergence() -> None:
    losses = [2.0] * 200
    for at in range(10, 200, 6):
        losses[at] = 1000.0
    assert first(Divergence(DivergenceLimits()), steps("loss", losses)) is None


def test_a_noisy_run_that_learns_is_no_divergence() -> None:
    draw = random.Random(0)
    losses = [0.8 + 2 * math.exp(-step / 200) + draw.gauss(0, 0.35) for step in range(5000)]
    assert first(Divergence(DivergenceLimits()), steps("loss", losses)) is None


def test_the_best_is_a_recent_one() -> None:
    config = DivergenceLimits(window=3, memory=5)
    rising = [1.0 + 0.05 * step for step in range(200)]  # a curriculum that gets harder, slowly
    assert first(Divergence(config), steps("loss", rising)) is None
    assert first(Divergence(DivergenceLimits(window=3, memory=1000)), steps("loss", rising)) is not None


def test_grad_norm_needs_several_in_a_row_and_a_baseline() -> None:
    config = GradNormLimits(factor=20, floor=10, steps=3)
    usual = [1.0] * 20
    assert first(GradNorm(config), steps("grad_norm", [*usual, 500, 500, 1, 500, 500, 1])) is None
    assert first(GradNorm(config), steps("grad_norm", [*usual, *[20.0] * 9])) is None  # the limit itself
    at, finding = first(GradNorm(config), steps("grad_norm", [*usual, *[20.1] * 9])) or (None, None)
    assert at == 22
    assert finding is not None and finding.good_until == 20.0
    assert first(GradNorm(config), steps("grad_norm", [1e6] * 100)) is None  # large from the start: its own normal


def test_grad_norm_below_the_floor_never_explodes() -> None:
    assert first(GradNorm(GradNormLimits()), steps("grad_norm", [0.01] * 50 + [9.9] * 50)) is None


def test_memory_that_grows_in_every_window() -> None:
    config = MemoryCreepLimits(window=10, windows=3, share=0.25)
    leak = [40 + 0.5 * step for step in range(200)]
    at, finding = first(MemoryCreep(config), steps("memory_gib", leak)) or (None, None)
    assert at == 39  # the fourth window's end: three that grew since the first
    assert finding is not None and finding.numbers["to_gib"] == pytest.approx(59.5)


def test_memory_that_grows_a_little_or_with_rests_is_no_creep() -> None:
    config = MemoryCreepLimits(window=10, windows=3, share=0.25)
    assert first(MemoryCreep(config), steps("memory_gib", [40 + 0.01 * step for step in range(500)])) is None
    stairs = [40.0 + 8 * (step // 25) for step in range(100)]  # grows, but not in each window
    assert first(MemoryCreep(config), steps("memory_gib", stairs)) is None


def test_peaks_of_batches_that_differ_in_length_are_no_creep() -> None:
    for seed in range(50):
        draw = random.Random(seed)
        peak, peaks = 0.0, []
        for _ in range(5000):
            peak = max(peak, 20 + draw.lognormvariate(1.5, 0.8))
            peaks.append(peak)
        assert first(MemoryCreep(MemoryCreepLimits()), steps("memory_gib", peaks)) is None, seed


def test_throughput_needs_both_steps_and_seconds() -> None:
    config = ThroughputLimits(share=0.25, steps=5, seconds=60)
    usual = steps("tokens_per_second", [1000.0] * 50)
    slow = [LoggedStep(50 + 10.0 * at, 50 + at, {"tokens_per_second": 249.0}) for at in range(1, 20)]
    result = first(Throughput(config), [*usual, *slow])
    assert result is not None and result[0] - len(usual) + 1 == 6  # 60 s are over with the sixth
    border = [LoggedStep(50 + 10.0 * at, 50 + at, {"tokens_per_second": 250.0}) for at in range(1, 20)]
    assert first(Throughput(config), [*usual, *border]) is None
    quick = [LoggedStep(50 + 1.0 * at, 50 + at, {"tokens_per_second": 1.0}) for at in range(1, 59)]
    assert first(Throughput(config), [*usual, *quick]) is None


def test_throughput_without_tokens_counts_steps() -> None:
    config = ThroughputLimits(share=0.25, steps=3, seconds=0)
    facts = [LoggedStep(float(at), at, {"seconds": 1.0}) for at in range(40)]
    facts += [LoggedStep(40 + 5.0 * at, 40 + at, {"seconds": 5.0}) for at in range(9)]
    result = first(Throughput(config), facts)
    assert result is not None and "steps/s" in result[1].message


@pytest.mark.parametrize(
    ("before", "loss", "stops"),
    [
        ({}, 9.0, False),  # not resumed
        ({20: 3.0, 21: 2.5}, 2.51, False),  # the same step again
        ({20: 3.0, 21: 2.5}, 3.0, True),
        ({20: 3.0, 21: 0.0001}, 0.02, False),
        ({19: 3.2, 20: 3.0}, 3.4, False),  # the attempt before ended at the checkpoint
        ({19: 3.2, 20: 3.0}, 2.6, False),
        ({19: 3.2, 20: 3.0}, 7.6, True),  # the base's weights
        ({19: 3.2, 20: 3.0}, 0.7, True),
        ({20: 3.0}, 7.0, False),  # one loss has no spread
        ({20: 3.0, 21: 2.5}, NAN, False),  # another guard's
    ],
)
def test_the_first_loss_after_a_resume_is_that_of_before(before: dict[int, float], loss: float, stops: bool) -> None:
    guard = Continuity(ContinuityLimits(), GuardContext(losses=before))
    found = first(guard, steps("loss", [loss, 99.0], start=21))
    assert (found is not None) == stops
    assert not stops or (found is not None and found[0] == 0 and "other weights or other data" in found[1].message)
