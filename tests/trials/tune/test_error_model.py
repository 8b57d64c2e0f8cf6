"""What probes tell of the errors of predictions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from launch.config.recipe_keys import Packing
from launch.config.schema import Mode
from launch.trials.measurement import LEAST_NOISE
from launch.trials.tune.predict import nearest_error
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.search import Estimate
from launch.trials.tune.space import Candidate
from tests.trials.tune.searches import measured, record_in

HERE = Candidate(8, Mode.zero2, Packing.flatten)
NEAR = Candidate(4, Mode.zero2, Packing.flatten)
FAR = Candidate(1, Mode.zero3, checkpointing=True)


def test_without_a_probe_there_is_no_error_and_every_setting_is_far() -> None:
    assert nearest_error(HERE, {}) == (0.0, 1.0)


def test_the_error_is_that_of_the_most_similar_setting() -> None:
    errors = {HERE: 0.4, FAR: -0.4}
    assert nearest_error(HERE, errors) == (0.4, 0.0)
    # half of the binary logarithm of the batches' ratio
    assert nearest_error(NEAR, errors) == (0.4, 0.5)
    assert nearest_error(FAR, {HERE: 1.0}) == (1.0, 1.0)  # at most


@pytest.fixture
def record(tmp_path: Path) -> TuneRecord:
    return record_in(tmp_path)


def deviation(estimate: Estimate) -> float:
    return math.log(estimate.high / estimate.seconds)


def test_before_any_probe_the_range_is_that_of_the_rates(record: TuneRecord) -> None:
    rates = record.workload.card_rates.rates
    expected = pytest.approx(math.hypot(rates.bias, rates.spread))
    assert [deviation(estimate) for estimate in record.estimates] == [expected] * len(
        record.estimates
    )


def test_a_probe_moves_every_setting_and_is_sure_of_its_own(record: TuneRecord) -> None:
    first = record.estimates[0].prediction
    record.runs = [measured(first, 2 * first.seconds)]
    for estimate in record.estimates:
        assert estimate.seconds == pytest.approx(2 * estimate.prediction.seconds)
        is_probed = estimate.candidate == first.candidate
        assert (deviation(estimate) == pytest.approx(LEAST_NOISE)) == is_probed


def test_errors_that_differ_make_everything_less_certain(record: TuneRecord) -> None:
    first, last = record.estimates[0].prediction, record.estimates[-1].prediction
    widest = []
    for factor in (1.0, 3.0):
        record.runs = [measured(first, first.seconds), measured(last, factor * last.seconds)]
        widest.append(max(map(deviation, record.estimates)))
    assert widest[1] > 2 * widest[0]


def test_memory_takes_half_of_an_error_from_a_setting_that_is_not_alike(record: TuneRecord) -> None:
    first = record.estimates[0].prediction
    record.runs = [measured(first, first.seconds, gib=2 * (first.probe_gib or 0))]
    factors = [
        (estimate.memory_gib or 0) / (estimate.prediction.memory_gib or 1)
        for estimate in record.estimates
    ]
    assert max(factors) == pytest.approx(2) and min(factors) == pytest.approx(math.sqrt(2))
