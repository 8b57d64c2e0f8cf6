from __future__ import annotations

import pytest

from launch.trials.measurement import Measurement
from launch.trials.rollout.record import compute_efficiency, project
from tests.trials.rollout.cases import falling, measured


def timed(ranks: int, seconds: float, tokens: float = 1000.0) -> Measurement:
    columns = {"seconds": [seconds] * 10, "tokens": [tokens] * 10}
    return measured(falling(), ranks=ranks, columns=columns, total_steps=3600, phases={"load": 360.0, "training": 9.0})


def test_the_projection_of_a_measured_width() -> None:
    """3600 steps of 2 s and 360 s before them, on 4 GPUs at 3 an hour."""
    projection = project(4, "gpu4", [timed(4, 2.0)], skip=2, price=3.0)
    assert projection is not None
    assert (projection.hours, projection.basis) == (pytest.approx(2.1), "measured")
    assert (projection.gpu_hours, projection.cost) == (pytest.approx(8.4), pytest.approx(25.2))


def test_a_width_that_was_not_measured_is_projected_from_the_widest_that_was() -> None:
    known = [timed(1, 8.0), timed(2, 4.0)]
    projection = project(8, "gpu8", known, skip=2, price=None)
    assert projection is not None and projection.cost is None
    assert projection.hours == pytest.approx((360 + 3600 * 1.0) / 3600)
    assert projection.basis == "as fast a rank as gpu2"


def test_nothing_is_projected_from_nothing() -> None:
    assert project(8, "gpu8", [], skip=2, price=None) is None
    assert project(1, "gpu1", [measured(total_steps=None)], skip=2, price=None) is None


def test_the_efficiency_against_one_gpu() -> None:
    one, eight = timed(1, 8.0), timed(8, 1.25)
    assert compute_efficiency(eight, one, skip=2) == pytest.approx(0.8)
    assert compute_efficiency(eight, eight, skip=2) is None
    assert compute_efficiency(eight, None, skip=2) is None
