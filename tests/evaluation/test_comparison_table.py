"""The tables of `compare` on the page of several runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from launch.commands.reports import report
from launch.evaluation.comparison import comparison_tables
from tests.execution.report.folders import PLAN, write_run
from tests.execution.report.test_page import STEPS, Page


def test_what_differs_and_the_losses_at_equal_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    higher = [{**step, "loss": float(step["loss"]) + 1} for step in STEPS]
    plan = {**PLAN, "batch": {**PLAN["batch"], "accumulation": 8}}  # type: ignore[dict-item]
    write_run(tmp_path / "runs" / "demo" / "a", STEPS)
    write_run(tmp_path / "runs" / "demo" / "b", higher, plan=plan)
    assert report(["a", "b"]) == 0
    text = Page(Path("report.html").read_text(encoding="utf-8")).text
    assert "batch.accumulation 4 8" in text
    last = re.search(r"10,000 (\d\.\d{4}) (\d\.\d{4}) speed", text)
    assert last is not None
    assert float(last[2]) - float(last[1]) == pytest.approx(1)
    assert "the noise is unknown" in text


def test_runs_that_are_the_same_have_no_differences(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "demo" / name, STEPS) for name in "ab"]
    tables, notes = comparison_tables(folders, tmp_path)
    (table,) = tables
    assert {("settings: the same",), ("data: the same",)} <= set(
        table.rows
    ) and "noise is unknown" in notes[0]
    assert {len(row) for row in table.full_rows} == {3}  # a page needs as many cells in every row


def test_a_damaged_record_is_compared_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "demo" / name, STEPS) for name in "ab"]
    for file in ("plan.json", "versions.json"):
        (folders[0] / file).write_text(json.dumps({"flags": 3, "packages": [1], "gpus": 2}))
    tables, _ = comparison_tables(folders, tmp_path)
    assert len(tables) == 1 and ("settings",) in tables[0].rows


def test_what_is_damaged_is_left_out_and_named(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "demo" / name, STEPS) for name in "ab"]
    for content in ([3], [{"task": "t", "models": 3}], [{"models": [{"score": "high"}]}], 7):
        (folders[0] / "evaluation.json").write_text(json.dumps({"tasks": content}))
        tables, _ = comparison_tables(folders, tmp_path)
        assert "evaluation" not in str(tables[0])
    with (folders[1] / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"loss": 3}\n{"step": "7"}\n{"ste')
    _, notes = comparison_tables(folders, tmp_path)
    assert notes[0] == "demo/b: 4 lines of metrics.jsonl could not be read and are left out"
