from __future__ import annotations

from dataclasses import replace

import pytest

from launch.trials.measurement import Measurement, compute_figures
from launch.trials.rollout.record import WidthRun, compute_efficiency, project
from launch.trials.rollout.request import RequestedWidth
from tests.trials.rollout.cases import falling, measured


def of(measurement: Measurement) -> WidthRun:
    """The run of a width that was measured so."""
    plan = measurement.plan
    run = WidthRun(str(measurement.width), plan, requested=RequestedWidth(plan.batch.width, 1))
    return replace(run, measured=measurement, figures=compute_figures(measurement, 2))


def timed(ranks: int, seconds: float, tokens: float = 1000.0) -> WidthRun:
    columns = {"seconds": [seconds] * 10, "tokens": [tokens] * 10}
    phases = {"load": 360.0, "training": 9.0}
    return of(measured(falling(), ranks=ranks, columns=columns, total_steps=3600, phases=phases))


def planned(ranks: int) -> WidthRun:
    return replace(timed(ranks, 1.0), measured=None, figures=None)


def test_the_projection_of_a_measured_width() -> None:
    """3600 steps of 2 s and 360 s before them, on 4 GPUs at 3 an hour."""
    width = timed(4, 2.0)
    projection = project(width, [width], price=3.0)
    assert projection is not None
    assert (projection.hours, projection.basis) == (pytest.approx(2.1), "measured")
    assert (projection.gpu_hours, projection.cost) == (pytest.approx(8.4), pytest.approx(25.2))


def test_a_width_that_was_not_measured_is_projected_from_the_widest_that_was() -> None:
    width = planned(8)
    projection = project(width, [timed(1, 8.0), timed(2, 4.0), width], price=None)
    assert projection is not None and projection.cost is None
    assert projection.hours == pytest.approx((360 + 3600 * 1.0) / 3600)
    assert projection.basis == "as fast a rank as gpu2"


def test_nothing_is_projected_from_nothing() -> None:
    width, unknown = planned(8), of(measured(total_steps=None))
    assert project(width, [width], price=None) is None
    assert project(unknown, [unknown], price=None) is None


def test_the_efficiency_against_one_gpu() -> None:
    one, eight = timed(1, 8.0), timed(8, 1.25)
    assert compute_efficiency(eight, one) == pytest.approx(0.8)
    assert compute_efficiency(eight, eight) is None
    assert compute_efficiency(eight, planned(1)) is None
