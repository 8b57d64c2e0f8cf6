"""The columns of a row get the names that launch knows, and those that are read are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import DataFormat, Kind
from launch.data.columns import columns_of, rename_columns, rename_path, unfold
from launch.data.row_errors import RowError
from launch.data.structure import read_structure
from tests.data.files import CHAT, PAIR, chat, converted, local, write_lines

Row = dict[str, Any]
ANSWERED = {"q": {"text": "Hi"}, "answers": [{"body": "Hello"}, {"body": "Hey"}]}


@pytest.mark.parametrize(
    ("row", "columns", "renamed"),
    [
        ({"Frage": "Hi", "x": 1}, {"prompt": "frage"}, {"prompt": "Hi", "x": 1}),
        ({"Frage": "Hi", "frage": "Ho"}, {"prompt": "frage"}, {"Frage": "Hi", "prompt": "Ho"}),
        ({"frage": "Hi", "Answer": "Yes"}, {"prompt": "frage"}, {"prompt": "Hi", "answer": "Yes"}),
        ({"prompt": "old", "frage": "Hi"}, {"prompt": "frage"}, {"prompt": "Hi"}),
        ({"a.b": "Hi", "a": {"b": "Ho"}}, {"prompt": "a.b"}, {"prompt": "Hi", "a": {"b": "Ho"}}),
        (
            ANSWERED,
            {"prompt": "q.text", "completion": "answers.1.body"},
            {**ANSWERED, "prompt": "Hi", "completion": "Hey"},
        ),
    ],
)
def test_columns_are_named_whatever_their_case_and_by_paths(
    row: Row, columns: dict[str, str], renamed: Row
) -> None:
    assert rename_columns(row, columns) == renamed


@pytest.mark.parametrize("path", ["frage", "q.body", "answers.2.body", "answers.x"])
def test_a_path_that_the_row_does_not_have_is_named(path: str) -> None:
    with pytest.raises(RowError, match=path) as refused:
        rename_columns(ANSWERED, {"prompt": path})
    assert refused.value.id == "data_row"


def test_nested_columns_are_trained_on(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [ANSWERED])
    columns = {"prompt": "q.text", "completion": "answers.0.body"}
    assert converted(path, columns=columns) == [chat("Hi", "Hello")]


@pytest.mark.parametrize(
    ("path", "columns", "renamed"),
    [
        (("Messages", "name"), {}, ("messages", "name")),
        (("chat", "name"), {"messages": "Chat"}, ("messages", "name")),
        (("data", "chats", "name"), {"messages": "data.chats"}, ("messages", "name")),
        (("data", "chats", "name"), {"messages": "data.chats.0"}, ("messages", "name")),
        (("data", "other"), {"messages": "data.chats"}, None),
    ],
)
def test_padded_keys_are_known_by_the_renamed_path(
    path: tuple[str, ...], columns: dict[str, str], renamed: tuple[str, ...] | None
) -> None:
    assert rename_path(path, columns) == renamed


def test_an_object_with_messages_becomes_columns() -> None:
    row = {"input": {**CHAT, "tools": [], "n": 1}, "tools": ["a"]}
    assert unfold(row) == {**CHAT, "input.tools": [], "input.n": 1, "tools": ["a"]}
    assert unfold(CHAT) == CHAT


def test_a_path_into_an_object_names_its_conversation_alone(tmp_path: Path) -> None:
    tools = [{"name": "find", "parameters": {}}]
    turns = [{"role": "user", "content": "Hi"}]
    row = {"input": {"messages": turns, "tools": tools}, "output": "Hello"}
    path = write_lines(tmp_path / "a.jsonl", [row])
    [read] = converted(path, columns={"prompt": "input.messages"})
    assert read["messages"] == CHAT["messages"] and "find" in read["tools"]
    whole = {"input": {"messages": CHAT["messages"], "tools": tools}}
    path = write_lines(tmp_path / "b.jsonl", [whole])
    [read] = converted(path, columns={"messages": "input.messages"})
    assert read["messages"] == CHAT["messages"] and "find" in read["tools"]


@pytest.mark.parametrize(
    "name", ["System Prompt", "system-prompt", "SYSTEM_PROMPT", "system prompt"]
)
def test_words_of_a_name_may_be_joined_in_any_way(tmp_path: Path, name: str) -> None:
    row = {name: "Be kind.", "My Question": "Hi", "my-reply": "Hello"}
    path = write_lines(tmp_path / "a.jsonl", [row])
    [read] = converted(path, columns={"prompt": "my_question", "completion": "My Reply"})
    assert [turn["content"] for turn in read["messages"]] == ["Be kind.", "Hi", "Hello"]


@pytest.mark.parametrize(
    ("row", "form", "read"),
    [
        (
            {"prompt": "Hi", "question": "Ho", "answer": "x", "output": "y", "thinking": ["z"]},
            DataFormat.prompt_completion,
            ("prompt", "answer"),
        ),
        (
            {"instruction": "Hi", "input": "", "context": "Ho", "output": "x", "history": []},
            DataFormat.alpaca,
            ("instruction", "context", "output", "history"),
        ),
        (
            {**CHAT, "conversation": [], "system": "", "history": "[]"},
            DataFormat.chat,
            ("messages", "system"),
        ),
        ({"prompt": "Hi", **PAIR}, DataFormat.preference, ("chosen", "rejected")),
        (
            {"prompt": "Hi", "question": "Ho", "chosen": "x", "rejected": "y", "messages": []},
            DataFormat.preference,
            ("prompt", "chosen", "rejected"),
        ),
        (
            {"prompt": "Hi", "reward_model": {"ground_truth": "4"}, "dataset": "x", "answer": "y"},
            DataFormat.prompts,
            ("prompt", "reward_model", "dataset"),
        ),
    ],
)
def test_the_columns_that_are_read_are_listed(
    row: Row, form: DataFormat, read: tuple[str, ...]
) -> None:
    assert columns_of(row, form, Kind.sft) == read


def test_the_label_of_an_answer_is_read_for_kto_alone() -> None:
    row = {"prompt": "Hi", "completion": "Hello", "kto_tag": False, "feedback": None}
    answer = ("prompt", "completion")
    form = DataFormat.prompt_completion
    assert columns_of(row, form, Kind.kto) == (*answer, "kto_tag")
    assert columns_of(row, form, Kind.sft) == answer


def test_a_column_is_read_or_not_used_and_never_both(tmp_path: Path) -> None:
    rows: tuple[tuple[Row, Kind], ...] = (
        (
            {"prompt": "Hi there", "question": "Why?", "completion": "Hello", "output": "No"},
            Kind.sft,
        ),
        ({"instruction": "Hi", "input": "A", "context": ["B b"], "output": "Hello"}, Kind.sft),
        ({"prompt": "Something else", **PAIR, "messages": CHAT["messages"]}, Kind.dpo),
        ({"prompt": "Hi", "question": "Why?", "ground_truth": "4"}, Kind.rlvr),
    )
    for number, (row, kind) in enumerate(rows):
        path = write_lines(tmp_path / f"{number}.jsonl", [row])
        described = read_structure(local(path, kind=kind)).describe()
        read, _, unused = described.partition(": ")[2].partition("columns that ")
        listed = read.partition("(")[2].partition(")")[0].split(", ")
        assert unused and not [name for name in listed if f"'{name}'" in unused], described
