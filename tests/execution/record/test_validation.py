"""What a run measured on its validation data, read from its record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import (
    BestValidationLoss,
    Outcome,
    ValidationRecord,
    read_outcome,
    read_validation,
)


def write_metrics(folder: Path, *losses: float | str | None) -> None:
    """Write a step for each loss on the validation data; None for a step that was not evaluated,
    text for a NaN.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as stream:
        for step, loss in enumerate(losses, 1):
            measured: dict[str, Any] = {} if loss is None else {"eval_loss": loss}
            if isinstance(loss, str):
                measured = {"eval_loss": None, "eval_loss_text": loss}
            stream.write(json.dumps({"step": step, "loss": 1.0, **measured}) + "\n")


def test_the_last_and_the_best_evaluation_and_its_checkpoint(tmp_path: Path) -> None:
    assert read_validation(tmp_path) is None
    write_metrics(tmp_path, None, None)
    assert read_validation(tmp_path) is None
    write_metrics(tmp_path, None, 2.0, None, 1.5, 1.75)
    (tmp_path / "model" / "checkpoint-5").mkdir(parents=True)
    record = read_validation(tmp_path)
    assert record is not None
    assert record == ValidationRecord(5, 1.75, BestValidationLoss(4, 1.5, None))
    assert record.describe() == "eval_loss 1.7500, best 1.5000 at step 4"
    (tmp_path / "model" / "checkpoint-4").mkdir()
    record = read_validation(tmp_path, loads_best=True)
    assert record is not None
    assert (
        record.describe()
        == "eval_loss 1.7500, best 1.5000 at step 4 (checkpoint-4, which is the model)"
    )


def test_a_loss_that_is_nan_is_never_the_best(tmp_path: Path) -> None:
    write_metrics(tmp_path, "nan", 3.0, "nan")
    record = read_validation(tmp_path)
    assert record is not None
    assert math.isnan(record.eval_loss)
    assert record.best == BestValidationLoss(2, 3.0, None)
    write_metrics(tmp_path, "nan")
    record = read_validation(tmp_path)
    assert record is not None
    assert record.best is None
    assert record.describe() == "eval_loss nan"


def test_done_has_it(tmp_path: Path) -> None:
    write_metrics(tmp_path, 2.0, 2.5)
    (tmp_path / "model" / "checkpoint-1").mkdir(parents=True)
    record = read_validation(tmp_path, loads_best=True, early_stop="stopped early at step 2")
    RunFolder(tmp_path).finish(Outcome(0, 1.0, 2, 1.0, validation=record))
    outcome = read_outcome(tmp_path)
    assert outcome is not None
    assert outcome.validation == record
    assert json.loads((tmp_path / "DONE").read_text())["validation"] == {
        "step": 2,
        "eval_loss": 2.5,
        "best": {"step": 1, "eval_loss": 2.0, "checkpoint": "checkpoint-1", "is_model": True},
        "early_stop": "stopped early at step 2",
        "sets": {},
    }


@pytest.mark.parametrize("content", [[], "text", {}, {"step": 1}, {"step": "1", "eval_loss": 1.0}])
def test_anything_else_in_done_is_no_outcome(content: object, tmp_path: Path) -> None:
    done = {"exit_code": 0, "seconds": 1.0, "steps": 2, "last_loss": None}
    for validation, is_read in ((None, True), (content, False)):
        (tmp_path / "DONE").write_text(
            json.dumps({**done, "validation": validation}), encoding="utf-8"
        )
        assert (read_outcome(tmp_path) is not None) is is_read
