"""The gates of RLVR: rewards of two widths against what sampling makes of them, and its two speeds apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from launch.config.schema import Device, Kind
from launch.trials.measurement import Measurement
from launch.worker.finding import Finding
from tests.trials.rollout.cases import gate_result, measured

STEPS = 10


def width(
    rewards: Sequence[float], ranks: int = 1, generation: float = 8.0, training: float = 2.0, **more: Any
) -> Measurement:
    columns = {
        "reward": rewards,
        "reward_std": [0.5] * STEPS,
        "completions/mean_length": [100.0] * STEPS,
        "generation_seconds": [generation] * STEPS,
        "training_seconds": [training] * STEPS,
    }
    return measured([0.0] * STEPS, ranks=ranks, columns=columns, kind=Kind.rlvr, **more)


def sampled(mean: float, seed: int) -> list[float]:
    """Means of 16 rewards of 0 or 1 in each step."""
    draw = random.Random(seed)
    return [sum(draw.random() < mean for _ in range(16)) / 16 for _ in range(STEPS)]


def judged(id: str, now: Measurement, before: Measurement | None) -> Finding:
    result = gate_result(id, now, before)
    assert result is not None
    return result


@pytest.mark.parametrize("seed", range(20))
def test_widths_that_only_sample_otherwise_agree(seed: int) -> None:
    result = judged("same_rewards", width(sampled(0.5, seed), 2), width(sampled(0.5, seed + 100)))
    assert result.level == "pass" and "sampling alone makes 0.22 at most" in result.message


def test_a_width_whose_rewards_are_others_fails() -> None:
    result = judged("same_rewards", width(sampled(0.2, 1), 2), width(sampled(0.6, 2)))
    assert result.level == "fail" and result.numbers["apart"] > 0.22
    missing = measured([0.0] * STEPS, kind=Kind.rlvr)
    assert judged("same_rewards", missing, width(sampled(0.6, 2))).level == "fail"
    assert gate_result("same_rewards", width(sampled(0.2, 1)), None) is None


def test_generation_and_training_are_shown_apart_and_one_that_does_not_scale_is_named() -> None:
    one = width([0.5] * STEPS)
    alone = judged("generation_speed", one, None)
    assert alone.message == "generation 200 tokens/s, training 800"
    same = judged("generation_speed", width([0.5] * STEPS, 2, 4.0, 1.0), one)
    assert same.level == "pass" and same.message.endswith("100% and 100% of gpu1's a rank")
    slow = judged("generation_speed", width([0.5] * STEPS, 2, 8.0, 1.0), one)
    assert slow.level == "warn" and slow.message.endswith("50% and 100% of gpu1's a rank")
    on_cpu = judged("generation_speed", width([0.5] * STEPS, 2, 8.0, 1.0, device=Device.cpu), one)
    assert on_cpu.level == "pass"


def test_other_kinds_have_neither() -> None:
    assert gate_result("same_rewards", measured(), measured()) is None
    assert gate_result("generation_speed", measured(), None) is None
