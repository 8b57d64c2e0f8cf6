"""A run's record is read back from the files that the supervisor writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.execution.record.outcome import Outcome
from launch.files import read_json_lines
from launch.trials.measurement import (
    compute_figures,
    padding_share,
    read_measurement,
    second_half_ratio,
)
from tests.trials.rollout.cases import falling, measured
from tests.trials.rollout.plans import leave, planned, steps

WORDS = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]")
DONE = Outcome(exit_code=0, seconds=9.0, steps=5, last_loss=2.8)


def test_what_a_run_left(tmp_path: Path) -> None:
    width = planned(tmp_path, *WORDS, "gpus=2", "cluster.gpu_memory=80").runs[0]
    assert read_measurement(width.plan, 3) is None
    leave(width, DONE, steps([3.0, math.nan, 2.8, 2.7, 2.6]))
    read = read_measurement(width.plan, 3)
    assert read is not None and read.finished
    # a run is ended a little after its last requested step
    assert [step["step"] for step in read.steps] == [1, 2, 3]
    losses = read.values("loss")
    assert losses[0] == 3.0 and math.isnan(losses[1])
    assert read.inspected_ranks == {0, 1} and read.total_steps == 1000 and read.card_gib == 80.0
    assert read.phases["load"] == 6.0 and list(read.phases) == ["load", "training"]
    assert read.plan.batch.width == 2 and read.has_masters


def test_a_file_that_a_crash_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n[1]\n\xff\xfe\n{"step": 2}\n{"ste')
    assert [line["step"] for line in read_json_lines(path)] == [1, 2]
    assert read_json_lines(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        # the first two steps are left out, and the others weigh by their time
        ({"seconds": [100.0, 50.0, 1.0, 3.0], "tokens": [1000.0] * 4}, (500.0, "tokens", 2.0, 2)),
        # a short run: what there is
        ({"seconds": [2.0], "tokens": [1000.0]}, (500.0, "tokens", 2.0, 1)),
        ({"seconds": [2.0] * 10}, (8.0, "samples", 2.0, 8)),  # without tokens
    ],
)
def test_speed(
    columns: dict[str, Sequence[float]], expected: tuple[float, str, float, int]
) -> None:
    speed = compute_figures(measured(falling(len(columns["seconds"])), columns=columns), 2)
    assert speed is not None
    assert (speed.per_second, speed.unit, speed.step_seconds, speed.counted_steps) == expected


def test_figures_of_what_is_not_logged_are_unknown() -> None:
    assert compute_figures(measured(), 2) is None and second_half_ratio(measured(), skip=2) is None
    assert (
        padding_share(measured(columns={"tokens": [75.0] * 10, "tokens_padded": [100.0] * 10}))
        == 0.25
    )
