"""The table of the facts of a run: what each view takes from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.api.tables import compare, status
from launch.execution import run_facts
from launch.execution.record.run import Run
from launch.execution.report.page import render_runs
from launch.execution.run_facts import FACTS, Reading, RunFact, facts_in
from tests.execution.report.folders import write_run


def test_a_row_is_shown_where_it_says_and_left_out_where_no_run_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_host(run: Run) -> Iterator[Reading]:
        if "host" in run.plan:
            yield Reading(str(run.plan["host"]))

    views = ("status", "report", "compare")
    row = RunFact("machine", read_host, views, optional=True)
    monkeypatch.setattr(run_facts, "FACTS", (*FACTS, row))
    for name in "ab":
        write_run(tmp_path / "demo" / name, [{"loss": 2.0}], plan={"schema_version": 1})
    assert "machine" not in str(status(folder=tmp_path))
    assert "machine" not in str(compare("demo/a", "demo/b", folder=tmp_path))
    known = write_run(tmp_path / "demo" / "c", plan={"schema_version": 1, "host": "n7"})
    header, *lines = str(status(folder=tmp_path)).splitlines()
    assert "machine" in header
    assert [line.split()[0] for line in lines if "n7" in line] == ["demo/c"]
    assert "<dt>machine</dt><dd>n7" in render_runs([Run(known)])
    compared = str(compare("demo/a", "demo/c", folder=tmp_path)).splitlines()
    assert ["machine", "-", "n7"] in [line.split() for line in compared]


def test_each_view_has_facts_with_headings_of_their_own() -> None:
    for view in ("status", "report", "plan", "compare"):
        headings = [fact.heading for fact in facts_in(view)]
        assert headings and len(set(headings)) == len(headings)
