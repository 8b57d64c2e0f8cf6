"""A run's record is read back from the files that the supervisor writes."""

from __future__ import annotations

import math
from pathlib import Path

from launch.execution.record.outcome import Outcome
from launch.files import read_json_lines
from launch.trials.measurement import read_measurement
from tests.trials.rollout.plans import leave, planned, steps

WORDS = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]")
DONE = Outcome(exit_code=0, seconds=9.0, steps=5, last_loss=2.8)


def test_what_a_run_left(tmp_path: Path) -> None:
    width = planned(tmp_path, *WORDS, "gpus=2", "cluster.gpu_memory=80").runs[0]
    assert read_measurement(width.plan, 3) is None
    leave(width, DONE, steps([3.0, math.nan, 2.8, 2.7, 2.6]))
    measured = read_measurement(width.plan, 3)
    assert measured is not None and measured.finished
    assert [step["step"] for step in measured.steps] == [
        1,
        2,
        3,
    ]  # a run is ended a little after its last requested step
    losses = measured.values("loss")
    assert losses[0] == 3.0 and math.isnan(losses[1])
    assert measured.inspected_ranks == {0, 1} and measured.total_steps == 1000 and measured.card_gib == 80.0
    assert measured.phases["load"] == 6.0 and list(measured.phases) == ["load", "training"]
    assert measured.plan.batch.width == 2 and measured.has_masters


def test_a_file_that_a_crash_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n[1]\n\xff\xfe\n{"step": 2}\n{"ste')
    assert [line["step"] for line in read_json_lines(path)] == [1, 2]
    assert read_json_lines(tmp_path / "none.jsonl") == []
