"""The cure of a row that fits no format names what the row has, and works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import read_for_draft
from launch.errors import UserError
from launch.worker.finding import Finding
from tests.data.files import CHAT, PAIR, chat, converted, problems, write_lines

Row = dict[str, Any]


@pytest.mark.parametrize(
    ("row", "result"),
    [
        ({"body": {**CHAT, "model": "m"}, "id": "1"}, CHAT),
        ({"prompt": CHAT["messages"]}, CHAT),
        ({"messages": CHAT["messages"][:1], "output": "Hello"}, CHAT),
        ({"pair": {"en": "Hi", "de": "Hello"}}, chat("Hi", "Hello")),
        ({"Frage": "Hi", "Antwort": "Hello"}, chat("Hi", "Hello")),
        ({"dialogue": "Ann: Hi.", "summary": "Ann greets."}, chat("Ann: Hi.", "Ann greets.")),
        ({"question": {"id": 7, "text": "Hi"}, "answer": "Hello"}, chat("Hi", "Hello")),
        (
            {"question": {"kind": "eli5", "full_text": "Hi you"}, "answer": "Yes"},
            chat("Hi you", "Yes"),
        ),
        # names that ask and that answer, among others
        ({"id": "7", "inputs": "Hi", "targets": "Hello", "lang": "en"}, chat("Hi", "Hello")),
        (
            {"problem": "Hi", "kind": "x", "solution": "Hello you", "answer": "5"},
            chat("Hi", "Hello you"),
        ),
        ({"id": 1, "article": "A b.", "highlights": ["Hello"]}, chat("A b.", "Hello")),
        ({"context": CHAT["messages"][:1], "response1": "Hello"}, CHAT),
        ({"context": CHAT["messages"][:1], "response": "Hello"}, CHAT),
        ({"context": CHAT["messages"], "n": 1}, CHAT),
        ({"text": "Hi", "id": 4, "code": "Hello"}, chat("Hi", "Hello")),
        # spaces, hyphens and dots in names
        ({"User prompt": "Hi", "n": 1, "model-response": "Hello"}, chat("Hi", "Hello")),
        ({"x.question": "Hi", "x.answer": "Hello", "x.id": "7"}, chat("Hi", "Hello")),
        # choices are no answers
        (
            {"inputs": [1], "inputs_pretokenized": "Hi", "answer_choices": ["Hello", "No"]}
            | {"targets": [2], "targets_pretokenized": "Hello"},
            chat("Hi", "Hello"),
        ),
        ({"question": "Hi", "query": "Hello you", "db_id": "x"}, chat("Hi", "Hello you")),
    ],
)
def test_the_columns_of_the_cure_work(tmp_path: Path, row: Row, result: Row) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    [problem] = problems(path)
    named = dict(re.findall(r"data\.columns\.(\w+)=([\w.-]+)", str(problem.cure)))
    assert converted(path, columns=named) == [result]


def test_sides_of_a_pair_are_named_by_their_own_columns(tmp_path: Path) -> None:
    row = {"prompt": "Hi", "chosen": {"body": "Hello", "n": 1}, "rejected": {"body": "No", "n": 0}}
    path = write_lines(tmp_path / "a.jsonl", [row])
    [problem] = problems(path, kind=Kind.dpo)
    assert "data.columns.chosen=chosen.body" in str(problem.cure)
    columns = {"chosen": "chosen.body", "rejected": "rejected.body"}
    assert converted(path, kind=Kind.dpo, columns=columns) == [PAIR]


@pytest.mark.parametrize(
    ("row", "cure"),
    [
        (
            {"path": "a.txt", "lang": "en", "body": "A long story."},
            "data.format=text data.columns.text=body",
        ),
        ({"input_ids": [1, 2], "labels": [-100, 2]}, "texts that they were made of"),
        ({"inputs": "Hi", "solution": "one two", "reply": "three four"}, "prompt=MY_COLUMN"),
    ],
)
def test_the_cure_names_the_other_ways(tmp_path: Path, row: Row, cure: str) -> None:
    [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]))
    assert problem.id == "data_columns" and cure in str(problem.cure)


def test_what_is_not_clear_is_not_guessed(tmp_path: Path) -> None:
    for row in (
        # a name that the line cannot have, and a column that is no text
        {"my=question": "Hi", "solution": "Hello", "n": 1},
        {"question": 5, "solution": "Hello", "n": 1},
        {"a": "Hi", "b": "Hello", "c": "x"},
        {"a": {"b": "Hi", "n": 1}, "c": "Hello"},
    ):
        [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]))
        assert "data.columns.prompt=MY_COLUMN" in str(problem.cure)


def refuse_text(folder: Path, name: str, text: str) -> Finding:
    """What `new` refuses in a file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {})
    [problem] = refused.value.problems
    return problem


@pytest.mark.parametrize(
    "text", ['{\n  "prompt": "Hi"\n}\n', '{"prompt": "Hi",\n "answer": "x"}\n']
)
def test_an_object_over_many_lines_is_one_problem_with_the_command(
    tmp_path: Path, text: str
) -> None:
    problem = refuse_text(tmp_path, "a.jsonl", text)
    assert (problem.id, problem.where) == ("data_not_parsed", f"{tmp_path / 'a.jsonl'}:1")
    assert "jq -c ." in str(problem.cure)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (("text_chosen", "text_rejected"), ("text_chosen", "text_rejected")),
        (("good_answer", "bad_answer"), ("good_answer", "bad_answer")),
        (("response_k", "response_j"), ("response_j", "response_k")),
        (("worse", "better"), ("better", "worse")),
    ],
)
def test_a_better_and_a_worse_answer_are_named_as_a_pair(
    tmp_path: Path, columns: tuple[str, str], named: tuple[str, str]
) -> None:
    row = {columns[0]: "One text.", columns[1]: "Another text."}
    for each in (row, {"prompt": "Hi", **row}):
        path = write_lines(tmp_path / "a.jsonl", [each])
        with pytest.raises(UserError) as refused:
            read_for_draft(path, {})
        cure = str(refused.value.problems[0].cure)
        assert f"--columns chosen={named[0]},rejected={named[1]}" in cure


@pytest.mark.parametrize(
    "row",
    [
        {"conv_id": "1", "context": "sad", "prompt": "A b.", "speaker_idx": 1, "utterance": "C d."},
        {"dialogue_id": "1", "speaker": "USER", "text": "A b."},
        {"message_id": "1", "role": "prompter", "text": "A b."},
    ],
)
def test_a_row_that_is_one_turn_is_named(tmp_path: Path, row: Row) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {})
    assert "as the list messages of one row" in str(refused.value.problems[0].cure)


def test_a_prompt_that_is_a_whole_conversation_takes_no_other_column_as_its_answer(
    tmp_path: Path,
) -> None:
    row = {"topic": "the blue sea", "input": "A chat.\n[|Human|] Hi\n[|AI|] Hello\n[|Human|] "}
    path = write_lines(tmp_path / "a.jsonl", [row])
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {})
    [problem] = refused.value.problems
    assert problem.id == "data_row" and "'[|Human|]'" in problem.message
    assert "topic" not in str(problem.cure)


def test_a_line_that_is_cut_off_is_not_an_object_over_many_lines(tmp_path: Path) -> None:
    problem = refuse_text(tmp_path, "a.jsonl", '{"prompt": "Hi", "comp')
    assert "jq" not in str(problem.cure)


def test_a_list_that_python_printed_is_named(tmp_path: Path) -> None:
    row = {"messages": str(CHAT["messages"]), "summary": "Two greet each other."}
    [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]))
    assert problem.id == "data_row" and "json.dumps" in str(problem.cure)


def test_pairs_of_any_shape_train_no_sft_stage(tmp_path: Path) -> None:
    for row in (PAIR, {"conversation_a": [], "conversation_b": [], "winner": "model_a"}):
        [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]))
        assert (problem.id, "dpo" in str(problem.cure)) == ("data_columns", True)
