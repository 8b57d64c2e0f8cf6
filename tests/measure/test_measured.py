"""A width's record is read back from the files that the supervisor writes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from launch.measure.measured import objects, read_measured
from launch.rollout.projection import efficiency, project
from launch.runtime.folder import Outcome
from tests.rollout.cases import falling, measured
from tests.rollout.plans import leave, planned, steps

WORDS = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]")
DONE = Outcome(exit_code=0, seconds=9.0, steps=5, last_loss=2.8)


def test_what_a_run_left(tmp_path: Path) -> None:
    width = planned(tmp_path, *WORDS, "gpus=2").widths[0]
    assert read_measured(width.plan, 3) is None
    leave(width, DONE, steps([3.0, math.nan, 2.8, 2.7, 2.6]))
    found = read_measured(width.plan, 3, card_gib=80.0)
    assert found is not None and found.finished
    assert [step["step"] for step in found.steps] == [1, 2, 3]  # a run is ended a little after its last wanted step
    losses = found.values("loss")
    assert losses[0] == 3.0 and math.isnan(losses[1])
    assert found.looked == {0, 1} and found.total_steps == 1000 and found.card_gib == 80.0
    assert found.phases == {"load": 6.0, "training": 1.0}
    assert found.setup.world_size == 2 and found.setup.masters


def test_a_file_that_a_crash_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n[1]\n\xff\xfe\n{"step": 2}\n{"ste')
    assert [one["step"] for one in objects(path)] == [1, 2]
    assert objects(tmp_path / "none.jsonl") == []


def timed(ranks: int, seconds: float, tokens: float = 1000.0) -> object:
    columns = {"seconds": [seconds] * 10, "tokens": [tokens] * 10}
    return measured(falling(), ranks=ranks, columns=columns, total_steps=3600, phases={"load": 360.0, "training": 9.0})


def test_the_projection_of_a_measured_width() -> None:
    """3600 steps of 2 s and 360 s before them, on 4 GPUs at 3 an hour."""
    found = project(4, [timed(4, 2.0)], skip=2, price=3.0)  # type: ignore[list-item]
    assert found is not None
    assert (found.hours, found.basis) == (pytest.approx(2.1), "measured")
    assert (found.gpu_hours, found.cost) == (pytest.approx(8.4), pytest.approx(25.2))


def test_a_width_that_was_not_measured_is_projected_from_the_widest_that_was() -> None:
    known = [timed(1, 8.0), timed(2, 4.0)]
    found = project(8, known, skip=2, price=None)  # type: ignore[arg-type]
    assert found is not None and found.cost is None
    assert found.hours == pytest.approx((360 + 3600 * 1.0) / 3600)
    assert found.basis == "as fast a rank as gpu2"


def test_nothing_is_projected_from_nothing() -> None:
    assert project(8, [], skip=2, price=None) is None
    assert project(1, [measured(total_steps=None)], skip=2, price=None) is None


def test_the_efficiency_against_one_gpu() -> None:
    one, eight = timed(1, 8.0), timed(8, 1.25)
    assert efficiency(eight, one, skip=2) == pytest.approx(0.8)  # type: ignore[arg-type]
    assert efficiency(eight, eight, skip=2) is None  # type: ignore[arg-type]
    assert efficiency(eight, None, skip=2) is None  # type: ignore[arg-type]
