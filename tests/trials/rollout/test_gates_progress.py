from __future__ import annotations

import math

import pytest

from launch.execution.record.outcome import Outcome
from launch.trials.rollout.gates import mann_kendall
from tests.trials.rollout.cases import falling, gate_result, measured, verdict


def test_finished_is_all_the_steps_that_were_requested() -> None:
    assert verdict("finished_steps", measured(falling(10), requested=10)) == "pass"
    assert verdict("finished_steps", measured(falling(9), requested=10)) == "fail"


def test_a_training_with_fewer_steps_than_requested_is_finished_at_its_end() -> None:
    assert verdict("finished_steps", measured(falling(7), requested=100, total_steps=7)) == "pass"


def test_a_failed_run_reports_its_cause_and_cure() -> None:
    dead = Outcome(1, 5.0, 2, None, cause="rank 1: CUDA out of memory", cure="say recipe.per_device_batch_size=2")
    result = gate_result("finished_steps", measured(falling(10), outcome=dead))
    assert result is not None and result.stops
    assert "rank 1: CUDA out of memory" in result.message and "per_device_batch_size=2" in result.message


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_loss_that_is_not_finite_fails(bad: float) -> None:
    result = gate_result("loss_finite", measured([2.0, 1.9, bad, 1.8]))
    assert result is not None and result.stops
    assert "step 3" in result.message


def test_finite_losses_pass_and_none_at_all_fails() -> None:
    assert verdict("loss_finite", measured([1.0])) == "pass"
    lossless = measured([1.0, 1.0])
    for step in lossless.steps:
        step.pop("loss")  # type: ignore[attr-defined]
    assert verdict("loss_finite", lossless) == "fail"


def test_mann_kendall_by_hand() -> None:
    """Eight falling values: S = -28, spread = sqrt(8 x 7 x 21 / 18)."""
    assert mann_kendall(falling(8)) == pytest.approx(-27 / math.sqrt(8 * 7 * 21 / 18))
    assert mann_kendall([1.0] * 8) == 0.0


def test_a_falling_loss_passes_despite_a_spike() -> None:
    losses = falling(12)
    losses[6] = 50.0
    assert verdict("loss_falls", measured(losses)) == "pass"


def test_a_rising_loss_fails() -> None:
    assert verdict("loss_falls", measured(falling(12, start=1.0, by=-0.1))) == "fail"


def test_too_few_steps_tell_nothing() -> None:
    assert verdict("loss_falls", measured(falling(7))) == "warn"
    assert verdict("loss_falls", measured(falling(8))) == "pass"


def test_a_flat_loss_is_a_warning_in_a_short_window_and_red_in_a_long_one() -> None:
    flat = [2.0 + 0.01 * (-1) ** index for index in range(50)]
    rate = {"lr": [1e-3] * 50}
    assert verdict("loss_falls", measured(flat[:49], columns=rate)) == "warn"
    assert verdict("loss_falls", measured(flat, columns=rate)) == "fail"


def test_a_long_window_within_the_warm_up_is_not_a_failure() -> None:
    flat = [2.0 + 0.01 * (-1) ** index for index in range(60)]
    rates = [1e-3 * step / 110 for step in range(1, 61)]
    result = gate_result("loss_falls", measured(flat, columns={"lr": rates}))
    assert result is not None and result.level == "warn" and "still rising" in result.message


def test_the_share_that_a_long_window_must_fall_by_is_a_border() -> None:
    """Ten steps of the start, ten of the end: 2.0 to 1.98 is just one per cent."""
    losses = [2.0 - 1e-6 * index for index in range(50)] + [1.98 - 1e-6 * index for index in range(50)]
    rate = {"lr": [1e-3] * 100}
    assert verdict("loss_falls", measured(losses, columns=rate), share=0.0099) == "pass"
    assert verdict("loss_falls", measured(losses, columns=rate), share=0.0101) == "fail"


def test_gradient_norms() -> None:
    def norms(*values: float, **numbers: float) -> str | None:
        return verdict("grad_norm_sane", measured(falling(len(values)), columns={"grad_norm": values}), **numbers)

    assert norms(*[1.0] * 10) == "pass"
    assert norms(*[100.0] * 10) == "pass"
    assert norms(*[100.1] * 10) == "fail"
    assert norms(*[1.0] * 9, math.nan) == "fail"
    assert norms(*[1.0] * 9, 10.0) == "pass"
    assert norms(*[1.0] * 9, 10.1) == "warn"
    assert norms(*[1.0] * 8, 11.0, 11.0) == "fail"
    assert verdict("grad_norm_sane", measured()) == "warn"


def test_a_run_without_a_step_is_not_judged() -> None:
    nothing = measured([], outcome=Outcome(1, 1.0, 0, None, cause="no luck"))
    assert verdict("loss_finite", nothing) is None
    assert verdict("grad_norm_sane", nothing) is None
    assert verdict("finished_steps", nothing) == "fail"
