"""Data that can't be used: one sentence with file and line, exit code 2, and nothing left
behind.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from launch.__main__ import main
from tests.data.files import CHAT
from tests.messages import outline

GOOD = json.dumps(CHAT).encode()


def chat_with(content: object) -> bytes:
    return json.dumps(
        {"messages": [CHAT["messages"][0], {"role": "assistant", "content": content}]}
    ).encode()


BAD = {
    "empty": ("a.jsonl", b"", "data_empty at a.jsonl"),
    "a gigantic row": (
        "a.jsonl",
        GOOD + b"\n" + b"x" * ((32 << 20) + 1),
        "data_row_too_large at a.jsonl:2, 32",
    ),
    "UTF-16": (
        "a.jsonl",
        b"\xff\xfe" + GOOD.decode().encode("utf-16-le"),
        "data_encoding at a.jsonl:1",
    ),
    "Latin-1": ("a.csv", b"prompt,completion\nHi,caf\xe9\n", "data_encoding at a.csv:2, 0xe9"),
    "binary": ("a.jsonl", GOOD + b"\n\x00\x01\n", "data_encoding at a.jsonl:2"),
    "null": ("a.jsonl", GOOD + b"\n" + chat_with(None), "data_row at a.jsonl:2, 2"),
    "a nested list": ("a.jsonl", chat_with([["Hi"]]), "data_row at a.jsonl:1, 2"),
    "two kinds": (
        "a.jsonl",
        GOOD + b'\n{"instruction": "a", "output": "b"}',
        "data_mixed at a.jsonl:2",
    ),
    "another language": ("a.csv", b"frage,antwort\nHi,Ja\n", "data_columns at a.csv:2, antwort"),
    "half a file": ("a.jsonl.gz", gzip.compress(GOOD * 99)[:-20], "data_unreadable at a.jsonl.gz"),
    "no JSON": ("a.jsonl", GOOD + b'\n{"messages": \n', "data_not_parsed at a.jsonl:2"),
    "a single row": ("a.jsonl", GOOD, "data_small_epoch at override data.mix, 1, 128"),
}


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_in_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file, content, answer = BAD[name]
    (tmp_path / file).write_bytes(content)
    assert main(["plan", "stage=sft", "trainer=trl_sft", f"data.mix=[{{name: {file}}}]"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert outline(line.replace(f"{tmp_path}/", "")).startswith(answer)
    assert str(tmp_path / file) in line or name == "a single row"
    assert [path.name for path in tmp_path.iterdir() if path.name != "runs"] == [file]
    assert not any(
        path.is_file() and path.name != "digests.json" for path in tmp_path.rglob("runs/**/*")
    )


def test_a_byte_order_mark_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + (GOOD + b"\r\n") * 128)
    assert main(["plan", "stage=sft", "trainer=trl_sft", "data.mix=[{name: a.jsonl}]"]) == 0
