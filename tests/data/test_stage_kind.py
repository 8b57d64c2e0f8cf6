"""The columns of a row choose the kind of stage, and a row that fits two is asked about."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import draft_stage, read_for_draft
from launch.errors import UserError
from launch.worker.finding import Finding
from tests.data.files import CHAT, converted, write_lines

Row = dict[str, Any]
ASKED = CHAT["messages"][:1]
TRUTH = {"ground_truth": "4"}


def refusal(path: Path) -> Finding:
    """What `new` refuses in a file."""
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {})
    [problem] = refused.value.problems
    return problem


@pytest.mark.parametrize(
    "row",
    [
        {**CHAT, **TRUTH},
        {**CHAT, "reward_model": TRUTH},
        {"question": "Hi", "answer": "Hello", **TRUTH},
        {"instruction": "Hi", "output": "Hello", **TRUTH},
        {"prompt": "User: Hi\nAssistant: Hello", **TRUTH},
    ],
)
def test_a_row_with_an_answer_and_a_ground_truth_is_asked_about(tmp_path: Path, row: Row) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    problem = refusal(path)
    assert (problem.id, problem.where) == ("data_columns", f"{path}:1")
    assert "--kind sft" in str(problem.cure) and "--kind rlvr" in str(problem.cure)
    assert read_for_draft(path, {}, Kind.rlvr).kind == Kind.rlvr
    assert read_for_draft(path, {}, verifier="exact").kind == Kind.rlvr
    if "prompt" not in row:
        assert read_for_draft(path, {}, Kind.sft).kind == Kind.sft


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"messages": ASKED, **TRUTH}, Kind.rlvr),
        ({"messages": ASKED, "reference_answer": "4"}, Kind.rlvr),
        ({"prompt": "Hi", **TRUTH}, Kind.rlvr),
        ({"instruction": "Hi", "input": "there", **TRUTH}, Kind.rlvr),
        ({"prompt": "Hi"}, Kind.rlvr),
        ({**CHAT, "reference_answer": ""}, Kind.sft),
        ({"conversation_a": [], "conversation_b": [], "winner": "tie"}, Kind.dpo),
    ],
)
def test_the_columns_choose_the_kind(tmp_path: Path, row: Row, kind: Kind) -> None:
    rows = (
        [row, {**row, "conversation_a": CHAT["messages"], "winner": "model_a"}]
        if kind == Kind.dpo
        else [row]
    )
    if kind == Kind.dpo:
        rows[1]["conversation_b"] = [*ASKED, {"role": "assistant", "content": "No"}]
    assert read_for_draft(write_lines(tmp_path / "a.jsonl", rows), {}).kind == kind


def test_prompts_without_a_ground_truth_are_no_sft_stage(tmp_path: Path) -> None:
    problem = refusal(write_lines(tmp_path / "a.jsonl", [{"messages": ASKED}]))
    assert problem.id == "data_no_answer" and "--kind rlvr" in str(problem.cure)


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"text": "Once."}, ("--text",)),
        (
            {"dialogue": "Ann: Hi.", "summary": "Ann greets."},
            ("prompt=dialogue,completion=summary",),
        ),
        (
            {"question": {"full_text": "Hi"}, "answer_0": "a", "answer_1": "b"},
            ("prompt=question.full_text",),
        ),
    ],
)
def test_the_cure_has_the_options_of_new(
    tmp_path: Path, row: Row, options: tuple[str, ...]
) -> None:
    cure = str(refusal(write_lines(tmp_path / "a.jsonl", [row])).cure)
    assert all(option in cure for option in options)
    assert "data." not in cure


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "response_1": "a b", "response_2": "c d", "preference_strength": -2},
        {"prompt": "Hi", "responses": ["a b", "c d"], "preference_strength": [1, 0]},
    ],
)
def test_where_another_column_says_which_answer_is_better_the_cure_names_it(
    tmp_path: Path, row: Row
) -> None:
    cure = str(refusal(write_lines(tmp_path / "a.jsonl", [row])).cure)
    assert "'preference_strength'" in cure and "chosen=" not in cure


def test_marks_make_a_stage_that_learns_the_marked_answers(tmp_path: Path) -> None:
    first = {"role": "assistant", "content": "No", "weight": 0}
    last = {"role": "assistant", "content": "Yes", "weight": 1}
    path = write_lines(tmp_path / "a.jsonl", [{"messages": [*ASKED, first, *ASKED, last]}] * 3)
    data = read_for_draft(path, {})
    text = draft_stage(data, group="demo", path=None, trainer="trl_sft")
    assert "\n  train_on: marked #" in text and "trl_sft # marks of answers need it" in text
    assert "3 of 6 answers are marked to be learnt" in data.structure.describe()


CHOICES = (
    {"question": "Which?", "choices": ["red", "blue"], "answer": 1},
    {"question": "Which?", "options": ["red", "blue"], "answer": "B"},
    {"question": "Which?", "options": ["red", "blue"], "rationale": "It is.", "correct": "B"},
    {
        "question": "Which?",
        "choices": {"text": ["red", "blue"], "label": ["1", "A"]},
        "answerKey": "A",
    },
    {"question": "Which?", "options": ["red", "blue"], "answer": "b"},
    {"question": "Which?", "choices": ["red", "blue"], "answer": "1"},
    {"question": "Which?", "options": {"A": "red", "B": "blue"}, "answer": "B"},
    {"question": "Which?", "A": "red", "B": "blue", "answer": "B"},
    {"question": "Which?", "option1": "red", "option2": "blue", "answer": 2},
    {"question": "Which?", "option_a": "red", "option_b": "blue", "output": "b"},
    {"question": "Which?", "candidates": '["red", "blue"]', "answer": "1"},
    # names in another case, as the file has them
    {"Question": "Which?", "A": "red", "B": "blue", "Answer": "B"},
    {"question": "Which?", "endings": ["red", "blue"], "correct-answer": 1.0},
    {"question": "Which?", "choices": ["red", "blue"], "answer_index": 1},
)


@pytest.mark.parametrize("row", CHOICES)
@pytest.mark.skipif(shutil.which("jq") is None, reason="the cure is a command of jq")
def test_choices_that_the_prompt_does_not_show_are_written_out_by_the_cure(
    tmp_path: Path, row: Row
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    problem = refusal(path)
    assert problem.id == "data_row"
    program = str(problem.cure).partition("jq -c '")[2].rpartition("'")[0]
    done = subprocess.run(["jq", "-c", program, path], capture_output=True, text=True, check=True)
    written = json.loads(done.stdout)
    rest = {"rationale"} & row.keys()
    assert written.keys() == {"prompt", "completion", *rest}
    assert (written["prompt"], written["completion"]) == ("Which?\nred\nblue", "blue")
    assert read_for_draft(write_lines(path, [written]), {}).kind == Kind.sft


# answers that name a choice, and others: whether the answer is refused
NO_ANSWERS: tuple[tuple[Row, bool], ...] = (
    ({"question": "Which?", "opa": "red", "opb": "blue", "answer": 1}, True),  # from 0, or from 1
    ({"question": "Which?", "options": {"A": "red", "B": "blue"}, "answer": "blue"}, False),
    ({"question": "How many?", "choices": ["red", "blue"], "answer": "12"}, False),
    ({"question": "Which: red or blue?", "A": "red", "B": "blue", "answer": "B"}, False),
    ({"question": "Which?", "a": "red", "b": "blue", "answer": "B"}, False),
    ({"question": "Which?", "a": "red", "b": "blue", "c": "grey", "answer": "b"}, True),
    ({"question": "Which?", "options": "a ) red , b ) blue", "answer": "b"}, True),
    ({"question": "Which?", "options": "['red' 'blue']", "answer": "1"}, True),
    ({"question": "Which?", "options": "['red' 'blue']", "answer": "blue"}, False),
    ({"question": "Which?", "options": "There are some.", "answer": "b"}, False),
    (
        {"instruction": "Which?", "input": "red, blue", "options": ["red", "blue"], "output": "B"},
        False,
    ),
    (
        {"question": "Which?", "context": "red, blue", "options": ["red", "blue"], "output": "B"},
        True,
    ),
)


@pytest.mark.parametrize(("row", "is_refused"), NO_ANSWERS)
def test_an_answer_that_names_a_choice_is_learnt_where_the_prompt_shows_it(
    tmp_path: Path, row: Row, is_refused: bool
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    if is_refused:
        assert refusal(path).id == "data_row"
    else:
        assert read_for_draft(path, {}).kind == Kind.sft


def test_prompts_that_hide_their_choices_are_asked_about(tmp_path: Path) -> None:
    row = {"question": "Which?", "opa": "red", "opb": "blue", "cop": 1, "exp": "The sky is."}
    path = write_lines(tmp_path / "a.jsonl", [row])
    problem = refusal(path)
    assert problem.id == "data_row" and "--kind rlvr" in str(problem.cure)
    assert read_for_draft(path, {}, Kind.rlvr).kind == Kind.rlvr


def test_a_solution_beside_an_answer_is_asked_about(tmp_path: Path) -> None:
    row = {"question": "2 + 3?", "solution": "We add them: 5.", "answer": "5"}
    path = write_lines(tmp_path / "a.jsonl", [row])
    problem = refusal(path)
    assert problem.id == "data_columns"
    for column in ("solution", "answer"):
        assert f"--columns completion={column}" in str(problem.cure)
        assert read_for_draft(path, {"completion": column}).kind == Kind.sft
    assert read_for_draft(path, {}, Kind.sft).kind == Kind.sft
    whole = {"question": "2 + 3?", "solution": "5", **CHAT}
    assert read_for_draft(write_lines(path, [whole]), {}).kind == Kind.sft


def test_choices_that_a_ground_truth_names_are_shown_too(tmp_path: Path) -> None:
    row = {"question": "Which?", "choices": ["red", "blue"], "ground_truth": "B"}
    problem = refusal(write_lines(tmp_path / "a.jsonl", [row]))
    assert problem.id == "data_row" and "ground_truth: .choices[" in str(problem.cure)


def test_choices_that_the_prompt_shows_are_learnt(tmp_path: Path) -> None:
    row = {"question": "Which? A) red B) blue", "choices": ["red", "blue"], "answer": "B"}
    path = write_lines(tmp_path / "a.jsonl", [row])
    assert converted(path)[0]["messages"][1]["content"] == "B"
