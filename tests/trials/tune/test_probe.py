"""What a run's record says of a probe."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.execution.display import PlainDisplay
from launch.execution.record.outcome import Outcome
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.trials.measurement import Measurement
from launch.trials.record import State
from launch.trials.trial import Runner
from launch.trials.tune.predict import Probe, is_final
from tests.conftest import fixed_machine
from tests.trials.tune.searches import composed_once, record_in

DONE = Outcome(exit_code=0, seconds=50.0, steps=4, last_loss=2.0)


def steps(*losses: float, **other: Any) -> tuple[dict[str, Any], ...]:
    first = {
        "tokens": 80_000,
        "memory_gib": 50.0,
        "memory_reserved_gib": 60.0,
        "seconds": 2.0,
    } | other
    return tuple({"step": number, "loss": loss} | first for number, loss in enumerate(losses, 1))


@pytest.fixture
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    record = record_in(tmp_path)
    record.warmup = 1

    def make(
        outcome: Outcome, logged: tuple[dict[str, Any], ...], plan: Plan = record.plan
    ) -> Probe:
        probe = Probe("it", plan, prediction=record.predictions[0])
        measured = Measurement(plan, 4, outcome, logged)
        monkeypatch.setattr("launch.trials.trial.read_measurement", lambda plan, steps: measured)
        Runner(record, PlainDisplay(io.StringIO()), lambda probe, seconds: None, reuse=False).take(
            probe
        )
        return probe

    return make


def test_a_finished_run_is_measured(probed: Any) -> None:
    probe = probed(DONE, steps(2.2, 2.1, 2.0, 1.9))
    assert (
        probe.state == State.done
        and probe.figures.step_seconds == 2.0
        and probe.figures.per_second == 40_000
    )
    assert probe.memory_gib == 60.0 and probe.memory_error == pytest.approx(
        math.log(60 / probe.prediction.probe_gib)
    )
    assert probe.step_seconds == pytest.approx(probe.prediction.step.load.tokens / 40_000)


@pytest.mark.parametrize(
    ("code", "cause_id", "state"),
    [
        (1, "out_of_memory", State.failed),
        (1, "missing_package", State.failed),
        (130, None, State.interrupted),
    ],
)
def test_one_that_ended_otherwise_is_reported_by_its_cause(
    probed: Any, code: int, cause_id: str | None, state: State
) -> None:
    probe = probed(
        replace(DONE, exit_code=code, cause="rank 0: so it was", cause_id=cause_id), steps(2.2)
    )
    assert (probe.state, probe.cause_id, probe.message) == (state, cause_id, "rank 0: so it was")
    assert probe.step_seconds is None and probe.ran == (cause_id == "out_of_memory")
    assert probe.time_error is None


def test_one_that_was_cut_short_measured_its_steps(probed: Any) -> None:
    cut = replace(DONE, exit_code=3, steps=3, cause="ended after 9 s", cause_id="time_used")
    cut_short = probed(cut, steps(2.2, 2.1, 2.0))
    assert cut_short.state == State.done and cut_short.figures.per_second == 40_000
    assert probed(replace(cut, steps=0), ()).state == State.failed


def test_the_hosts_memory_is_no_cards_and_not_final(probed: Any) -> None:
    """The job may be given more of it, and the same command goes on."""
    ran_out = replace(
        DONE, exit_code=1, cause="rank 0: DefaultCPUAllocator", cause_id="host_memory"
    )
    for words, cause_id in (
        (("stage=sft", "gpus=8"), "host_memory"),
        (("stage=demo", "device=cpu"), "out_of_memory"),
    ):
        plan = build_plan(composed_once(*words), fixed_machine())
        assert probed(ran_out, (), plan).cause_id == cause_id and not is_final(
            Measurement(plan, 4, ran_out), 1, 40.0
        )
    card = Measurement(plan, 4, replace(ran_out, cause_id="out_of_memory"))
    assert is_final(card, 1, None)


def test_one_that_was_cut_short_before_a_step_counted_is_run_again_with_more_time() -> None:
    cut = replace(
        DONE, exit_code=3, steps=0, seconds=120.0, cause="ended after 120 s", cause_id="time_used"
    )
    plan = build_plan(composed_once("stage=sft", "gpus=8"), fixed_machine())
    for logged in ((), steps(2.2)):
        measured = Measurement(plan, 4, cut, logged)
        assert (
            is_final(measured, 1, 120.0)
            and not is_final(measured, 1, 1800.0)
            and not is_final(measured, 1, None)
        )
    assert is_final(Measurement(plan, 4, cut, steps(2.2, 2.1)), 1, 1800.0)


def test_a_loss_that_is_not_finite_is_not_a_measurement(probed: Any) -> None:
    probe = probed(DONE, steps(2.2, float("nan"), 2.0))
    assert (
        probe.state == State.failed
        and probe.message == "a loss is not finite"
        and probe.step_seconds is None
    )


def test_steps_without_a_clock_are_none_either(probed: Any) -> None:
    probe = probed(DONE, steps(2.2, 2.1, seconds=None))
    assert probe.state == State.failed and probe.message == "it logged no step with a time"


def test_the_median_counts_and_the_spread_is_its_noise(probed: Any) -> None:
    stalled = [*steps(2.2, 2.1, 2.0), *steps(1.9, seconds=8.0)]
    probe = probed(DONE, tuple(step | {"step": number} for number, step in enumerate(stalled, 1)))
    assert (
        probe.figures.per_second == 40_000
        and probe.figures.step_seconds == 2.0
        and probe.figures.noise > 0.3
    )
    assert probed(DONE, steps(2.2, 2.1, 2.0, 1.9)).figures.noise == 0.02
    assert probed(DONE, steps(2.2, 2.1)).figures.noise == 0.2


def test_without_counted_tokens_samples_are_the_unit(probed: Any) -> None:
    probe = probed(DONE, steps(2.2, 2.1, 2.0, tokens=None))
    assert (
        probe.figures.unit == "samples"
        and probe.figures.per_second == 64
        and probe.step_seconds == 2.0
    )
