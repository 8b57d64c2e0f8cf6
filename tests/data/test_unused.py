"""What a stage leaves out of a row is named: columns, keys of turns, and the answers of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.structure import read_structure
from tests.data.files import CHAT, chat, converted, local, write_lines

Row = dict[str, Any]


def describe(folder: Path, rows: list[Row], kind: Kind = Kind.sft) -> str:
    return read_structure(local(write_lines(folder / "a.jsonl", rows), kind=kind)).describe()


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"input": 4, "remark": 4}, "'input' (in 1 row)"),
        ({"edited": "Hullo", "input": "More"}, "'input' (in 1 row), 'edited' (in 1 row)"),
        ({"is_wrong": True}, "'is_wrong' (in 1 row)"),
        ({"passages": [{"id": 1, "body": "More"}]}, "'passages' (in 1 row)"),
        ({"question": "Hi", "shown": None, "edited": " "}, ""),
        ({"score": 4, "scores": [1, 2], "reply": "Hello"}, ""),  # which is a turn
    ],
)
def test_what_few_rows_have_is_named(tmp_path: Path, columns: Row, named: str) -> None:
    described = describe(tmp_path, [chat("Hi", "Hello"), CHAT, {**CHAT, **columns}])
    assert ("not used" in described) == bool(named)
    assert described.endswith(named and f"columns that are not used: {named}")


def test_every_column_with_a_text_is_listed(tmp_path: Path) -> None:
    texts = {f"text {number}": f"More {number}" for number in range(9)}
    numbers = {f"number {number}": number + 1 for number in range(3)}
    described = describe(tmp_path, [{**CHAT, **numbers, **texts}])
    assert described.endswith(f"not used: {', '.join(map(repr, texts))} and 3 more")


@pytest.mark.parametrize("value", [["More"], {"a": "More"}, 4])
def test_a_column_of_any_type_is_named(tmp_path: Path, value: object) -> None:
    row = {"prompt": "Hi", "input": value, "thinking": [value], "completion": "Hello"}
    assert "columns that are not used: 'input', 'thinking'" in describe(tmp_path, [row])


def test_a_single_word_is_lost_where_a_turn_only_contains_it(tmp_path: Path) -> None:
    row = {**chat("Is it red?", "It is red."), "colour": "red", "question": "Is it red?"}
    assert describe(tmp_path, [row]).endswith("columns that are not used: 'colour'")


@pytest.mark.parametrize(
    ("answer", "is_named"),
    [
        ("def add(a, b):\n    return a + b", True),
        ("from math import sqrt\n\ndef add(a, b):\n    return a + b", False),
        ("def add(a, b):", False),  # the whole answer
    ],
)
def test_what_an_answer_begins_with_may_belong_to_the_prompt(
    tmp_path: Path, answer: str, is_named: bool
) -> None:
    row = {"prompt": "Write it", "starter_code": "def add(a, b):", "completion": answer}
    assert ("'starter_code'" in describe(tmp_path, [row])) == is_named
    asked = {**row, "prompt": f"{row['starter_code']} is the head. Write it"}
    assert "'starter_code'" not in describe(tmp_path, [{**asked, "completion": "return a + b"}])


@pytest.mark.parametrize(
    ("turn", "named"),
    [
        ({"human": "Hi", "assistant": "Hello", "rationale": "Why not"}, "'rationale'"),
        ({"human": "Hi", "assistant": "Hello", "thinking": "Hm", "train": True, "n": 3}, ""),
        ({"human": "Hi", "assistant": "Hello", "thinking": ["Hm"]}, "'thinking'"),
    ],
)
def test_keys_of_turns_are_read_or_named(tmp_path: Path, turn: Row, named: str) -> None:
    described = describe(tmp_path, [{"conversation": [turn]}])
    assert ("keys of turns" in described) == bool(named)
    assert described.endswith(named)


def test_keys_of_messages_are_named_too(tmp_path: Path) -> None:
    question, answer = CHAT["messages"]
    row = {"messages": [question, {**answer, "critique": "Good", "name": "a"}]}
    assert describe(tmp_path, [row]).endswith("writes: 'critique'")


def test_what_only_the_verifier_gets_is_named(tmp_path: Path) -> None:
    row = {"prompt": "Which?", "options": ["red", "blue"], "ground_truth": "red", "dataset": "x"}
    described = describe(tmp_path, [row], Kind.rlvr)
    assert described.endswith("columns that only the verifier gets: 'options'")


def test_answers_of_prompts_are_counted(tmp_path: Path) -> None:
    rows = [{**CHAT, "ground_truth": "4"}, {"messages": CHAT["messages"][:1], "ground_truth": "4"}]
    assert "1 final answer left out" in describe(tmp_path, rows, Kind.rlvr)


def test_columns_of_a_verifier_are_no_conversations_whatever_their_names(tmp_path: Path) -> None:
    row = {"prompt": "Hi", "ground_truth": "4", "chosen": "Four", "messages": None}
    path = write_lines(tmp_path / "a.jsonl", [row, {**row, "rejected": [1, 2]}])
    rows = converted(path, kind=Kind.rlvr)
    assert rows[0]["prompt"] == [{"role": "user", "content": "Hi"}]
    assert rows[1]["chosen"] == "Four" and rows[1]["rejected"] == [1, 2]
