"""Rows of Parquet and Arrow files are those of the same JSON lines, without the keys of other rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.structure import read_structure
from tests.data.files import CHAT, converted, local, problems, write_lines

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

Row = dict[str, Any]
NAMED = "some may be the rows' own"
TEXT = {"type": "string"}


def called(
    name: str, arguments: Row, properties: Row | None = None, required: tuple[str, ...] = ()
) -> Row:
    """A row that calls a function; without `properties` it defines none."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    turns = [
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "So it is."},
    ]
    if properties is None:
        return {"messages": turns}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    tool = {"type": "function", "function": {"name": name, "parameters": schema}}
    return {"messages": turns, "tools": [tool]}


def write_parquet(path: Path, rows: list[Row]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_stream(path: Path, rows: list[Row]) -> Path:
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    return path


def write_file(path: Path, rows: list[Row]) -> Path:
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    return path


WRITERS = {"a.parquet": write_parquet, "stream.arrow": write_stream, "file.arrow": write_file}


def described(path: Path) -> str:
    return read_structure(local(path)).describe()


TWO_TOOLS = [
    called("town", {"city": "Ulm"}, {"city": TEXT}, ("city",)),
    called(
        "add", {"a": 1, "b": 2}, {"a": {"type": "integer"}, "b": {"type": "integer"}}, ("a", "b")
    ),
    called("now", {}, {}),
    CHAT,
]


@pytest.mark.parametrize("name", WRITERS)
def test_the_keys_of_other_rows_go(tmp_path: Path, name: str) -> None:
    expected = converted(write_lines(tmp_path / "a.jsonl", TWO_TOOLS))
    path = WRITERS[name](tmp_path / name, TWO_TOOLS)
    assert converted(path) == expected
    assert "null" not in json.dumps(converted(path))
    assert NAMED not in described(path)


def test_the_keys_of_nested_schemas_and_arguments_go(tmp_path: Path) -> None:
    street = {"type": "object", "properties": {"street": {**TEXT, "description": "Its name."}}}
    code = {"type": "object", "properties": {"zip": TEXT}}
    items = {"type": "array", "items": {"type": "object"}}
    rows = [
        called("post", {"to": {"street": "A"}}, {"to": street}),
        called("ship", {"items": [{"name": "x"}, {"name": "y", "count": 2}]}, {"items": items}),
        called("find", {"to": {"zip": "89"}}, {"to": code}),
    ]
    expected = converted(write_lines(tmp_path / "a.jsonl", rows))
    assert converted(write_parquet(tmp_path / "a.parquet", rows)) == expected


def test_a_null_of_the_row_stays(tmp_path: Path) -> None:
    """In JSON lines each null is the row's. In a table it is where no row has another value, and
    where the function requires the argument.
    """
    always = called("set", {"name": "x", "value": None}, {"name": TEXT, "value": TEXT})
    path = write_lines(tmp_path / "a.jsonl", [always])
    assert '"value": null' in json.dumps(converted(path))
    assert converted(write_parquet(tmp_path / "a.parquet", [always])) == converted(path)
    rows = [
        called("set", {"name": "x", "value": None}, {"name": TEXT, "value": TEXT}, ("value",)),
        called("set", {"name": "x", "value": "y"}, {"name": TEXT, "value": TEXT}, ("value",)),
    ]
    expected = converted(write_lines(tmp_path / "b.jsonl", rows))
    path = write_parquet(tmp_path / "b.parquet", rows)
    assert converted(path) == expected
    assert NAMED not in described(path)


@pytest.mark.parametrize("properties", [None, {"name": TEXT, "value": TEXT}])
def test_a_data_set_where_it_cannot_be_told_is_named(
    tmp_path: Path, properties: Row | None
) -> None:
    rows = [
        called("set", {"name": "x", "value": None}, properties),
        called("set", {"name": "x", "value": "y"}, properties),
    ]
    path = write_parquet(tmp_path / "a.parquet", rows)
    assert "null" not in json.dumps(converted(path))
    assert f"{NAMED}: value of set (first: {path}:row 1" in described(path)
    assert NAMED not in described(write_lines(tmp_path / "a.jsonl", rows))


def test_a_default_that_may_be_null_is_named(tmp_path: Path) -> None:
    rows = [
        called("set", {"value": "y"}, {"value": {**TEXT, "default": "z"}}, ("value",)),
        called("set", {"value": "y"}, {"value": TEXT}, ("value",)),
    ]
    path = write_parquet(tmp_path / "a.parquet", rows)
    assert converted(path) == converted(write_lines(tmp_path / "a.jsonl", rows))
    assert f"{NAMED}: default in tools" in described(path)


def test_values_that_a_file_keeps_as_json_are_read_as_they_are(tmp_path: Path) -> None:
    """`datasets` keeps objects with different keys so, and pads none of them."""
    datasets = pytest.importorskip("datasets")
    rows = [*TWO_TOOLS, called("set", {"value": None}, {"value": TEXT})]
    lines = write_lines(tmp_path / "a.jsonl", rows)
    data = datasets.load_dataset("json", data_files=str(lines), cache_dir=str(tmp_path / "hf"))
    data["train"].to_parquet(str(tmp_path / "a.parquet"))
    assert converted(tmp_path / "a.parquet") == converted(lines)
    data["train"].save_to_disk(str(tmp_path / "saved"))
    [file] = (tmp_path / "saved").glob("*.arrow")
    assert converted(file) == converted(lines)


def test_columns_have_their_names_in_the_configuration(tmp_path: Path) -> None:
    rows = [{"chat": row["messages"], "functions": row.get("tools")} for row in TWO_TOOLS]
    path = write_parquet(tmp_path / "a.parquet", rows)
    assert converted(path, columns={"messages": "chat", "tools": "functions"}) == converted(
        write_lines(tmp_path / "a.jsonl", TWO_TOOLS)
    )


def test_a_verifier_gets_its_own_columns_as_they_are(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"prompt": "Well?", "ground_truth": "4", "extra": {"unit": "m"}},
        {"prompt": "Well?", "ground_truth": "5", "extra": {"level": 2}},
    ]
    first, _ = converted(write_parquet(tmp_path / "a.parquet", rows), kind=Kind.rlvr)
    assert first["extra"] == {"unit": "m", "level": None}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: __import__("datetime").datetime(2024, 5, 1, 12), "2024-05-01 12:00:00"),
        (lambda: __import__("decimal").Decimal("1.50"), "1.50"),
        (lambda: b"raw", "raw"),
    ],
)
def test_values_without_a_json_form_become_texts(
    tmp_path: Path, value: Callable[[], object], expected: str
) -> None:
    rows = [{"prompt": "Well?", "ground_truth": "4", "extra": {"at": [value()]}}]
    [row] = converted(write_parquet(tmp_path / "a.parquet", rows), kind=Kind.rlvr)
    assert row["extra"] == {"at": [expected]}


def test_bytes_that_are_no_text_are_refused_where_they_are_used(tmp_path: Path) -> None:
    rows = {"prompt": [b"Hi", b"Ho"], "completion": [b"Hello", b"\xff\xfe"], "raw": [b"\xff", b""]}
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(rows), path)
    [problem] = problems(path)
    assert (problem.id, problem.where) == ("data_row", f"{path}:row 2")
    assert converted(path, skips=True)[0]["messages"][1]["content"] == "Hello"
