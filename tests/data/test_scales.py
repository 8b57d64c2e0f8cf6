"""The values that judge answers are of one scale in all rows, or the data is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import read_for_draft
from launch.data.row_errors import parse_json
from launch.errors import UserError
from launch.worker.finding import Finding
from tests.data.files import converted, problems, write_lines

Row = dict[str, Any]
ANSWERS = ("It is four.", "It is five.")


def verdicts(names: str, column: str, values: list[object]) -> list[Row]:
    """Rows with two answers, whose columns are `names`, and these verdicts."""
    answers = dict(zip(names.split(), ANSWERS, strict=True))
    return [
        {"prompt": f"What is 2 + 2? {number}", **answers, column: value}
        for number, value in enumerate(values)
    ]


def labelled(values: list[object], column: str = "label") -> list[Row]:
    return [
        {"prompt": f"Hi {number}", "completion": "Hello you", column: value}
        for number, value in enumerate(values)
    ]


def drafted_problem(path: Path, kind: Kind | None = None) -> Finding:
    with pytest.raises(UserError) as refused:
        read_for_draft(path, {}, kind)
    [problem] = refused.value.problems
    return problem


@pytest.mark.parametrize(
    ("columns", "values", "shown", "first_bad"),
    [
        ("response_1 response_2 preference", [0, 1, 0, 1], "0, 1", 1),
        ("response_1 response_2 winner", ["1", "0"], "0, 1", 2),
        ("response_1 response_2 preference", [1, -1], "-1, 1", 2),
        ("response_1 response_2 preference", [1, 2, -3, 0], "-3, 0, 1, 2", 3),
        ("answer_0 answer_1 better_response_id", [1, 2], "1, 2", 2),
        ("answer_0 answer_1 winner", ["model_1", "model_2"], "model_1, model_2", 2),
        ("response_a response_b preference", [0, 1], "0, 1", 1),
        ("response_a response_b winner", ["1", "2"], "1, 2", 1),
        ("output_1 output_2 preferred", ["a", "b"], "a, b", 1),
        ("output_0 output_1 preferred", [False, True], "false, true", 1),
        ("output_0 output_1 preferred", [0, 0.5, 1.0], "0, 0.5, 1", 2),
    ],
)
def test_verdicts_of_another_scale_are_refused(
    tmp_path: Path, columns: str, values: list[object], shown: str, first_bad: int
) -> None:
    names, _, column = columns.rpartition(" ")
    path = write_lines(tmp_path / "a.jsonl", verdicts(names, column, values))
    problem = drafted_problem(path)
    assert (problem.id, problem.where) == ("data_pair", f"{path}:{first_bad}")
    assert f"{column} has the values {shown}, and" in problem.message
    assert problems(path, kind=Kind.dpo) == problems(path, kind=Kind.dpo, skips=True)


@pytest.mark.skipif(not shutil.which("jq"), reason="the cure is a jq command")
def test_the_cure_of_two_values_names_the_answers(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", verdicts("answer_1 answer_2", "winner", [0, 1]))
    program = str(drafted_problem(path).cure).split("'")[1]
    text = subprocess.check_output(["jq", "-c", program, str(path)], text=True)
    rows = [json.loads(line) for line in text.splitlines()]
    pairs = converted(write_lines(tmp_path / "b.jsonl", rows), kind=Kind.dpo)
    assert [pair["chosen"][-1]["content"] for pair in pairs] == list(ANSWERS)


@pytest.mark.skipif(not shutil.which("jq"), reason="the cure is a jq command")
def test_the_cure_of_a_tie_leaves_it_out(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", verdicts("answer_1 answer_2", "winner", [1, 0, 2]))
    program = str(drafted_problem(path).cure).split("'")[1]
    text = subprocess.check_output(["jq", "-c", program, str(path)], text=True)
    rows = [json.loads(line) for line in text.splitlines()]
    pairs = converted(write_lines(tmp_path / "b.jsonl", rows), kind=Kind.dpo)
    assert [pair["chosen"][-1]["content"] for pair in pairs] == list(ANSWERS)


@pytest.mark.parametrize(
    ("names", "values", "better"),
    [
        ("response_1 response_2", [1, 2.0, "tie", None], (0, 1)),
        ("response_0 response_1", ["1", "0", "both bad"], (1, 0)),
        ("response_a response_b", ["model_b", "A", "tie"], (1, 0)),
    ],
)
def test_ties_beside_a_known_scale_are_left_out(
    tmp_path: Path, names: str, values: list[object], better: tuple[int, ...]
) -> None:
    path = write_lines(tmp_path / "a.jsonl", verdicts(names, "winner", values))
    pairs = converted(path, kind=Kind.dpo, skips=True)
    chosen = [pair["chosen"][-1]["content"] for pair in pairs]
    assert chosen == [ANSWERS[number] for number in better]


def test_a_verdict_beside_written_sides_is_not_judged(tmp_path: Path) -> None:
    row = {"prompt": "Hi", "chosen": "Hello", "rejected": "No"}
    path = write_lines(tmp_path / "a.jsonl", [{**row, "preference": -3, "response_1": "Hello"}])
    assert len(converted(path, kind=Kind.dpo)) == 1


@pytest.mark.parametrize(
    ("values", "shown"),
    [([1, 2], "1, 2"), ([1, -1], "-1, 1"), ([0, 1, -1], "-1, 0, 1"), ([0.0, 0.7, 1], "0, 0.7, 1")],
)
def test_labels_of_another_scale_are_refused(
    tmp_path: Path, values: list[object], shown: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", labelled(values))
    problem = drafted_problem(path, Kind.kto)
    assert problem.id == "data_label" and f"label has the values {shown}, and" in problem.message
    assert problems(path, kind=Kind.kto, skips=True)[0].id == "data_label"
    if len(values) == 2:  # each of both cures works
        good, bad = (value for value in shown.split(", "))
        assert f"--columns label=label:{good}/{bad}" in str(problem.cure)
        rows = converted(path, kind=Kind.kto, columns={"label": f"label:{bad}/{good}"})
        assert [row["label"] for row in rows] == [value == parse_json(bad) for value in values]
