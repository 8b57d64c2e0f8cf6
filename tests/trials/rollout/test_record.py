"""rollout.json against its JSON schema, and what a person reads beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from launch import resources
from launch.config.gates import GatesConfig
from launch.errors import UserError
from launch.execution.record.folder import Outcome
from launch.redact import Redactor
from launch.trials.rollout.loop import WidthRunner, run_widths
from launch.trials.rollout.record import RolloutRecord, WidthState, refuse_another
from launch.trials.rollout.table import HEADS, cells, gate_lines, markdown, row, text, verdict_line, width_lines
from launch.trials.rollout.widths import PlannedWidth
from tests.trials.rollout.plans import leave, planned, record_of, steps

WORDS = ("stage=sft", "trainer=trl_sft", "data.mix=[{name: some/data}]", "gpus=1,2,4")
DONE = Outcome(exit_code=0, seconds=9.0, steps=3, last_loss=2.8)


def rolled(home: Path, losses: dict[str, list[float]] | None = None, cards: int = 8, **more: Any) -> RolloutRecord:
    """A rollout that has run; `losses` of a width when they are not the good ones."""
    record = record_of(planned(home, *WORDS), price=2.5)

    def run(width: PlannedWidth) -> Outcome:
        width_losses = (losses or {}).get(width.label, [3.0, 2.9, 2.8])
        return leave(width, DONE, steps(width_losses, seconds=4.0 / width.ranks))

    run_widths(record, WidthRunner(run, cards, 80.0), GatesConfig(), lambda width: None, **more)
    return record


def written(record: RolloutRecord) -> dict[str, Any]:
    record.write(Redactor({}), {"rollout.txt": text(record), "rollout.md": markdown(record)})
    document: dict[str, Any] = json.loads((record.planned.folder / "rollout.json").read_text(encoding="utf-8"))
    return document


def check(document: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the `open-instruct` dependencies bring it")
    schema = json.loads((resources.ROOT / "docs" / "reference" / "rollout.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


def test_rollout_json_fits_its_schema_in_every_state(tmp_path: Path) -> None:
    fresh = record_of(planned(tmp_path, *WORDS))
    check(written(fresh))
    green = rolled(tmp_path / "green")
    assert green.state == WidthState.passed
    check(written(green))
    red = rolled(tmp_path / "red", {"gpu2": [3.0, 2.9, math.nan]})
    assert red.state == WidthState.stopped
    check(written(red))
    short = rolled(tmp_path / "short", cards=1)
    assert short.state == WidthState.not_run
    check(written(short))


def test_the_schema_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the `open-instruct` dependencies bring it")
    document = written(rolled(tmp_path))
    for spoiled in ({**document, "extra": 1}, {**document, "state": "fine"}, {**document, "schema_version": 2}):
        with pytest.raises(jsonschema.ValidationError):
            check(spoiled)


def test_the_numbers_are_there(tmp_path: Path) -> None:
    document = written(rolled(tmp_path))
    one, two, four = document["widths"]
    assert [width["width"] for width in (one, two, four)] == ["gpu1", "gpu2", "gpu4"]
    assert (one["batch"]["accumulation"], four["batch"]["accumulation"]) == (128, 32)
    assert four["efficiency"] == 1.0
    assert one["projection"]["hours"] == pytest.approx((1000 * 4 + 6) / 3600, abs=1e-4)
    assert four["projection"]["gpu_hours"] == pytest.approx(4 * (1000 * 1 + 6) / 3600, abs=1e-3)
    assert four["projection"]["cost"] == pytest.approx(2.5 * 4 * (1000 * 1 + 6) / 3600, abs=0.01)


def test_the_folder_of_another_rollout_is_refused(tmp_path: Path) -> None:
    record = rolled(tmp_path)
    refuse_another(record.planned)  # nothing there yet
    document = written(record)
    refuse_another(record.planned)  # its own
    path = record.planned.folder / "rollout.json"
    for other in ({**document, "stage": "dpo"}, {**document, "trainer": "finetune"}):
        path.write_text(json.dumps(other))
        with pytest.raises(UserError, match=r"is a rollout of .*\[other_rollout\]"):
            refuse_another(record.planned)
    path.write_text("{")
    with pytest.raises(UserError, match=r"cannot be read.*\[other_rollout\]"):
        refuse_another(record.planned)


def test_no_secret_is_written(tmp_path: Path) -> None:
    secret = "hf_" + "PlantedTokenThatMustNeverBeWritten"
    record = rolled(tmp_path)
    record.widths[0].why = f"the hub refused {secret}"
    record.write(Redactor({"HF_TOKEN": secret}), {"rollout.txt": text(record)})
    for path in record.planned.folder.glob("rollout.*"):
        assert secret not in path.read_text(encoding="utf-8"), path


def test_the_table_is_aligned_and_says_what_fails(tmp_path: Path) -> None:
    record = rolled(tmp_path, {"gpu2": [3.0, 2.9, math.nan]})
    lines = [line for width in record.widths[:2] for line in width_lines(width, record.skip)]
    head = row(HEADS)
    assert lines[0].index("pass") == head.index("verdict")
    assert any(line.split()[:2] == ["FAIL", "loss_finite"] for line in lines)
    assert verdict_line(record) == "gpu2 failed: loss_finite; not widened to gpu4"
    assert cells(record.widths[2], record.skip)[-1] == "planned"


def test_the_table_marks_what_was_kept_allowed_and_projected(tmp_path: Path) -> None:
    rolled(tmp_path, {"gpu1": [3.0, math.nan, 2.8]})
    record = rolled(tmp_path, cards=1, allow=("loss_finite",))
    assert "1 allowed, kept" in cells(record.widths[0], record.skip)[-1]
    assert [line.split()[0] for line in gate_lines(record.widths[0].gate_results)].count("allow") == 1
    assert cells(record.widths[1], record.skip)[-2].startswith("~ ")
    assert verdict_line(record).startswith("planned but not run here: gpu2, gpu4; on a Slurm cluster submit=rest")


def test_markdown_has_a_row_a_width_and_a_row_a_gate(tmp_path: Path) -> None:
    record = rolled(tmp_path)
    lines = markdown(record).splitlines()
    assert sum(line.startswith("| gpu") for line in lines) == 3
    assert sum(line.startswith("| `") for line in lines) == sum(len(width.gate_results) for width in record.widths)
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.count("|") - line.count("\\|") in (4, len(HEADS) + 1) for line in tables)
