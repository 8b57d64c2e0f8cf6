"""Rows in shapes that launch does not convert: none of them trains something else in silence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import DataFormat, Kind
from launch.data.draft import read_for_draft
from launch.data.row_errors import path_of_text
from launch.data.structure import read_structure
from launch.errors import UserError
from launch.worker.finding import Finding
from tests.data.files import chat, converted, local, problems, write_lines

Row = dict[str, Any]
ASKED = "What is salt?"
ANSWERED = "A mineral."


def refusal(path: Path, columns: dict[str, str] | None = None) -> Finding:
    """What `new` refuses in a file."""
    with pytest.raises(UserError) as refused:
        read_for_draft(path, columns or {})
    [problem] = refused.value.problems
    return problem


# columns beside a prompt that may hold its answers, and those that are named
ANSWERS: tuple[tuple[Row, list[str]], ...] = (
    ({"query": ASKED, "answers": '[{"name": "find"}]'}, ["answers"]),
    ({"kind": "x", "input": ASKED, "target": ANSWERED}, ["target"]),
    (
        {"question": ASKED, "response_j": ANSWERED, "response_k": "No."},
        ["response_j", "response_k"],
    ),
    ({"prompt": ASKED, "completions": [ANSWERED, "No."], "labels": [True, False]}, ["completions"]),
    (
        {"question": ASKED, "solution": "x", "thinking": ["y"], "attempt": ANSWERED},
        ["solution", "attempt"],
    ),
    (
        {"prompt": ASKED, "answers": [{"answer": ANSWERED, "rank": 1}], "num_responses": 1},
        ["answers"],
    ),
)


def test_a_sentence_beside_a_prompt_may_answer_it(tmp_path: Path) -> None:
    for answer in ({"query": "SELECT a FROM b"}, {"text": ANSWERED}, {"pos": [ANSWERED]}):
        row = {"question": ASKED, "topic": "sea", "system": "Be kind.", **answer}
        path = write_lines(tmp_path / "a.jsonl", [row])
        problem = refusal(path)
        [name] = answer
        assert problem.id == "data_columns" and re.findall(r"'(\w+)'", problem.message) == [name]
        column = f"{name}{path_of_text(answer[name])}"
        assert read_for_draft(path, {"completion": column}).kind == Kind.sft
        assert read_for_draft(path, {}, Kind.rlvr).kind == Kind.rlvr


@pytest.mark.parametrize(("row", "named"), ANSWERS)
def test_answers_of_unknown_names_do_not_make_a_stage_of_prompts(
    tmp_path: Path, row: Row, named: list[str]
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    problem = refusal(path)
    assert (problem.id, problem.where) == ("data_columns", f"{path}:1")
    assert re.findall(r"'(\w+)'", problem.message) == named
    # each way of the cure works
    assert read_for_draft(path, {}, Kind.rlvr).kind == Kind.rlvr
    first = read_for_draft(path, {"completion": f"{named[-1]}{path_of_text(row[named[-1]])}"})
    assert first.kind == Kind.sft
    if len(named) == 2:
        pair = dict(zip(("chosen", "rejected"), named, strict=True))
        assert read_for_draft(path, pair).kind == Kind.dpo


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"input": ASKED, "target": ANSWERED}, "target"),
        (ANSWERS[2][0], "MY_COLUMN"),
        (ANSWERS[3][0], "completions.0"),
        (ANSWERS[5][0], "answers.0.answer"),
        (
            {"question": ASKED, "answers": {"text": [ANSWERED], "answer_start": [0]}},
            "answers.text.0",
        ),
    ],
)
def test_the_cure_names_one_column_or_the_first_answer_of_a_list(
    tmp_path: Path, row: Row, column: str
) -> None:
    cure = str(refusal(write_lines(tmp_path / "a.jsonl", [row])).cure)
    assert f"--columns completion={column})" in cure


def test_a_worse_answer_is_never_named_as_the_one_to_learn(tmp_path: Path) -> None:
    for name in ("rejected", "wrong_answer", "incorrect_answers"):
        cure = str(
            refusal(write_lines(tmp_path / "a.jsonl", [{"prompt": ASKED, name: "No, never."}])).cure
        )
        assert "--columns completion=MY_COLUMN" in cure


def test_prompts_are_prompts(tmp_path: Path) -> None:
    for extra in ({}, {"source": "web"}, {"ground_truth": "4", "solution": "2 + 2"}):
        path = write_lines(tmp_path / "a.jsonl", [{"prompt": ASKED, **extra}])
        assert read_for_draft(path, {}).kind == Kind.rlvr


# rows that are refused, the id, and what the cure names
REFUSED: tuple[tuple[Row, str, str], ...] = (
    ({"message_id": "1", "text": ASKED, "role": "prompter"}, "data_columns", "the list messages"),
    (
        {"system": "Be kind.", "chat": f"USER: {ASKED}\n\n\nASSISTANT: {ANSWERED}"},
        "data_columns",
        "'chat'",
    ),
    ({"id": "7", "data": [ASKED, ANSWERED]}, "data_columns", "prompt=MY_COLUMN"),
    ({"system": "Be kind.", "chat": ANSWERED}, "data_columns", "prompt=MY_COLUMN"),
    ({"messages": [{"role": "user", "text": ASKED}]}, "data_row", "role and content"),
    ({"messages": [{"speaker": "user", "content": ASKED}]}, "data_roles", "role and content"),
    ({"question": ASKED, "answer": True}, "data_row", "'.answer |= tostring'"),
    (chat(ASKED, [{"type": "tool_use", "name": "f"}]), "data_row", "tool_calls"),
    (chat(ASKED, [{"functionCall": {"name": "f"}}]), "data_row", "tool_calls"),
    (chat(ASKED, [{"type": "thinking", "thinking": "Hm"}]), "data_row", "reasoning_content"),
    (chat(ASKED, [{"type": "image"}]), "data_row", "only text"),
    ({"contents": "A story."}, "data_row", "data.format=text"),
)


@pytest.mark.parametrize(("row", "id", "cure"), REFUSED)
def test_the_cure_fits_what_the_row_holds(tmp_path: Path, row: Row, id: str, cure: str) -> None:
    [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]))
    assert problem.id == id and cure in str(problem.cure)


def test_a_row_that_is_a_text_is_unpacked_by_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(json.dumps(chat(ASKED, ANSWERED))) + "\n", encoding="utf-8")
    [problem] = problems(path)
    assert problem.id == "data_row" and "jq -c fromjson" in str(problem.cure)


def test_the_conversation_that_a_pair_answers_is_named(tmp_path: Path) -> None:
    asked = chat(ASKED, ANSWERED)["messages"][:1]
    row = {"trajectory": asked, "chosen": ANSWERED, "rejected": "No."}
    path = write_lines(tmp_path / "a.jsonl", [row])
    [problem] = problems(path, kind=Kind.dpo)
    assert problem.id == "data_pair" and "data.columns.prompt=trajectory" in str(problem.cure)
    [pair] = converted(path, kind=Kind.dpo, columns={"prompt": "trajectory"})
    assert pair["chosen"] == chat(ASKED, ANSWERED)["messages"]


# texts of turns with the marks of a template or a transcript
RENDERED = (
    f"<|im_start|>user\n{ASKED}<|im_end|>\n",
    f"<s>[INST] {ASKED} [/INST]",
    f"Below is a task.\n\n### Instruction:\n{ASKED}\n\n### Response:\n",
    f"The conversation.\n[|Human|] {ASKED}\n[|AI|] {ANSWERED}\n[|Human|] ",
    f"### Human: {ASKED}### Assistant: ",
    f"Talk.\nHuman: {ASKED}\nAssistant: ",
    f"USER: {ASKED} ASSISTANT: {ANSWERED}",
    f"Assistant: {ANSWERED}",
    f"{ASKED}\n\n###\n\n",
    f"{ASKED}\n<extra_id_1>Assistant\n{ANSWERED}\n<extra_id_1>User\n{ASKED}",
    f"<|prompter|>{ASKED}</s><|assistant|>",
    f"<human>: {ASKED}\n<bot>:",
    f"GPT4 Correct User: {ASKED}<|end_of_turn|>GPT4 Correct Assistant:",
    f"<|User|>{ASKED}<|Assistant|>",
    f"[Human]\n{ASKED}",
    f"User 1: {ASKED}\nUser 2: {ANSWERED}",
    f"Hi.\nPerson A: {ASKED}\nPerson B: {ANSWERED}",
    f"<<SYS>>\nBe kind.\n<</SYS>> {ASKED}",
)
# texts that only write about such things
PROSE = (
    "In HTML <model> is no element, and <user> neither.",
    "The human: a being. The system: a set of parts.",
    "## Response\nWrite to the assistant [now].",
    "<think>What is salt?</think>",
    "Step 1: open the file.\nStep 2: read it.\nA user 1: or 2.",
)


@pytest.mark.parametrize("text", RENDERED)
def test_turns_that_are_rendered_already_are_named(tmp_path: Path, text: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [chat(text, ANSWERED)] * 3)
    described = read_structure(local(path)).describe()
    assert re.search(rf"3 rows hold marks .*{path}:1", described)


@pytest.mark.parametrize("text", PROSE)
def test_prose_has_no_marks(tmp_path: Path, text: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [chat(text, ANSWERED)] * 3)
    assert "hold marks" not in read_structure(local(path)).describe()


def test_results_of_tools_that_are_rendered_already_are_named(tmp_path: Path) -> None:
    turns = [*chat(ASKED, "I look.")["messages"], {"role": "tool", "content": "<tool_response>4"}]
    path = write_lines(tmp_path / "a.jsonl", [{"messages": turns}])
    assert "'<tool_response>'" in read_structure(local(path)).describe()


@pytest.mark.parametrize(("plain", "is_named"), [(18, True), (19, True), (20, False)])
def test_few_rows_may_write_about_templates(tmp_path: Path, plain: int, is_named: bool) -> None:
    rows = [chat(f"{number}?", ANSWERED) for number in range(plain)]
    path = write_lines(tmp_path / "a.jsonl", [*rows, chat(RENDERED[0], ANSWERED)])
    assert ("hold marks" in read_structure(local(path)).describe()) == is_named


def test_plain_text_keeps_its_marks_and_its_column_is_used(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": RENDERED[0], "url": "far.example"}])
    [row] = converted(path, form=DataFormat.text)
    assert row == {"text": RENDERED[0]}
    described = read_structure(local(path, form=DataFormat.text)).describe()
    assert described.endswith("columns that are not used: 'url'")


# columns that may say which answers are good ones, or hold one
UNUSED: tuple[Row, ...] = (
    {"helpfulness": 4, "verbosity": 0.5},
    {"annotations": {"rating": "4"}},
    {"thinking_trajectories": ["Well..."]},
    {"conversation": [{"role": "user", "content": "Another one"}]},
    {"history": '[["Before?", "Yes."]]'},
    {"label": "A"},  # which a turn holds as a letter alone
)


@pytest.mark.parametrize("columns", UNUSED)
def test_columns_that_are_no_texts_are_named(tmp_path: Path, columns: Row) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**chat(ASKED, ANSWERED), **columns}])
    listed = ", ".join(map(repr, columns))
    assert f"columns that are not used: {listed}" in read_structure(local(path)).describe()
