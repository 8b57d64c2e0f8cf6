"""Rows are read from every kind of file, and what does not parse is named with its line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.data import rows as rows_module
from launch.data.conversion import Conversion
from launch.data.rows import read_rows
from launch.errors import Problem, UserError
from tests.data.files import CHAT, local, write_csv, write_lines

ROWS = [{"prompt": "Größe?", "completion": "1,80 m\n(ungefähr)"}, {"prompt": "Why?", "completion": 'say "so"'}]


def values(path: Path) -> list[object]:
    return [row.value for row in read_rows(path)]


def refusal(path: Path) -> tuple[str, str, str]:
    """Return (id, place relative to the folder, message)."""
    with pytest.raises(UserError) as caught:
        for value in values(path):
            if isinstance(value, Problem):  # one line of several
                raise UserError(value)
    (problem,) = caught.value.problems
    assert "\n" not in str(problem)
    return problem.id, str(problem.where).replace(f"{path.parent}/", ""), problem.message


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    path = write_lines(tmp_path / name, ROWS)
    path.write_text("\n" + path.read_text(encoding="utf-8") + "\n\n", encoding="utf-8")
    assert values(path) == ROWS
    assert [row.place for row in read_rows(path)] == [f"{path}:2", f"{path}:3"]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_list_on_one_line_or_many(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert values(path) == ROWS
    assert [row.place for row in read_rows(path)][1] == f"{path}:{1 if indent is None else 6}"


def test_a_long_json_list_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_CHUNK", 50)
    many = [{"number": number, "text": "x" * (number % 70), "more": [1, 2]} for number in range(300)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(many, indent=1), encoding="utf-8")
    found = list(read_rows(path))
    assert [row.value for row in found] == many
    lines = path.read_text().split("\n")
    assert all(lines[int(row.place.rpartition(":")[2]) - 1].strip() == "{" for row in found)


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
def test_csv_with_quoted_line_ends(tmp_path: Path, name: str, delimiter: str) -> None:
    path = write_csv(tmp_path / name, [list(ROWS[0]), *(list(row.values()) for row in ROWS)], delimiter)
    assert values(path) == ROWS
    assert [row.place for row in read_rows(path)] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize(
    "content",
    [
        "prompt;completion\nWhy?;a, b\n",  # as spreadsheets write it in much of Europe
        "prompt\tcompletion\nWhy?\ta, b\n",
        'prompt|completion\nWhy?|"a, b"\n',
        'prompt, completion\n"Why?", "a, b"\n',
        ',prompt,completion\n0,Why?,"a, b"\n',  # with the index of a data frame
        'prompt,completion,,\nWhy?,"a, b",,\n',
    ],
)
def test_csv_of_other_programs(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    assert values(path) == [{"prompt": "Why?", "completion": "a, b"}]


def test_a_space_before_a_value_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,completion\nWhy?, So\n")
    assert values(path) == [{"prompt": "Why?", "completion": " So"}]


@pytest.mark.parametrize(
    ("content", "suffix", "cure"),
    [
        (gzip.compress(b"{}"), ".gz", "rename it to a.jsonl.gz"),
        (bz2.compress(b"{}"), ".bz2", "rename it to a.jsonl.bz2"),
        (lzma.compress(b"{}"), ".xz", "rename it to a.jsonl.xz"),
        (b"\x28\xb5\x2f\xfd\n", ".zst", "unpack it: zstd -d FILE"),
        (b"PK\x03\x04\n", ".zip", "unpack it: unzip FILE"),
        (b"PAR1\n", ".parquet", "rename it so"),
    ],
    ids=("gz", "bz2", "xz", "zst", "zip", "parquet"),  # the content of a .gz has the time in it
)
def test_a_file_with_the_wrong_name_is_recognised(tmp_path: Path, content: bytes, suffix: str, cure: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        values(path)
    [problem] = caught.value.problems
    assert (problem.id, problem.where, problem.cure) == ("data_unreadable", f"{path}:1", cure)
    assert f" {suffix} file" in problem.message


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert values(tmp_path / "a.parquet") == ROWS
    (tmp_path / "b.parquet").write_text("no parquet")
    assert refusal(tmp_path / "b.parquet")[0] == "data_not_parsed"


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    plain = write_lines(tmp_path / "a.jsonl", ROWS * 100)
    packed = tmp_path / f"a.jsonl{suffix}"
    packed.write_bytes(compress(plain.read_bytes()))
    assert values(packed) == ROWS * 100
    packed.write_bytes(packed.read_bytes()[:-20])
    assert refusal(packed)[0] == "data_unreadable"


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(row).encode() for row in ROWS))
    assert values(path) == ROWS
    table = tmp_path / "a.csv"
    table.write_bytes(b"\xef\xbb\xbfprompt,completion\r\nWhy?,So\r\n")
    assert values(table) == [{"prompt": "Why?", "completion": "So"}]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": 1\n', ("data_not_parsed", "a.jsonl:2", "not JSON: Expecting ',' delimiter")),
        ("a.jsonl", b"hello\n", ("data_not_parsed", "a.jsonl:1", "not JSON: Expecting value")),
        ("a.jsonl", b'{"a":' + b"[" * 100_000 + b"\n", ("data_not_parsed", "a.jsonl:1", "not")),
        ("a.jsonl", b'{"a": "caf\xe9"}\n', ("data_encoding", "a.jsonl:1", "byte 0xe9 is not UTF-8")),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), ("data_encoding", "a.jsonl:1", "the file is UTF-16")),
        ("a.jsonl", '{"a": 1}'.encode("utf-16-le"), ("data_encoding", "a.jsonl:1", "the file is UTF-16LE")),
        ("a.jsonl", '{"a": 1}'.encode("utf-16-be"), ("data_encoding", "a.jsonl:1", "the file is UTF-16BE")),
        ("a.jsonl", '{"a": 1}'.encode("utf-32"), ("data_encoding", "a.jsonl:1", "the file is UTF-32")),
        ("a.jsonl", b'{"a": 1}\n\x00\x01\x02\n', ("data_encoding", "a.jsonl:2", "the file is binary")),
        ("a.jsonl", b'{"a": ' + b"9" * 5000 + b"}\n", ("data_not_parsed", "a.jsonl:1", "not usable JSON: a number")),
        ("a.json", b'[{"a": ' + b"9" * 5000 + b"}]\n", ("data_not_parsed", "a.json:1", "not JSON: Exceeds the limit")),
        ("a.json", b'[{"a": 1},\n {"a": 2}', ("data_not_parsed", "a.json:2", "not JSON: the list has no end")),
        ("a.json", b'[{"a": 1}\n {"a": 2}]', ("data_not_parsed", "a.json:2", "not JSON: ',' or ']' is expected")),
        ("a.json", b'[{"a": 1},\n]', ("data_not_parsed", "a.json:2", "not JSON: Expecting value")),
        ("a.json", b'[{"a": 1}]\n[', ("data_not_parsed", "a.json:1", "not JSON: there is more after the end")),
        ("a.json", b'{\n "a": 1\n}', ("data_not_parsed", "a.json:1", "not JSON: Expecting property name")),
        ("a.csv", b"a,b\n1,2\n1\n", ("data_not_parsed", "a.csv:3", "the row has 1 columns, the first line names 2")),
        ("a.csv", b"a,b\n1,2,3\n", ("data_not_parsed", "a.csv:2", "the row has 3 columns, the first line names 2")),
        ("a.csv", b"a,a\n1,2\n", ("data_not_parsed", "a.csv:1", "the first line must name the columns, each once")),
        ("a.csv", b'a,b\n"1,2\n', ("data_not_parsed", "a.csv:2", "not CSV: unexpected end of data")),
    ],
)
def test_what_does_not_parse_is_named_with_its_line(
    tmp_path: Path, name: str, content: bytes, expected: tuple[str, str, str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = refusal(path)
    assert found[:2] == expected[:2]
    assert found[2].startswith(expected[2])


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_gigantic_row_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROW_BYTES", 1 << 20)
    path = tmp_path / name
    path.write_text(json.dumps({"a": "x" * (3 << 20)}))
    assert refusal(path)[:2] == ("data_row_too_large", f"{name}:1")


def test_blank_lines_of_a_csv_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,completion\n\nHi,Hello\n\n", encoding="utf-8")
    assert [(row.place, row.value) for row in read_rows(path)] == [
        (f"{path}:3", {"prompt": "Hi", "completion": "Hello"})
    ]
    path.write_text("\n", encoding="utf-8")
    assert list(read_rows(path)) == []


def test_columns_that_the_file_has_not_are_told_with_those_it_has(tmp_path: Path) -> None:
    data = local(write_lines(tmp_path / "rows.jsonl", [CHAT]), columns={"prompt": "frage", "completion": "antwort"})
    with pytest.raises(UserError, match=r"no column 'frage'.*the row has 'messages'"):
        list(Conversion(data).rows(data.files.paths))
