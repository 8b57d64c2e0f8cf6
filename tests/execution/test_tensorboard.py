"""TensorBoard's event files, read back by TensorBoard itself."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from launch.execution.tensorboard import extract_scalars, tensorboard_writer
from tests.execution.record.records import append, write_run

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
)


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """tag -> (step, value, time), as TensorBoard reads them."""
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    write_run(tmp_path, steps=0)
    steps = [
        {"step": 1, "loss": 2.5, "lr": 1e-30, "seconds": 1.0},
        {"step": 300_000, "loss": None, "loss_text": "nan", "lr": 1e300, "seconds": 1.5},
    ]
    with tensorboard_writer(tmp_path, pytest.fail):
        append(tmp_path / "metrics.jsonl", steps)
    values = read(tmp_path / "tensorboard")
    began = values["train/loss"][0][2]
    assert values["train/loss"][0] == (1, 2.5, began)
    step, value, time = values["train/loss"][1]
    assert (step, time) == (300_000, began + 1.5) and math.isnan(value)
    assert values["train/lr"] == [
        (1, pytest.approx(1e-30), began),
        (300_000, math.inf, began + 1.5),
    ]


def test_a_live_run_is_written_with_each_step_once_over_its_attempts(tmp_path: Path) -> None:
    write_run(tmp_path, steps=3)
    for _ in range(2):  # a resumed run writes its file anew
        step = len((tmp_path / "metrics.jsonl").read_text().splitlines()) + 1
        with tensorboard_writer(tmp_path, pytest.fail):
            append(tmp_path / "metrics.jsonl", [{"step": step, "loss": 0.5, "seconds": 1.0}])
    values = read(tmp_path / "tensorboard")
    assert [(step, value) for step, value, _ in values["train/loss"]] == [
        (1, 4.0),
        (2, 3.0),
        (3, 2.0),
        (4, 0.5),
        (5, 0.5),
    ]
    times = [time for _, _, time in values["train/loss"]]
    assert times == sorted(times) and times[0] == 1011.0
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_values_that_are_not_numbers_are_left_out() -> None:
    values = {
        "step": 4,
        "loss": None,
        "loss_text": "nan",
        "lr": 0.1,
        "note": "x",
        "flag": True,
        "tokens": 7,
    }
    values = extract_scalars(values)
    assert math.isnan(values.pop("train/loss"))
    assert values == {"train/lr": 0.1, "train/tokens": 7.0}


def test_an_unwritable_folder_ends_the_writing_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way", encoding="utf-8")
    lines: list[str] = []
    with tensorboard_writer(tmp_path, lines.append):
        pass
    assert len(lines) == 1 and "TensorBoard's file can't be written" in lines[0]


def test_a_node_without_the_package_ends_the_writing_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    lines: list[str] = []
    with tensorboard_writer(tmp_path, lines.append):
        pass
    assert (
        len(lines) == 1 and "TensorBoard's file can't be written: import of tensorboard" in lines[0]
    )
