"""Sides of a pair that name an answer are read as that answer, and refused where it is not certain."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import read_for_draft
from tests.data.files import converted, problems, write_csv, write_lines

Row = dict[str, Any]
BETTER = "Water boils at 100 degrees."
WORSE = "It never boils."
ASKED = {"prompt": "When does water boil?"}


def answers(*names: str) -> Row:
    return {**ASKED, **dict(zip(names, (BETTER, WORSE), strict=True))}


@pytest.mark.parametrize(
    "row",
    [
        {**answers("response_a", "response_b"), "chosen": "a", "rejected": "b"},
        {**answers("response_b", "response_a"), "chosen": "B", "rejected": " A "},
        {**answers("answer_2", "answer_1"), "chosen": 2, "rejected": 1},
        {**answers("output_0", "output_1"), "chosen": 0.0, "rejected": 1.0},
        {**answers("completion_1", "completion_2"), "chosen": "model_1", "rejected": "model_2"},
        {**answers("response_b", "response_a"), "chosen": "response_b", "rejected": "Response_A"},
        {**answers("response_b", "response_a"), "chosen": "Response B", "rejected": "Response A"},
        {**answers("qwen-7b", "old.model"), "chosen": "qwen-7b", "rejected": "old.model"},
        {**answers("gold", "noisy"), "chosen": "gold", "rejected": "noisy"},
    ],
)
def test_a_named_answer_is_learnt(tmp_path: Path, row: Row) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])
    [pair] = converted(path, kind=Kind.dpo)
    assert [pair[side][-1]["content"] for side in ("chosen", "rejected")] == [BETTER, WORSE]
    assert "not used" not in read_for_draft(path, {}).structure.describe()


def test_an_answer_that_a_table_names_is_learnt(tmp_path: Path) -> None:
    rows = [list(answers("response_a", "response_b")), list(answers("x", "y").values())]
    rows[0] += ["chosen", "rejected"]
    rows[1] += ["a", "b"]
    [pair] = converted(write_csv(tmp_path / "a.csv", rows), kind=Kind.dpo)
    assert pair["chosen"][-1]["content"] == BETTER


@pytest.mark.parametrize(
    "row",
    [
        {**ASKED, "chosen": "100", "rejected": "7"},
        {**ASKED, "chosen": "Yes", "rejected": "No", "responses": ["Yes", "No"]},
        {**answers("response_a", "response_b"), "chosen": "Hot.", "rejected": "Cold."},
        # the letter of a choice that the prompt shows
        {"prompt": "Hot or cold?\nA. hot\nB. cold", "A": "hot", "B": "cold"}
        | {"chosen": "A", "rejected": "B"},
        {**ASKED, "chosen": "A", "rejected": "A B", "model": "small"},
        {**ASKED, "chosen": "Vitamin C", "rejected": "Vitamin D", "responses": [BETTER, WORSE]},
    ],
)
def test_a_short_answer_is_an_answer(tmp_path: Path, row: Row) -> None:
    [pair] = converted(write_lines(tmp_path / "a.jsonl", [row]), kind=Kind.dpo)
    sides = [pair[side][-1]["content"] for side in ("chosen", "rejected")]
    assert sides == [row["chosen"], row["rejected"]]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"responses": [BETTER, WORSE], "chosen": 0, "rejected": 1}, "responses"),
        ({"completions": [BETTER, WORSE], "chosen": "0", "rejected": "1"}, "completions"),
        ({"answers": {"x": BETTER, "y": WORSE}, "chosen": "x", "rejected": "y"}, "answers"),
    ],
)
@pytest.mark.skipif(not shutil.which("jq"), reason="the cure is a jq command")
def test_a_place_in_a_list_is_refused_and_its_cure_works(
    tmp_path: Path, row: Row, named: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**ASKED, **row}])
    [problem] = problems(path, kind=Kind.dpo)
    assert problem.id == "data_pair" and f"name answers in {named}" in problem.message
    program = str(problem.cure).split("'")[1]
    text = subprocess.check_output(["jq", "-c", program, str(path)], text=True)
    [pair] = converted(write_lines(tmp_path / "b.jsonl", [json.loads(text)]), kind=Kind.dpo)
    assert [pair[side][-1]["content"] for side in ("chosen", "rejected")] == [BETTER, WORSE]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**answers("response_1", "response_2"), "chosen": 0, "rejected": 1}, "response_1 or"),
        ({**answers("response_a", "response_b"), "chosen": "1", "rejected": "2"}, "response_a or"),
        (
            {**answers("response_a", "response_b"), "model_a": "big", "model_b": "small"}
            | {"chosen": "big", "rejected": "small"},
            "answers of these models",
        ),
    ],
)
def test_names_that_fit_no_answer_are_refused(tmp_path: Path, row: Row, words: str) -> None:
    [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]), kind=Kind.dpo)
    assert problem.id == "data_pair" and words in str(problem.cure)
