"""The guards of RLVR on recorded courses of a run that goes wrong in their way, and on those that do not."""

from __future__ import annotations

import json

import pytest

from launch import resources
from launch.config import guards as limits
from launch.execution.facts import Guard, LoggedStep
from launch.execution.reward_guards import (
    EntropyCollapse,
    KLDivergence,
    LengthLimit,
    RewardCollapse,
    RewardVariance,
    SamplerMismatch,
    Verifier,
)
from tests.execution.guards.facts import first

R = {"reward": 0.5}
SAMPLER = json.loads((resources.ROOT / "benchmarks" / "sampler.json").read_text())
FRESH, STALE = (
    [{"sampling/sampling_logp_difference/mean": value} for value in SAMPLER[name]] for name in ("fresh", "stale")
)
STUCK = {"frac_reward_zero_std": 1.0, "reward": 0.0}
CASES: list[tuple[Guard, list[dict[str, float]], int | None, str]] = [
    (Verifier(limits.VerifierLimits()), [{"verifier_failures": 1.0}], 0, "failed on 100.00% of the answers"),
    (Verifier(limits.VerifierLimits()), [{"verifier_failures": 0.016}] * 20, 12, "failed on 1.60% of the answers"),
    (Verifier(limits.VerifierLimits()), [{"verifier_failures": 0.016}, *[{"verifier_failures": 0.0}] * 60], None, ""),
    (RewardVariance(limits.RewardVarianceLimits()), [STUCK] * 10, 9, "mean is 0 at step 10"),
    (RewardVariance(limits.RewardVarianceLimits()), [{**STUCK, "reward": 1.0}] * 30, None, ""),
    (
        RewardVariance(limits.RewardVarianceLimits()),
        [*[STUCK] * 9, {**STUCK, "frac_reward_zero_std": 0.9}] * 3,
        None,
        "",
    ),
    (RewardCollapse(limits.RewardCollapseLimits()), [*[{"reward": 0.8}] * 10, *[{"reward": 0.0}] * 10], 15, "was 0.8"),
    (RewardCollapse(limits.RewardCollapseLimits()), [{"reward": 0.8 - at / 50} for at in range(15)], None, ""),
    (KLDivergence(limits.KLLimits()), [*[{"kl": 0.1}] * 3, *[{"kl": 50.0}] * 5], 7, "50 a token at step 8"),
    (KLDivergence(limits.KLLimits()), [{"kl": 0.5}] * 30, None, ""),
    (
        EntropyCollapse(limits.EntropyCollapseLimits()),
        [{**R, "entropy": 4.0}, *[{**R, "entropy": 0.1}] * 10],
        10,
        "below 5%",
    ),
    (EntropyCollapse(limits.EntropyCollapseLimits()), [{**R, "entropy": 4.0}, *[{**R, "entropy": 0.9}] * 30], None, ""),
    # SFT, which learns its rows by heart
    (EntropyCollapse(limits.EntropyCollapseLimits()), [{"entropy": 4.0}, *[{"entropy": 0.1}] * 30], None, ""),
    (LengthLimit(limits.LengthLimits()), [{"completions/clipped_ratio": 1.0}] * 50, 49, "100% of the answers"),
    (LengthLimit(limits.LengthLimits()), [{"completions/clipped_ratio": 0.9}] * 80, None, ""),
    (SamplerMismatch(limits.SamplerMismatchLimits()), STALE, 3, "1.58 nats a token at step 4"),
    (SamplerMismatch(limits.SamplerMismatchLimits()), FRESH, None, ""),
]


@pytest.mark.parametrize(("guard", "course", "at", "words"), CASES)
def test_each_stops_its_own_fault_alone(
    guard: Guard, course: list[dict[str, float]], at: int | None, words: str
) -> None:
    found = first(guard, [LoggedStep(float(step), step, values) for step, values in enumerate(course, 1)])
    assert (found and found[0]) == at
    if found is not None:
        assert found[1].stops
        assert words in found[1].message


@pytest.mark.parametrize(("guard", "course", "at", "words"), CASES)
def test_other_trainers_log_none_of_it(guard: Guard, course: object, at: object, words: object) -> None:
    assert first(guard, [LoggedStep(float(step), step, {"loss": 0.0, "grad_norm": 1.0}) for step in range(99)]) is None
