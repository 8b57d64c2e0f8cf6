"""The trainers' loader reads the rows that were written: none fails, and none comes back changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.data import row_file
from launch.data.row_file import encode_row
from launch.data.staging import stage
from launch.planning.digest_cache import DigestCache
from tests.data.files import chat, local, write_lines

CALL = {"type": "function", "function": {"name": "f", "arguments": {"day": "2024-05-01"}}}
TURNS = chat("Well?", "So it is.")["messages"]
CALLED = {"messages": [TURNS[0], {**TURNS[1], "tool_calls": [CALL]}]}


def staged(path: Path) -> Path:
    data = local(path)
    stage(data, DigestCache(path.parent / "digests.json").of)
    return data.train_file


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_call_far_below_is_put_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_file, "_FIRST_BYTES", 500)
    plain = [chat(f"What is {number}?", "It.") for number in range(20)]
    rows = [*plain, CALLED, *plain, CALLED]
    found = rows_of(staged(write_lines(tmp_path / "a.jsonl", rows)))
    assert found == [CALLED, *plain, *plain, CALLED]
    assert rows_of(staged(write_lines(tmp_path / "b.jsonl", [CALLED, *plain]))) == [CALLED, *plain]
    assert rows_of(staged(write_lines(tmp_path / "c.jsonl", plain))) == plain


def test_the_loader_returns_what_was_written(tmp_path: Path) -> None:
    """11 MiB of rows are read in two parts, of which the second alone has calls and other keys of
    tools.
    """
    datasets = pytest.importorskip("datasets")
    tools = [{"name": "f", "description": "x" * 3000, "parameters": {"default": "2024-05-01"}}]
    plain = {**chat("Well?", "So it is."), "tools": tools}
    other = {**CALLED, "tools": [{"name": "g", "strict": True}]}
    path = staged(write_lines(tmp_path / "a.jsonl", [*[plain] * 3700, *[other] * 3]))
    assert path.stat().st_size > 11 << 20
    loaded = datasets.load_dataset("json", data_files=str(path), cache_dir=str(tmp_path / "hf"))
    assert list(loaded["train"]) == rows_of(path)


def test_a_column_of_a_verifier_that_is_no_text_is_written() -> None:
    assert json.loads(encode_row({"raw": "a\udcff"})) == {"raw": "a?"}
