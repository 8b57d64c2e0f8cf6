"""A stage is chosen by the rows that have values, and not by an empty first row alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import read_for_draft
from launch.data.first_rows import FirstRows
from launch.data.rows import read_rows
from launch.errors import UserError
from launch.planning.local_rows import read_local_rows
from launch.worker.finding import Finding
from tests.data.files import problems, write_csv, write_lines

Row = dict[str, Any]
ASKED = {"question": "What is hot?"}
SUN = "The sun is."


def refusal(path: Path, columns: dict[str, str] | None = None, kind: Kind | None = None) -> Finding:
    with pytest.raises(UserError) as refused:
        read_for_draft(path, columns or {}, kind)
    return refused.value.problems[0]


@pytest.mark.parametrize(
    ("empty", "answer", "column"),
    [
        ({"target": None}, {"target": SUN}, "target"),
        ({"target": "  "}, {"target": SUN}, "target"),
        ({}, {"target": SUN}, "target"),
        ({"answers": []}, {"answers": [SUN]}, "answers.0"),
        ({"answers": [""]}, {"answers": [SUN]}, "answers.0"),
        (
            {"answers": {"text": [], "start": []}},
            {"answers": {"text": [SUN], "start": [3]}},
            "answers.text.0",
        ),
        # the first row has as many columns as the others
        ({"note": 1, "solution": None}, {"solution": SUN}, "solution"),
    ],
)
def test_an_empty_answer_in_the_first_rows_is_no_rlvr(
    tmp_path: Path, empty: Row, answer: Row, column: str
) -> None:
    rows = [{**ASKED, **empty}] * 2 + [{**ASKED, **answer}] * 4
    path = write_lines(tmp_path / "a.jsonl", rows)
    problem = refusal(path)
    assert (problem.id, problem.where) == ("data_columns", f"{path}:3")
    assert f"--columns completion={column}" in str(problem.cure)
    data = read_for_draft(path, {"completion": column})  # the cure
    assert (data.kind, data.structure.read) == (Kind.sft, 4)
    assert "2 of 6 rows can't be used" in data.structure.describe()
    named = refusal(path, kind=Kind.sft)
    assert f"completion={column}" in str(named.cure)
    assert read_for_draft(path, {}, Kind.rlvr).kind == Kind.rlvr


def test_an_empty_cell_of_a_table_is_no_rlvr(tmp_path: Path) -> None:
    rows = [["question", "solution"], ["What is hot?", ""], ["What is hot?", SUN]]
    assert "completion=solution" in str(refusal(write_csv(tmp_path / "a.csv", rows)).cure)


def test_a_named_answer_is_sft_even_where_the_first_rows_have_none(tmp_path: Path) -> None:
    rows: list[object] = [{**ASKED, "target": None}] * 1100
    path = write_lines(tmp_path / "a.jsonl", [*rows, {**ASKED, "target": SUN}])
    problem = refusal(path, {"completion": "target"})
    assert problem.id == "data_columns"  # so many rows have no answer
    few = write_lines(tmp_path / "b.jsonl", [*rows[:900], {**ASKED, "target": SUN}])
    assert read_for_draft(few, {"completion": "target"}).kind == Kind.sft


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([{"completion": None}, {"completion": SUN}], Kind.sft),
        ([{"chosen": SUN, "rejected": ""}, {"chosen": SUN, "rejected": "No"}], Kind.dpo),
        ([{"chosen": None, "rejected": None}, {"chosen": SUN, "rejected": "No"}], Kind.dpo),
        ([{"completion": SUN, "label": None}, {"completion": SUN, "label": True}], Kind.kto),
        ([{"ground_truth": None}, {"ground_truth": "4"}], Kind.rlvr),
    ],
)
def test_other_kinds_are_found_too(tmp_path: Path, rows: list[Row], kind: Kind) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "Hi", **row} for row in rows])
    assert read_for_draft(path, {}).kind == kind
    local = read_local_rows(path)
    assert local is not None and local.kind == kind


def test_pairs_of_nulls_are_named(tmp_path: Path) -> None:
    empty = {"prompt": "Hi", "chosen": None, "rejected": None}
    path = write_lines(tmp_path / "a.jsonl", [{**empty, "chosen": SUN, "rejected": "No"}, empty])
    [problem] = problems(path, kind=Kind.dpo)
    assert (problem.id, problem.message) == ("data_pair", "chosen and rejected are empty")


@pytest.mark.parametrize("extra", [{"label": False}, {"rejected": "No"}, {"ground_truth": "4"}])
def test_few_rows_of_another_kind_do_not_decide_for_all(tmp_path: Path, extra: Row) -> None:
    row = {"prompt": "Hi", "completion": SUN}
    path = write_lines(tmp_path / "a.jsonl", [row] * 7 + [{**row, "chosen": "Yes", **extra}] * 3)
    assert read_for_draft(path, {}).kind == Kind.sft


def test_what_a_row_has_is_kept(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"a": 0, "b": None}, {"a": 1, "b": "x", "c": []}])
    first = FirstRows.of(read_rows(path), {})
    assert (first.columns, first.place) == ({"a": 0, "b": "x", "c": []}, f"{path}:2")


ANSWER = {"prompt": "Hi", "completion": "Hello you"}


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        ("label", [-1, 1], "label:1/-1"),
        ("label", [2, 1], "label:2/1"),
        ("feedback", [-1, 0, 1], "feedback:GOOD/BAD"),
        ("chosen", [False, True], "chosen:true/false"),
        ("chosen", ["True", "False"], "chosen:true/false"),
        ("chosen", [0, 1], "chosen:1/0"),
    ],
)
def test_what_may_judge_an_answer_is_asked_about(
    tmp_path: Path, column: str, values: list[object], named: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**ANSWER, column: value} for value in values])
    problem = refusal(path)
    assert problem.id == "data_columns" and f"--columns label={named})" in str(problem.cure)
    assert read_for_draft(path, {}, Kind.sft).structure.read == (
        1 if column == "chosen" else len(values)
    )
    if "GOOD" not in named:
        labels = read_for_draft(path, {"label": named}).structure.labels
        assert labels is not None and (labels.good, labels.bad) == (1, 1)


@pytest.mark.parametrize("values", [[3, 7, 4], [2, 2], [5, 4, 1]])
def test_numbers_of_classes_are_no_labels(tmp_path: Path, values: list[int]) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**ANSWER, "label": value} for value in values])
    assert read_for_draft(path, {}).kind == Kind.sft
