"""What is learnt of the models' errors."""

from __future__ import annotations

import math

import pytest

from launch.config.schema import Mode, Packing
from launch.trials.measurement import LEAST_NOISE
from launch.trials.tune.predict import ErrorModel, Observation
from launch.trials.tune.space import Candidate

HERE = Candidate(8, Mode.zero2, Packing.flatten)
NEAR = Candidate(4, Mode.zero2, Packing.flatten)
FAR = Candidate(1, Mode.zero3, checkpointing=True)


def test_without_observations_the_prior_uncertainty_remains() -> None:
    error = ErrorModel(0.3, 0.4).at(HERE)
    assert error.mean == 0 and error.stdev == pytest.approx(0.5)


def test_observations_count_less_the_further_a_setting_is() -> None:
    model = ErrorModel(0.1, 0.3, (Observation(HERE, 0.5),))
    here, near, far = (model.at(candidate) for candidate in (HERE, NEAR, FAR))
    assert here.mean == pytest.approx(0.5, abs=0.02) and here.stdev < 2 * LEAST_NOISE
    assert here.mean > near.mean > far.mean > 0
    assert here.stdev < near.stdev < far.stdev


def test_a_card_that_is_slower_as_a_whole_moves_every_setting() -> None:
    """The offset is unknown at first: one probe determines it for all settings."""
    seen = (Observation(HERE, 1.0),)
    assert ErrorModel(1.0, 0.1, seen).at(FAR).mean > 0.95
    assert ErrorModel(0.05, 0.3, seen).at(FAR).mean < 0.2


def test_a_surprise_makes_everything_less_certain() -> None:
    expected, surprising = (ErrorModel(0.1, 0.1, (Observation(HERE, error),)).at(FAR) for error in (0.1, 1.0))
    assert surprising.stdev > 5 * expected.stdev


def test_contradicting_observations_hold_where_they_were_made() -> None:
    model = ErrorModel(0.1, 0.3, (Observation(HERE, 0.4), Observation(FAR, -0.4)))
    assert model.at(HERE).mean > 0.35 and model.at(FAR).mean < -0.35


def test_two_observations_are_weighted_as_their_covariances_say() -> None:
    """Without a shared offset, far settings are nearly independent: each observation's weight is p / (p + noise)."""
    seen = tuple(Observation(candidate, 0.1, noise=0.3) for candidate in (HERE, FAR))
    alone = [ErrorModel(0.0, 0.3, (observation,)).at(observation.candidate).mean for observation in seen]
    assert alone == pytest.approx([0.05, 0.05])
    shared = math.exp(-HERE.distance(FAR))  # the off-diagonal of [[2, shared], [shared, 2]] x 0.09
    both = ErrorModel(0.0, 0.3, seen).at(HERE).mean
    assert both == pytest.approx(0.1 * (1 + shared) / (2 + shared))
