"""The usual shapes are recognised and converted; a row that can't be used is named with its place and its fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.config.schema import DataFormat, Kind
from tests.data.files import CHAT, PAIR, chat, converted, problems, write_lines

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION, ANSWER = CHAT["messages"]


@pytest.mark.parametrize(
    "row",
    [
        CHAT,
        {"conversations": CHAT["messages"], "source": "web"},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"instruction": "Hi", "input": "", "output": "Hello"},
        {"instruction": "Hi", "context": None, "response": "Hello", "category": "qa"},
        {"prompt": "Hi", "completion": "Hello"},
        {"question": "Hi", "answer": "Hello"},
        {"prompt": [QUESTION], "completion": [ANSWER]},
        {"Instruction": "Hi", " Output ": "Hello", "id": 7},
        {"Question": "Hi", "ANSWER": "Hello"},
        {"conversations": [{"from": "User", "value": "Hi"}, {"from": "Assistant", "value": "Hello"}]},
        {"conversations": [{"role": "human", "value": "Hi"}, {"role": "gpt", "value": "Hello"}]},
        {"messages": [{**QUESTION, "content": [{"type": "text", "text": "Hi"}]}, ANSWER]},
        {"messages": '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]'},
    ],
)
def test_chats_of_every_shape_are_the_same(tmp_path: Path, row: dict[str, Any]) -> None:
    assert converted(write_lines(tmp_path / "a.jsonl", [row])) == [CHAT]


@pytest.mark.parametrize(
    "row",
    [
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "system": "Be brief."},
        {"instruction": "Hi", "output": "Hello", "system": "Be brief."},
        {"messages": [{"role": "developer", "content": "Be brief."}, QUESTION, ANSWER]},
        {"prompt": "Hi", "response": "Hello", "system": "Be brief."},
    ],
)
def test_a_system_prompt_is_kept(tmp_path: Path, row: dict[str, Any]) -> None:
    assert converted(write_lines(tmp_path / "a.jsonl", [row])) == [{"messages": [SYSTEM, QUESTION, ANSWER]}]


def test_the_input_of_an_instruction_follows_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"instruction": "Translate", "input": "Haus", "output": "house"}])
    assert converted(path) == [chat("Translate\n\nHaus", "house")]


def test_the_parts_of_a_turn_are_lines_and_an_empty_system_prompt_stays(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    empty = {**SYSTEM, "content": ""}
    row = {"messages": [empty, QUESTION, {"role": "assistant", "content": parts}]}
    [found] = converted(write_lines(tmp_path / "a.jsonl", [row]))
    assert found == {"messages": [empty, QUESTION, {"role": "assistant", "content": "Hel\nlo"}]}


def test_tool_calls_are_kept(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    row = {"messages": [QUESTION, call, {"role": "tool", "content": "42"}, ANSWER], "tools": [{"name": "f"}]}
    (found,) = converted(write_lines(tmp_path / "a.jsonl", [row]))
    assert found["messages"][1] == {**call, "content": ""}
    assert found["tools"] == [{"name": "f"}]


@pytest.mark.parametrize(
    "row",
    [
        PAIR,
        {"prompt": "Hi", "chosen": "Hello", "rejected": "No"},
        {"prompt": [QUESTION], "chosen": [ANSWER], "rejected": [PAIR["rejected"][1]]},
        {"instruction": "Hi", "input": "", "chosen": "Hello", "rejected": "No"},
        {"Prompt": "Hi", "Chosen": "Hello", "Rejected": "No"},
        {"prompt": "Hi", **PAIR},  # the prompt once more, as UltraFeedback has it
        {
            "conversations": [{"from": "human", "value": "Hi"}],
            "chosen": {"from": "gpt", "value": "Hello"},
            "rejected": {"from": "gpt", "value": "No"},
        },
    ],
)
@pytest.mark.parametrize("kind", [Kind.dpo, Kind.rm])
def test_pairs_of_every_shape_are_the_same(tmp_path: Path, row: dict[str, Any], kind: Kind) -> None:
    assert converted(write_lines(tmp_path / "a.jsonl", [row]), kind=kind) == [PAIR]


def test_columns_in_another_language_are_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"frage": "Hi", "antwort": "Hello"}])
    (problem,) = problems(path)
    assert problem.id == "data_columns"
    assert "'frage', 'antwort'" in problem.message
    assert str(problem.cure).endswith("as in data.columns.prompt=frage data.columns.completion=antwort")
    assert converted(path, columns={"prompt": "frage", "completion": "antwort"}) == [CHAT]


def test_a_format_can_be_said(tmp_path: Path) -> None:
    row = {"messages": [QUESTION], "prompt": "Hi", "completion": "Hello"}
    assert converted(write_lines(tmp_path / "a.jsonl", [row]), form=DataFormat.prompt_completion) == [CHAT]


def messages(*turns: object) -> dict[str, object]:
    return {"messages": list(turns)}


def answered(content: object) -> dict[str, object]:
    return messages(QUESTION, {"role": "assistant", "content": content})


@pytest.mark.parametrize(
    ("row", "id", "message"),
    [
        ([1, 2], "data_row", "the row is a list; an object with named columns is expected"),
        (None, "data_row", "the row is null; an object with named columns is expected"),
        ({"text": "once upon a time"}, "data_columns", "the columns 'text' fit no known format"),
        ({}, "data_columns", "the columns none fit no known format"),
        (PAIR, "data_columns", "preference pairs can't train an sft stage"),
        (messages(), "data_no_answer", "messages is an empty list"),
        ({"messages": "Hi"}, "data_row", "messages is a text; a list of messages is expected"),
        (messages("Hi"), "data_row", "turn 1 of messages is a text; an object with role is expected"),
        (messages(QUESTION), "data_no_answer", "no turn of the assistant: nothing in this row carries loss"),
        (messages(SYSTEM), "data_no_answer", "the row has only a system turn"),
        (messages(QUESTION, SYSTEM, ANSWER), "data_roles", "turn 2 is a system turn; it may only be the first"),
        (messages({"role": "bard", "content": "x"}), "data_roles", "turn 1 of messages has the unknown role 'bard'"),
        (messages({"content": "x"}), "data_roles", "turn 1 of messages has no 'role'; it has 'content'"),
        (answered(None), "data_row", "turn 2 of messages is null where text belongs"),
        (
            answered(["a"]),
            "data_row",
            "turn 2 of messages is a list where text belongs",
        ),
        (
            answered(42),
            "data_row",
            "turn 2 of messages is a number where text belongs",
        ),
        (answered(" \n"), "data_row", "turn 2 of messages is empty"),
        (answered([{"type": "image_url"}]), "data_row", "turn 2 of messages has a part of type 'image_url'"),
        (answered([{"type": "text"}]), "data_row", "turn 2 of messages is null where text belongs"),
        (
            messages(QUESTION, {**ANSWER, "weight": 0}, QUESTION, ANSWER),
            "data_row",
            "turn 2 of messages has weight 0, but the trainers learn every answer",
        ),
        (
            messages(QUESTION, {**ANSWER, "train": False}),
            "data_row",
            "turn 2 of messages has train False, but the trainers learn every answer",
        ),
        (
            messages(QUESTION, {"role": "assistant", "function_call": {"name": "f"}}),
            "data_row",
            "turn 2 of messages has a function_call, which chat templates leave out",
        ),
        ({"messages": None}, "data_columns", "the columns 'messages' (null) fit no known format"),
        ({"prompt": "Hi", "completion": {"a": 1}}, "data_roles", "turn 1 of completion has no 'role'; it has 'a'"),
        ({"instruction": "Hi", "output": ""}, "data_row", "output is empty"),
    ],
)
def test_a_row_that_cannot_be_used(tmp_path: Path, row: object, id: str, message: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    (problem,) = problems(path)
    assert (problem.id, problem.message, problem.where) == (id, message, f"{path}:1")


def test_half_of_a_character_pair(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "Hi", "completion": "\\ud83d"}\n')
    (problem,) = problems(path)
    assert problem.message == "completion contains half of a character pair ('\\ud83d')"


@pytest.mark.parametrize(
    ("row", "id", "message"),
    [
        (CHAT, "data_columns", "a dpo stage needs pairs, and the columns are 'messages'"),
        ({"chosen": "Hello", "rejected": "No"}, "data_pair", "chosen is an answer without a prompt"),
        (
            {**PAIR, "rejected": [QUESTION]},
            "data_no_answer",
            "rejected does not end with a turn of the assistant",
        ),
        (
            {**PAIR, "rejected": chat("Other", "No")["messages"]},
            "data_pair",
            "chosen and rejected answer different conversations; only their last turn may differ",
        ),
        (
            {"prompt": "Hi", "chosen": "Hello", "rejected": "Hello"},
            "data_pair",
            "chosen and rejected are equal, so there is nothing to prefer",
        ),
        ({"prompt": "Hi", "chosen": "Hello", "rejected": [["No"]]}, "data_row", "turn 1 of rejected is a list;"),
    ],
)
def test_a_pair_that_cannot_be_used(tmp_path: Path, row: object, id: str, message: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    (problem,) = problems(path, kind=Kind.dpo)
    assert problem.id == id
    assert problem.message.startswith(message)


def test_a_file_that_no_format_fits_is_refused_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "once"}] * 5)
    assert [problem.where for problem in problems(path)] == [f"{path}:1"]


def test_rows_inside_one_object_are_named(tmp_path: Path) -> None:
    (problem,) = problems(write_lines(tmp_path / "a.json", [{"version": 1, "data": [CHAT, CHAT]}]))
    assert problem.id == "data_columns" and str(problem.cure).endswith("jq -c '.data[]'")


def test_two_kinds_of_rows_in_one_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CHAT, CHAT, {"instruction": "Hi", "output": "Hello"}])
    (problem,) = problems(path)
    assert (problem.id, problem.where) == ("data_mixed", f"{path}:3")
    assert problem.message == "this is a row of alpaca, and the rows before it are chat"


def test_the_first_faults_are_shown_together(tmp_path: Path) -> None:
    broken = {"messages": [QUESTION]}
    path = write_lines(tmp_path / "a.jsonl", [CHAT, broken, CHAT, broken, broken])
    assert [problem.where for problem in problems(path)] == [f"{path}:{line}" for line in (2, 4, 5)]


@pytest.mark.parametrize("content", ["", "\n\n", "[]"])
def test_a_file_without_rows(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    assert [problem.id for problem in problems(path)] == ["data_empty"]
