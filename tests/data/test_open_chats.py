"""A conversation that ends with the user, beside its answer, is not learnt without that answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import read_for_draft
from launch.errors import UserError
from tests.data.files import converted, problems, write_lines

Row = dict[str, Any]
LAST = "By bus it takes an hour."
OPEN = [
    {"role": "user", "content": "How do I get there?"},
    {"role": "assistant", "content": "From where?"},
    {"role": "user", "content": "From home."},
]
SHARED = [
    {"from": {"user": "human", "assistant": "gpt"}[turn["role"]], "value": turn["content"]}
    for turn in OPEN
]

CALL: Row = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "map", "arguments": {"to": "you"}}}],
}
RESULT: Row = {"role": "tool", "content": "An hour by bus."}


@pytest.mark.parametrize("kind", [None, Kind.sft, Kind.kto])
@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"messages": OPEN, "response": LAST}, "prompt=messages"),
        ({"messages": OPEN, "answer": LAST, "document": "A map."}, "prompt=messages"),
        ({"messages": OPEN, "answers": [LAST, "By car."]}, "completion=answers.0"),
        ({"messages": OPEN, "target": LAST, "id": 4}, "completion=target"),
        ({"conversations": SHARED, "output": LAST}, "prompt=conversations"),
        ({"messages": OPEN, "output": LAST, "summary": "A way."}, "prompt=messages"),
        ({"messages": [*OPEN, CALL, RESULT], "completion": LAST}, "prompt=messages"),
        ({"input": {"messages": OPEN}, "output": LAST}, "prompt=messages"),
        (
            {"input": {"messages": OPEN}, "expected": {"role": "assistant", "content": LAST}},
            "completion=expected.content",
        ),
        ({"messages": OPEN[:1], "gold_response": LAST}, "completion=gold_response"),
    ],
)
def test_the_answer_beside_an_open_conversation_is_asked_about(
    tmp_path: Path, row: Row, named: str, kind: Kind | None
) -> None:
    row = {**row, "label": True} if kind == Kind.kto else row
    path = write_lines(tmp_path / "a.jsonl", [row])
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {}, kind)
    [problem] = refused.value.problems
    assert problem.id == "data_no_answer" and named in str(problem.cure)
    options = re.search(r"--columns (\S+)", str(problem.cure))
    assert options is not None
    columns = dict(pair.split("=") for pair in options[1].split(","))
    [found] = converted(path, kind=kind or Kind.sft, columns=columns)
    assert found["messages"][-1] == {"role": "assistant", "content": LAST}
    asked = row.get("messages", OPEN)
    assert len(found["messages"]) == len(asked) + 1
    assert read_for_draft(path, columns, kind).structure.read == 1


@pytest.mark.parametrize(
    "row",
    [
        {"messages": OPEN},
        {"messages": OPEN, "label": "travel", "id": "x"},
        {"messages": OPEN, "answer": None, "response": ""},
        {"messages": OPEN, "output_tokens": 7},
        {"messages": OPEN[:2], "response": "From where?"},
    ],
)
def test_a_conversation_without_such_a_column_is_read(tmp_path: Path, row: Row) -> None:
    [found] = converted(write_lines(tmp_path / "a.jsonl", [row]))
    assert len(found["messages"]) == len(row["messages"])


def test_only_the_rows_that_end_with_the_user_are_named(tmp_path: Path) -> None:
    answered = {"messages": OPEN[:2], "response": "no"}
    path = write_lines(tmp_path / "a.jsonl", [answered, {"messages": OPEN, "response": LAST}])
    [problem] = problems(path)
    assert (problem.id, problem.where) == ("data_no_answer", f"{path}:2")
