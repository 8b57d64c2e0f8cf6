"""Rows are read from every kind of file, and what does not parse is named with its line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from launch.data import rows as rows_module
from launch.data.conversion import Conversion
from launch.data.rows import read_rows
from launch.errors import UserError, actions_of
from launch.worker.finding import Finding
from tests.data.files import CHAT, local, write_lines
from tests.messages import names, values_of

ROWS = [
    {"prompt": "Größe?", "completion": "1,80 m\n(ungefähr)"},
    {"prompt": "Why?", "completion": 'say "so"'},
]


def values(path: Path) -> list[object]:
    return [row.value for row in read_rows(path)]


def refusal(path: Path) -> Finding:
    with pytest.raises(UserError) as caught:
        for value in values(path):
            if isinstance(value, Finding):  # one line of several
                raise UserError(value)
    (problem,) = caught.value.problems
    assert "\n" not in str(problem)
    return problem


class Read(NamedTuple):
    name: str
    file: str
    content: bytes
    values: list[dict[str, str]]
    lines: tuple[int, ...]  # where each row begins


def json_text(indent: int | None = None) -> bytes:
    return json.dumps(ROWS, indent=indent, ensure_ascii=False).encode()


def csv_text(delimiter: str) -> bytes:
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=delimiter).writerows(
        [list(ROWS[0]), *(list(row.values()) for row in ROWS)]
    )
    return stream.getvalue().encode()


LINES = (
    b"\n" + b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in ROWS) + b"\n\n"
)
WINDOWS = b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(row).encode() for row in ROWS)
SHORT = [{"prompt": "Why?", "completion": "a, b"}]
READ = (
    Read("JSON lines", "a.jsonl", LINES, ROWS, (2, 3)),
    Read("JSON lines, ndjson", "a.ndjson", LINES, ROWS, (2, 3)),
    Read("JSON lines, json", "a.json", LINES, ROWS, (2, 3)),
    Read("JSON lines of Windows", "a.jsonl", WINDOWS, ROWS, (1, 2)),
    Read("a list on one line", "a.json", json_text(), ROWS, (1, 1)),
    Read("a list on many lines", "a.json", json_text(2), ROWS, (2, 6)),
    Read("gzip", "a.jsonl.gz", gzip.compress(LINES), ROWS, (2, 3)),
    Read("bzip2", "a.jsonl.bz2", bz2.compress(LINES), ROWS, (2, 3)),
    Read("xz", "a.jsonl.xz", lzma.compress(LINES), ROWS, (2, 3)),
    Read("CSV with a line end in a value", "a.csv", csv_text(","), ROWS, (2, 4)),
    Read("TSV", "a.tsv", csv_text("\t"), ROWS, (2, 4)),
    Read(
        "CSV of Windows", "a.csv", b'\xef\xbb\xbfprompt,completion\r\nWhy?,"a, b"\r\n', SHORT, (2,)
    ),
    # as spreadsheets write it in much of Europe
    Read("CSV with semicolons", "a.csv", b"prompt;completion\nWhy?;a, b\n", SHORT, (2,)),
    Read("CSV that Excel wrote", "a.csv", b"sep=;\nprompt;completion\nWhy?;a, b\n", SHORT, (3,)),
    Read(
        "CSV for Excel",
        "a.csv",
        b'\xef\xbb\xbf"SEP=,"\r\nprompt,completion\r\nWhy?,"a, b"\r\n',
        SHORT,
        (3,),
    ),
    Read("CSV with tabs", "a.csv", b"prompt\tcompletion\nWhy?\ta, b\n", SHORT, (2,)),
    Read("CSV with bars", "a.csv", b'prompt|completion\nWhy?|"a, b"\n', SHORT, (2,)),
    Read(
        "CSV, spaces before quotes", "a.csv", b'prompt, completion\n"Why?", "a, b"\n', SHORT, (2,)
    ),
    Read(
        "CSV of a data frame with its index",
        "a.csv",
        b',prompt,completion\n0,Why?,"a, b"\n',
        SHORT,
        (2,),
    ),
    Read("CSV with empty columns", "a.csv", b'prompt,completion,,\nWhy?,"a, b",,\n', SHORT, (2,)),
    Read(
        "CSV, a space before a value",
        "a.csv",
        b"a,b\nWhy?, So\n",
        [{"a": "Why?", "b": " So"}],
        (2,),
    ),
    Read(
        "CSV with blank lines", "a.csv", b"a,b\n\nHi,Hello\n\n", [{"a": "Hi", "b": "Hello"}], (3,)
    ),
    Read("CSV of a blank line", "a.csv", b"\n", [], ()),
)


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_a_file_is_read(tmp_path: Path, case: Read) -> None:
    path = tmp_path / case.file
    path.write_bytes(case.content)
    rows = list(read_rows(path))
    assert [row.value for row in rows] == case.values
    assert [row.place for row in rows] == [f"{path}:{line}" for line in case.lines]


class Refused(NamedTuple):
    name: str
    file: str
    content: bytes
    id: str
    line: int
    values: tuple[str, ...] = ()
    cure: str = ""  # a name in the cure: an encoding, a program or a file


NINES = b"9" * 5000
PARSED, ENCODED, UNREADABLE = "data_not_parsed", "data_encoding", "data_unreadable"
REFUSED = (
    Refused(
        "an object without an end",
        "a.jsonl",
        b'{"a": 1}\n{"a": 1\n',
        PARSED,
        2,
        (",", "1"),
    ),
    Refused("no JSON", "a.jsonl", b"hello\n", PARSED, 1, ("1",)),
    Refused("too deep", "a.jsonl", b'{"a":' + b"[" * 100_000 + b"\n", PARSED, 1),
    Refused("Latin-1", "a.jsonl", b'{"a": "caf\xe9"}\n', ENCODED, 1, ("0xe9",), "WINDOWS-1252"),
    Refused("UTF-16", "a.jsonl", '{"a": 1}'.encode("utf-16"), ENCODED, 1, (), "UTF-16"),
    Refused("UTF-16LE", "a.jsonl", '{"a": 1}'.encode("utf-16-le"), ENCODED, 1, (), "UTF-16LE"),
    Refused("UTF-16BE", "a.jsonl", '{"a": 1}'.encode("utf-16-be"), ENCODED, 1, (), "UTF-16BE"),
    Refused("UTF-32", "a.jsonl", '{"a": 1}'.encode("utf-32"), ENCODED, 1, (), "UTF-32"),
    Refused("binary", "a.jsonl", b'{"a": 1}\n\x00\x01\x02\n', ENCODED, 2),
    Refused("a large number", "a.jsonl", b'{"a": ' + NINES + b"}\n", PARSED, 1),
    Refused(
        "a large number in a list",
        "a.json",
        b'[{"a": ' + NINES + b"}]\n",
        PARSED,
        1,
        ("4300",),
    ),
    Refused("a list without an end", "a.json", b'[{"a": 1},\n {"a": 2}', PARSED, 2),
    Refused(
        "no comma",
        "a.json",
        b'[{"a": 1}\n {"a": 2}]',
        PARSED,
        2,
        (",", "]", "{"),
    ),
    Refused("a comma too many", "a.json", b'[{"a": 1},\n]', PARSED, 2),
    Refused("two lists", "a.json", b'[{"a": 1}]\n[', PARSED, 1),
    Refused(
        "an object that is cut off",
        "a.json",
        b'{\n "a": 1\n',
        PARSED,
        1,
        (",",),
    ),
    Refused(
        "too few columns",
        "a.csv",
        b"a,b\n1,2\n1\n",
        PARSED,
        3,
        ("1", "2"),
    ),
    Refused(
        "too many columns",
        "a.csv",
        b"a,b\n1,2,3\n",
        PARSED,
        2,
        ("2", "3"),
    ),
    Refused(
        "a column twice",
        "a.csv",
        b"a,a\n1,2\n",
        PARSED,
        1,
        ("a",),
    ),
    Refused("a quote without an end", "a.csv", b'a,b\n"1,2\n', PARSED, 2),
    Refused("the same below Excel's line", "a.csv", b'sep=,\na,b\n"1,2\n', PARSED, 3),
    Refused(
        "gzip as JSON",
        "a.jsonl",
        gzip.compress(b"{}"),
        UNREADABLE,
        1,
        (),
        "a.jsonl.gz",
    ),
    Refused(
        "bzip2 as JSON",
        "a.jsonl",
        bz2.compress(b"{}"),
        UNREADABLE,
        1,
        (),
        "a.jsonl.bz2",
    ),
    Refused(
        "xz as JSON",
        "a.jsonl",
        lzma.compress(b"{}"),
        UNREADABLE,
        1,
        (),
        "a.jsonl.xz",
    ),
    Refused(
        "zstd as JSON",
        "a.jsonl",
        b"\x28\xb5\x2f\xfd\n",
        UNREADABLE,
        1,
        (),
        "zstd",
    ),
    Refused(
        "zip as JSON",
        "a.jsonl",
        b"PK\x03\x04\n",
        UNREADABLE,
        1,
        (),
        "unzip",
    ),
    Refused("Parquet as JSON", "a.jsonl", b"PAR1\n", UNREADABLE, 1),
)


JOINED = 'a{0}b\nQ{0}A\nWhy?{0}"It is so\nHow?{0}So\nHow tall?{0}It is 5"\nQ{0}A\n'
ONE_ROW = (
    'a,b\nQ,"One, two\nthree, four\nfive, six"\n',  # prose
    'a,b\nQ,"Hello\nit costs 1,000"\n',  # no evidence
    'a,b\nQ,"f(1,2)\nf(3,4)\nf(5,6)"\n',  # code, whose first line has a comma too many
    'a,b\n"x,y\nz,w\nv,u",A\n',
    'a;b\nQ;"Run it:\n  int x = f();\n  int y = g();"\n',
    'a;b\nQ;"One\ntwo\nthree; four"\n',
    'a\n"One\ntwo"\n',
    'a\tb\nQ\t"One\ntwo\n\nthree"\n',
)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_rows_that_a_stray_quote_joins_are_named(
    tmp_path: Path, suffix: str, ends: str, delimiter: str
) -> None:
    if suffix == ".tsv":
        delimiter = "\t"
    path = tmp_path / f"a{suffix}"
    path.write_bytes(JOINED.format(delimiter).replace("\n", ends).encode())
    first, bad, last = (row.value for row in read_rows(path))
    assert first == last == {"a": "Q", "b": "A"}
    assert isinstance(bad, Finding)
    assert (bad.id, bad.where) == (PARSED, f"{path}:3")
    assert values_of(bad.message) == ["3"]
    cured = JOINED.format(delimiter).replace('"It', '"""It').replace("so\n", 'so"\n')
    path.write_text(cured.replace('It is 5"', '"It is 5"""'), encoding="utf-8")
    assert [value["b"] for value in values(path)] == ["A", '"It is so', "So", 'It is 5"', "A"]


@pytest.mark.parametrize("content", ONE_ROW)
def test_a_quoted_value_of_several_lines_is_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content, encoding="utf-8")
    [row] = values(path)
    assert isinstance(row, dict) and any("\n" in value for value in row.values())


def test_a_quote_that_nothing_closes_is_named_where_it_opens(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\nQ,A\nQ,"A\nQ,A\nQ,A\n', encoding="utf-8")
    problem = refusal(path)
    assert (problem.id, problem.where) == (PARSED, f"{path}:3")


TWICE = b'{"prompt": "Hi", "turns": [{"content": "B", "content": "A"}]}'
SAME = b'{"prompt": "Hi", "prompt": "Hi"}'


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("a.jsonl", SAME + b"\n" + TWICE + b"\n" + SAME, 2),
        ("a.json", SAME + b"\n" + TWICE + b"\n" + SAME, 2),
        ("a.json", b"[" + SAME + b",\n" + TWICE + b",\n" + SAME + b"]", 2),
    ],
)
def test_a_key_twice_in_an_object_is_a_fault_of_its_row(
    tmp_path: Path, file: str, content: bytes, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "_CHUNK", 8)  # so that elements are read in pieces
    path = tmp_path / file
    path.write_bytes(content)
    first, bad, last = (row.value for row in read_rows(path))
    assert first == last == {"prompt": "Hi"}
    assert isinstance(bad, Finding)
    assert (bad.id, bad.where) == ("data_row", f"{path}:{line}")
    assert values_of(bad.message) == ["content"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_does_not_parse_is_named_with_its_line(tmp_path: Path, case: Refused) -> None:
    path = tmp_path / case.file
    path.write_bytes(case.content)
    problem = refusal(path)
    assert (problem.id, problem.where) == (case.id, f"{path}:{case.line}")
    assert values_of(problem.message) == list(case.values)
    assert not case.cure or names(str(problem.cure), case.cure)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_a_compressed_file_that_was_cut_short(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(LINES * 100)[:-20])
    assert refusal(path).id == UNREADABLE


def test_a_long_json_list_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "_CHUNK", 50)
    many = [
        {"number": number, "text": "x" * (number % 70), "more": [1, 2]} for number in range(300)
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(many, indent=1), encoding="utf-8")
    found = list(read_rows(path))
    assert [row.value for row in found] == many
    lines = path.read_text().split("\n")
    assert all(lines[int(row.place.rpartition(":")[2]) - 1].strip() == "{" for row in found)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert values(tmp_path / "a.parquet") == ROWS
    (tmp_path / "b.parquet").write_text("no parquet")
    assert refusal(tmp_path / "b.parquet").id == "data_not_parsed"


def test_parquet_where_pyarrow_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    problem = refusal(tmp_path / "a.parquet")
    assert (problem.id, problem.where) == ("parquet_needs_pyarrow", f"{tmp_path / 'a.parquet'}")
    assert [str(action) for action in actions_of(problem.cure)] == ["`pip install pyarrow`"]
    (tmp_path / "a.jsonl").write_bytes(LINES)
    assert values(tmp_path / "a.jsonl") == ROWS


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_gigantic_row_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROW_BYTES", 1 << 20)
    path = tmp_path / name
    path.write_text(json.dumps({"a": "x" * (3 << 20)}))
    problem = refusal(path)
    assert (problem.id, problem.where) == ("data_row_too_large", f"{path}:1")


def test_columns_that_the_file_has_not_are_told_with_those_it_has(tmp_path: Path) -> None:
    data = local(
        write_lines(tmp_path / "rows.jsonl", [CHAT]),
        columns={"prompt": "frage", "completion": "antwort"},
    )
    with pytest.raises(UserError) as refused:
        list(Conversion(data).rows(data.files.paths))
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("data_row", f"{tmp_path / 'rows.jsonl'}:1")
    assert values_of(problem.message) == ["data.columns", "frage", "messages"]
