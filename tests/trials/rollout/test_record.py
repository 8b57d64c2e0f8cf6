"""What a rollout records and reports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from launch.execution.record.outcome import Outcome
from launch.trials.rollout.record import RolloutRecord, WidthRun
from tests.trials.records import read, written
from tests.trials.rollout.plans import go, leave, planned, record_of, steps

WORDS = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]", "gpus=1,2,4")
DONE = Outcome(exit_code=0, seconds=9.0, steps=3, last_loss=2.8)


def rolled(home: Path, losses: dict[str, list[float]] | None = None, **more: Any) -> RolloutRecord:
    """A rollout that has run; `losses` of a width when they are not the good ones."""
    record = record_of(planned(home, *WORDS), price=2.5, allow=more.pop("allow", ()))

    def run(width: WidthRun) -> Outcome:
        width_losses = (losses or {}).get(width.label, [3.0, 2.9, 2.8])
        return leave(width, DONE, steps(width_losses, seconds=4.0 / width.requested.ranks))

    go(record, run, **more)
    return record


def test_the_numbers_are_there(tmp_path: Path) -> None:
    one, two, four = read(rolled(tmp_path))["runs"]
    assert [width["label"] for width in (one, two, four)] == ["gpu1", "gpu2", "gpu4"]
    assert (one["batch"]["accumulation"], four["batch"]["accumulation"]) == (128, 32)
    assert four["efficiency"] == 1.0
    assert one["projection"]["hours"] == pytest.approx((1000 * 4 + 6) / 3600, abs=1e-4)
    assert four["projection"]["gpu_hours"] == pytest.approx(4 * (1000 * 1 + 6) / 3600, abs=1e-3)
    assert four["projection"]["cost"] == pytest.approx(2.5 * 4 * (1000 * 1 + 6) / 3600, abs=0.01)


def test_the_report_has_every_width_and_gate_and_says_what_failed(tmp_path: Path) -> None:
    record = rolled(tmp_path, {"gpu2": [3.0, 2.9, math.nan]})
    assert record.verdict == "gpu2 failed: loss_finite; not widened to gpu4"
    runs, gates = written(record).tables
    assert [row[-1].split()[0] for row in runs.rows] == ["state", "done", "failed", "planned"]
    assert len(gates.rows) == 1 + sum(len(run.gate_results) for run in record.runs)
    assert ["gpu2", "loss_finite", "fail"] in [list(row[:3]) for row in gates.rows]


def test_the_report_marks_what_was_reused_allowed_and_projected(tmp_path: Path) -> None:
    rolled(tmp_path, {"gpu1": [3.0, math.nan, 2.8]})
    record = rolled(tmp_path, cards=1, allow=("loss_finite",))
    runs, gates = written(record).tables
    assert runs.rows[1][-1].endswith("1 allowed, reused)")
    assert [row[2] for row in gates.rows].count("allowed") == 1
    assert any(cell.endswith("(projected)") for cell in runs.rows[2])
    assert record.verdict.startswith(
        "planned but not run here: gpu2, gpu4; on a Slurm cluster submit=rest"
    )
