"""What is probed next and when to stop, over measurements that are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.config.trials import TuneConfig
from launch.errors import UserError
from launch.planning.lengths import Histogram, Lengths
from launch.trials.measurement import OUT_OF_MEMORY
from launch.trials.record import State
from launch.trials.tune.engine import refuse_if_nothing_fits, search
from launch.trials.tune.predict import Prediction, Probe
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.search import Feasibility, Stop, needs_at_least, next_probe
from tests.trials.tune.searches import (
    ended,
    failed,
    host_memory,
    measured,
    out_of_memory,
    record_in,
)


@pytest.fixture
def record(tmp_path: Path) -> TuneRecord:
    return record_in(tmp_path)


Answer = Callable[[Prediction, int], Probe]


def as_predicted(prediction: Prediction, number: int) -> Probe:
    return measured(prediction, prediction.seconds)


class Probes:
    """Probes that are made up: `answer` is what the probe of this number measures; `probed` are
    their settings.
    """

    def __init__(self, answer: Answer = as_predicted) -> None:
        self.probed: list[str] = []
        self._answer = answer

    def __call__(self, probe: Probe) -> None:
        self.steps = probe.steps  # of the last probe
        self.probed.append(probe.label)
        vars(probe).update(vars(self._answer(probe.prediction, len(self.probed))))


def go(record: TuneRecord, probes: Probes) -> None:
    search(record, probes, lambda best: [])


def times(factor: float) -> Answer:
    return lambda prediction, number: measured(prediction, prediction.seconds * factor)


def dead(prediction: Prediction, number: int) -> Probe:
    return failed(prediction, "No module named 'liger_kernel'")


def second_is(answer: Answer, others: Answer) -> Answer:
    return lambda prediction, number: (answer if number == 2 else others)(prediction, number)


def full(prediction: Prediction, number: int) -> Probe:
    return out_of_memory(prediction)


def stopped(prediction: Prediction, number: int) -> Probe:
    return ended(prediction, State.interrupted)


def fails(prediction: Prediction, number: int) -> Probe:
    return failed(prediction) if number == 1 else as_predicted(prediction, number)


USUAL, FIRST, ONE = TuneConfig(), TuneConfig(minutes=1 / 60), TuneConfig(probes=1)
DONE, FAILED = State.done, State.failed
CONFIRMED: set[Stop] = {Stop.best_beats_the_rest}
TRIED: set[Stop] = {Stop.all_tried, Stop.probes_used}
# what the probes measure, the limits, the state at the end, why it stopped, and the number of
# probes if it is certain
ENDS: dict[str, tuple[Answer, TuneConfig, State, set[Stop], int | None]] = {
    "a true model is confirmed": (as_predicted, USUAL, DONE, CONFIRMED, None),
    "a faster card": (times(0.4), USUAL, DONE, set(Stop), None),
    "a slower card": (times(3.0), USUAL, DONE, set(Stop), None),
    "the probes are counted": (as_predicted, ONE, DONE, {Stop.probes_used}, 1),
    "the first probe runs whatever the clock says": (
        as_predicted,
        FIRST,
        DONE,
        {Stop.time_used},
        1,
    ),
    "one cause ends it": (dead, USUAL, FAILED, {Stop.all_failed}, 2),
    "one failure does not": (fails, USUAL, DONE, set(Stop), None),
    "nothing fits": (full, USUAL, FAILED, TRIED, None),
    "an interrupt ends it": (
        second_is(stopped, times(4.0)),
        USUAL,
        State.interrupted,
        {Stop.interrupted},
        2,
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_how_a_search_ends(tmp_path: Path, case: str) -> None:
    answer, limits, state, stops, count = ENDS[case]
    record, probes = record_in(tmp_path, limits=limits), Probes(answer)
    first = record.estimates[0].prediction.label
    go(record, probes)
    assert record.state == state and record.stop in stops
    assert probes.probed[0] == first and len(probes.probed) == (count or len(probes.probed))
    if state == DONE:
        assert record.best is not None
        assert record.best.prediction.label == first or answer is fails  # the first probe
    assert case != "a true model is confirmed" or len(probes.probed) < 8


def test_a_model_that_is_wrong_about_a_mode_is_corrected(record: TuneRecord) -> None:
    """ZeRO-1 turns out three times slower than predicted: its other settings are not probed one
    after another.
    """

    probes = Probes(
        lambda prediction, number: times(3.0 if prediction.candidate.mode == "zero1" else 1.0)(
            prediction, number
        )
    )
    go(record, probes)
    assert probes.probed[0].startswith("zero1")
    assert sum(name.startswith("zero1") for name in probes.probed) <= 3
    others = [
        prediction for prediction in record.predictions if prediction.candidate.mode != "zero1"
    ]
    assert record.best is not None and record.best.step_seconds is not None
    assert record.best.step_seconds < 1.03 * min(prediction.seconds for prediction in others)


def test_out_of_memory_rules_out_all_that_need_more(tmp_path: Path) -> None:
    record = record_in(tmp_path)

    def small(prediction: Prediction, number: int) -> Probe:
        return (full if (prediction.probe_gib or 0) > 60 else as_predicted)(prediction, number)

    go(record, Probes(small))
    ran_out = [probe for probe in record.runs if probe.cause_id == OUT_OF_MEMORY]
    assert ran_out and record.best is not None
    for number, probe in enumerate(record.runs):
        for earlier in record.runs[:number]:
            if earlier.cause_id == OUT_OF_MEMORY:
                assert (probe.prediction.probe_gib or 0) < (earlier.prediction.probe_gib or 0)
    ruled = [
        estimate for estimate in record.estimates if estimate.feasibility == Feasibility.ruled_out
    ]
    assert all(
        (estimate.prediction.probe_gib or 0) >= min(p.prediction.probe_gib or 0 for p in ran_out)
        for estimate in ruled
    )


def test_what_was_measured_is_not_ruled_out_by_what_was_predicted(record: TuneRecord) -> None:
    """122 GiB fitted and what was thought to need 50 did not: the model is wrong, not the
    measurement.
    """
    every = [
        estimate.prediction
        for estimate in record.estimates
        if estimate.is_open and estimate.prediction.probe_gib is not None
    ]
    big = max(every, key=lambda prediction: prediction.probe_gib or 0)
    small = min(
        (prediction for prediction in every if prediction.candidate.mode != big.candidate.mode),
        key=lambda prediction: prediction.probe_gib or 0,
    )
    assert (small.probe_gib or 0) < 0.5 * (big.probe_gib or 0)
    record.runs = [measured(big, big.seconds), out_of_memory(small)]
    fits = {estimate.prediction.candidate: estimate.feasibility for estimate in record.estimates}
    assert record.best is record.runs[0] and fits[big.candidate] == Feasibility.fits
    assert fits[small.candidate] == Feasibility.ruled_out
    less = [candidate for candidate in fits if needs_at_least(big.candidate, candidate)]
    assert len(less) > 1 and all(fits[candidate] != Feasibility.ruled_out for candidate in less)


def test_a_host_that_runs_out_rules_out_its_own_mode_only(record: TuneRecord) -> None:
    before = {
        estimate.prediction.candidate: (estimate.feasibility, estimate.memory_gib)
        for estimate in record.estimates
    }
    offloaded = next(
        prediction
        for prediction in record.predictions
        if prediction.candidate.mode == Mode.zero3_offload
    )
    record.runs = [host_memory(offloaded)]
    for estimate in record.estimates:
        candidate = estimate.prediction.candidate
        fit = (
            Feasibility.ruled_out if candidate.mode == Mode.zero3_offload else before[candidate][0]
        )
        assert (estimate.feasibility, estimate.memory_gib) == (fit, before[candidate][1])
    other = next(estimate.prediction for estimate in record.estimates if estimate.is_open)
    record.runs = [host_memory(other)]
    assert Feasibility.ruled_out not in {estimate.feasibility for estimate in record.estimates}


def test_measured_memory_corrects_what_is_thought_to_fit(record: TuneRecord) -> None:
    """Half as much again as predicted, whatever the setting: what was said to take 100 of 140 GiB
    does not fit.
    """
    big = max(
        (estimate for estimate in record.estimates if estimate.is_open),
        key=lambda estimate: estimate.memory_gib or 0,
    )
    assert (big.memory_gib or 0) > 100
    small = record.estimates[0].prediction
    record.runs = [measured(small, small.seconds, gib=1.5 * (small.probe_gib or 0))]
    again = next(estimate for estimate in record.estimates if estimate.prediction is big.prediction)
    assert (again.memory_gib or 0) > 1.15 * (big.memory_gib or 0)


def test_the_fastest_whose_whole_run_would_not_fit_is_not_chosen(record: TuneRecord) -> None:
    first, second, *_ = (estimate.prediction for estimate in record.estimates if estimate.is_open)
    record.runs = [measured(first, first.seconds, gib=135.0), measured(second, second.seconds)]
    assert record.best is not None and record.best.prediction is second


def test_of_settings_that_differ_by_noise_the_one_probed_first_is_chosen(
    record: TuneRecord,
) -> None:
    first, second, third, *_ = (
        estimate.prediction for estimate in record.estimates if estimate.is_open
    )
    seconds = first.seconds
    real = first.step.load.tokens

    def took(prediction: Prediction, factor: float) -> Probe:
        return measured(prediction, seconds * factor * prediction.step.load.tokens / real)

    record.runs = [took(first, 1.0), took(second, 0.99)]
    assert record.best is record.runs[0]
    record.runs.append(took(third, 0.95))
    assert record.best is record.runs[2]


def test_without_a_memory_model_the_same_setting_and_more_is_ruled_out(record: TuneRecord) -> None:
    small, large = (replace(record.space.base, per_device=size) for size in (2, 8))
    assert needs_at_least(large, small) and not needs_at_least(small, large)
    assert not needs_at_least(
        replace(large, checkpointing=True), replace(small, checkpointing=False)
    )
    assert not needs_at_least(replace(large, liger=True), replace(small, liger=False))
    # whose largest micro batch is larger
    assert not needs_at_least(replace(small, balanced=True), small)
    assert needs_at_least(small, replace(small, balanced=True))


def test_a_search_that_has_ended_and_is_called_again_probes_nothing_more(tmp_path: Path) -> None:
    """What an earlier call measured counts for both limits."""
    first, probes = record_in(tmp_path, limits=TuneConfig(probes=2)), Probes(times(2.0))
    go(first, probes)
    kept = Probes(lambda prediction, number: replace(times(2.0)(prediction, number), reused=True))
    again = record_in(tmp_path, limits=TuneConfig(probes=2))
    go(again, kept)
    assert kept.probed == probes.probed and again.stop == first.stop
    assert again.file_content()["minutes_used"] == first.file_content()["minutes_used"]


def test_what_an_earlier_call_probed_comes_first_whatever_is_predicted_now(
    record: TuneRecord,
) -> None:
    last = [estimate.prediction.label for estimate in record.estimates if estimate.is_open][-1]
    base, probes = record.base_estimate.prediction.label, Probes()
    search(record, probes, lambda best: [], ["gone", base, last])
    assert probes.probed[0] == last and record.best is not None and record.best.label != last


@pytest.mark.parametrize("broken", [("flatten",), ("liger",), ("zero1",), ("flatten", "liger")])
def test_what_the_failing_probes_share_is_dropped_and_the_rest_goes_on(
    tmp_path: Path, broken: tuple[str, ...]
) -> None:
    record = record_in(tmp_path, "stage=sft", "gpus=8", "recipe.gradient_checkpointing=false")

    def answer(prediction: Prediction, number: int) -> Probe:
        is_broken = all(word in prediction.label.split("-") for word in broken)
        return (
            failed(prediction, f"rank {number}: it is broken")
            if is_broken
            else as_predicted(prediction, number)
        )

    go(record, Probes(answer))
    assert record.state == State.done and record.best is not None and record.stop != Stop.all_failed
    able = [
        prediction
        for prediction in record.predictions
        if not all(word in prediction.label.split("-") for word in broken)
    ]
    fitting = {estimate.prediction.candidate for estimate in record.estimates if estimate.is_open}
    fastest = min(prediction.seconds for prediction in able if prediction.candidate in fitting)
    assert record.best.step_seconds is not None and record.best.step_seconds < 1.05 * fastest


def test_failures_of_every_mode_and_packing_are_not_the_settings(record: TuneRecord) -> None:
    first, *_ = (estimate.prediction for estimate in record.estimates if estimate.is_open)
    record.runs = [
        failed(first),
        failed(
            next(
                prediction
                for prediction in record.predictions
                if like(prediction, first, "packing")
            )
        ),
    ]
    assert not isinstance(next_probe(record.estimates, record.runs, record.limits), Stop)
    record.runs = [
        failed(first),
        failed(
            next(prediction for prediction in record.predictions if not like(prediction, first))
        ),
    ]
    assert next_probe(record.estimates, record.runs, record.limits) == Stop.all_failed


def like(prediction: Prediction, other: Prediction, *words: str) -> bool:
    """Whether two settings have these words in common; by default any of those that matter."""
    names = words or ("mode", "packing", "balanced")
    same = [getattr(prediction.candidate, name) == getattr(other.candidate, name) for name in names]
    return all(same) if words else any(same)


def test_the_recipes_own_setting_is_compared_where_there_is_time(record: TuneRecord) -> None:
    probes = Probes()
    go(record, probes)
    assert record.base is not None and probes.probed[-1] == record.base.prediction.label
    short = record_in(record.folder, limits=TuneConfig(minutes=2.5))
    go(short, Probes())
    assert short.best is not None and short.base is None


def test_a_slow_recipe_is_probed_for_as_many_steps_as_there_is_time_for(record: TuneRecord) -> None:
    probes = Probes()
    go(record, probes)
    assert record.base is not None and probes.steps == record.limits.steps
    before = sum(probe.seconds or 0.0 for probe in record.runs[:-1])
    start_up, seconds = 40.0, record.base.step_seconds or 0.0
    for steps in (5, 4, 3):
        limits = TuneConfig(minutes=(before + start_up + (steps + 0.5) * seconds) / 60)
        short, few = record_in(record.folder / str(steps), limits=limits), Probes()
        go(short, few)
        assert (short.base is not None) == (steps > 3)  # two do not count, and a rate needs two
        assert few.steps == (steps if short.base else short.limits.steps)


def test_what_nothing_predicts_is_tried_on_the_best(record: TuneRecord) -> None:
    def helps(prediction: Prediction, number: int) -> Probe:
        return times(0.9 if prediction.candidate.extra else 1.0)(prediction, number)

    search(record, Probes(helps), lambda best: [("flags.dataloader_num_workers", 4)])
    assert record.best is not None and record.best.prediction.candidate.extra == (
        ("flags.dataloader_num_workers", 4),
    )
    assert record.best.prediction in [estimate.prediction for estimate in record.estimates]


def test_a_model_that_fits_nowhere_is_refused_with_the_least_it_needs(tmp_path: Path) -> None:
    record = record_in(tmp_path, gib=10.0)
    with pytest.raises(UserError, match=r"\bgpu8\b.* \d+ GiB.*\[nothing_fits\]"):
        refuse_if_nothing_fits(record)


def test_one_setting_is_nothing_to_choose_from(tmp_path: Path) -> None:
    words = (
        "stage=sft",
        "gpus=8",
        "recipe.per_device_batch_size=16",
        "recipe.liger=true",
        "parallel=zero2",
    )
    held = (
        "recipe.packing=flatten",
        "recipe.gradient_checkpointing=true",
        "recipe.attention=auto",
        "recipe.balanced=false",
    )
    record, probes = record_in(tmp_path, *words, *held), Probes()
    go(record, probes)
    assert probes.probed == [] and record.stop == Stop.one_setting and record.state == State.planned


def test_a_card_that_nobody_has_seen_is_less_certain(tmp_path: Path) -> None:
    seen, unseen = record_in(tmp_path), record_in(tmp_path, card="Frobnicator 9000")
    width = [estimate.high / estimate.low for estimate in (seen.estimates[0], unseen.estimates[0])]
    assert width[1] > 4 * width[0]


def test_samples_of_one_length_are_no_trouble(tmp_path: Path) -> None:
    record = record_in(tmp_path, lengths=Lengths(Kind.sft, Histogram.of([4096]), None))
    assert all(
        estimate.prediction.step.load.imbalance == pytest.approx(1.0)
        for estimate in record.estimates
    )
