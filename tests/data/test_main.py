"""`python -m launch.data FILE` prints the rows of a file of any format as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.data.__main__ import main
from tests.data.files import CHAT, write_csv

pyarrow = pytest.importorskip("pyarrow")


def test_a_table_with_semicolons_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "a.csv", [["q", "a"], ["Hi; you", "Hello"]], ";")
    assert main([str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"q": "Hi; you", "a": "Hello"}


def test_keys_that_a_parquet_file_pads_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet

    rows = [{**CHAT, "tools": [{"name": name, name: "x"}]} for name in ("one", "two")]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert main([str(path)]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows


def test_what_is_not_a_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "a": 2}\n', encoding="utf-8")
    assert main([str(path)]) == 2
    assert f"{path}:1" in capsys.readouterr().err
    assert main([]) == 2
