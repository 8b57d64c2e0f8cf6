"""Turns that a text holds as JSON are turns; other JSON is a text, unless every row has a list of
texts, of which a model would learn the brackets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launch.config.kinds import DataFormat, Kind
from tests.data.files import CHAT, PAIR, converted, problems, write_csv, write_lines
from tests.messages import values_of

Row = dict[str, Any]
QUESTION, ANSWER = CHAT["messages"]


def written(*turns: object) -> str:
    return json.dumps(list(turns))


class Read(NamedTuple):
    name: str
    row: Row
    result: Row
    kind: Kind = Kind.sft


SHARED = {"prompt": "Hi", "completion": '{"role": "admin", "content": "Hello"}'}
READ = (
    Read("a prompt", {"prompt": written(QUESTION), "response": "Hello"}, CHAT),
    Read("an answer", {"question": "Hi", "answer": written(ANSWER)}, CHAT),
    Read("one turn", {"prompt": "Hi", "completion": json.dumps(ANSWER)}, CHAT),
    Read(
        "ShareGPT's turns",
        {"prompt": written({"from": "human", "value": "Hi"}), "output": "Hello"},
        CHAT,
    ),
    Read("two sides", {side: json.dumps(PAIR[side]) for side in PAIR}, PAIR, Kind.dpo),
    Read(
        "the prompt of a pair",
        {"prompt": written(QUESTION), "chosen": "Hello", "rejected": "No"},
        PAIR,
        Kind.dpo,
    ),
    Read(
        "two answers and a verdict",
        {
            "prompt": "Hi",
            "response_a": written({"role": "assistant", "content": "No"}),
            "response_b": written(ANSWER),
            "winner": "b",
        },
        PAIR,
        Kind.dpo,
    ),
    Read(
        "a prompt of RLVR",
        {"prompt": written(QUESTION), "ground_truth": "[1, 2]"},
        {"prompt": [QUESTION], "ground_truth": "[1, 2]"},
        Kind.rlvr,
    ),
    Read("an object whose role is none of a turn", SHARED, {}),
    Read("an object without a content", {"prompt": "Hi", "answer": '{"role": "user"}'}, {}),
    Read("a list of numbers", {"prompt": "Hi", "completion": "[1, 2]"}, {}),
    Read("an object", {"prompt": "Hi", "completion": '{"a": 1}'}, {}),
    Read("code", {"prompt": "Hi", "completion": "[{'role': x, 'content': y}]"}, {}),
)


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_only_turns_are_read(tmp_path: Path, case: Read) -> None:
    [found] = converted(write_lines(tmp_path / "a.jsonl", [case.row]), kind=case.kind)
    answer = list(case.row.values())[-1]
    assert found == (case.result or {"messages": [QUESTION, {**ANSWER, "content": answer}]})


def test_turns_as_python_prints_them_are_named_in_their_row(tmp_path: Path) -> None:
    rows = [{"prompt": "Hi", "answer": "Hello"}, {"prompt": str([QUESTION]), "answer": "Hello"}]
    path = write_lines(tmp_path / "a.jsonl", rows)
    [problem] = problems(path)
    assert (problem.id, problem.where) == ("data_row", f"{path}:2")
    assert "json.dumps" in str(problem.cure) and "prompt" in problem.message


class Listed(NamedTuple):
    name: str
    header: tuple[str, ...]
    values: tuple[str, ...]
    ways: tuple[str, ...]  # what the cure names
    kind: Kind = Kind.sft


TEXTS = '["Hello", null]'
LISTED = (
    Listed("an answer", ("question", "answer"), ("Hi", TEXTS), ("completion=answer.0",)),
    Listed("a prompt", ("query", "output"), (TEXTS, "Hi"), ("prompt=query.0",)),
    Listed(
        "both",
        ("prompt", "response"),
        (TEXTS, TEXTS),
        ("prompt=prompt.0", "completion=response.0"),
    ),
    Listed(
        "two sides",
        ("prompt", "chosen", "rejected"),
        ("Hi", TEXTS, '["No"]'),
        ("chosen=chosen.0", "rejected=rejected.0"),
        Kind.dpo,
    ),
    Listed("Python's", ("prompt", "answer"), ("Hi", "['Hello', 'No']"), ("completion=answer.0",)),
)


@pytest.mark.parametrize("case", LISTED, ids=lambda case: case.name)
def test_a_column_of_lists_of_texts_is_refused(tmp_path: Path, case: Listed) -> None:
    path = write_csv(tmp_path / "a.csv", [case.header, case.values, case.values])
    [problem] = problems(path, kind=case.kind)
    assert (problem.id, problem.where) == ("data_row", f"{path}:2")
    ways = {f"data.columns.{way}" for way in case.ways}
    assert {value for value in values_of(str(problem.cure)) if value.endswith(".0")} == ways
    assert ("json.dumps" in str(problem.cure)) == case.values[-1].startswith("['")


def test_the_cure_names_the_first_of_each_list(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [("prompt", "answer"), ("Hi", TEXTS), ("Hi", TEXTS)])
    assert converted(path, columns={"completion": "answer.0"}) == [CHAT, CHAT]


def test_lists_in_some_rows_and_those_of_a_named_format_are_texts(tmp_path: Path) -> None:
    rows = [("prompt", "answer"), ("Hi", TEXTS), ("Hi", "Hello")]
    learnt = {"messages": [QUESTION, {**ANSWER, "content": TEXTS}]}
    assert converted(write_csv(tmp_path / "a.csv", rows)) == [learnt, CHAT]
    path = write_csv(tmp_path / "b.csv", rows[:2])
    assert converted(path, form=DataFormat.prompt_completion) == [learnt]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("messages", '[{"role": "user", "content": "Hi", "content": "Ho"}]'),
        ("completion", '{"role": "assistant", "content": "Hi", "content": "Ho"}'),
        ("history", '[{"role": "user", "content": "Hi", "content": "Ho"}]'),
        ("tools", '[{"name": "find", "name": "seek", "parameters": {}}]'),
        ("tools", '{"name": "find", "name": "seek"}\n{"name": "look"}'),
    ],
)
def test_a_key_twice_in_a_cell_is_refused(tmp_path: Path, column: str, value: str) -> None:
    """json would keep the last one."""
    row = {"prompt": "Hi", "completion": "Hello"}
    if column == "messages":
        row = {}
    path = write_csv(tmp_path / "a.csv", [[*row, column], [*row.values(), value]])
    if column in row:
        path = write_csv(tmp_path / "a.csv", [list(row), ["Hi", value]])
    [problem] = problems(path)
    assert (problem.id, problem.where) == ("data_row", f"{path}:2")
    assert column in problem.message and "twice" in problem.message


def test_a_key_twice_in_the_arguments_of_a_call_is_refused(tmp_path: Path) -> None:
    call = {"name": "find", "arguments": '{"a": 1, "a": 2}'}
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}]
    [problem] = problems(write_lines(tmp_path / "a.jsonl", [{"messages": turns}]))
    assert "'a' stands twice" in problem.message
    answer = {"prompt": "Hi", "completion": '{"a": 1, "a": 2}'}  # a text of its own
    assert len(converted(write_lines(tmp_path / "b.jsonl", [answer]))) == 1
