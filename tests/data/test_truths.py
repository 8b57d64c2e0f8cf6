"""What answers are verified with is found where other tools write it, and is never an object that no
answer equals.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import read_for_draft
from launch.data.row_errors import RowError
from launch.data.truths import find_truth, read_truth
from tests.data.files import converted, problems, write_lines

Row = dict[str, Any]
VERL = {"ground_truth": "72", "style": "rule"}
IFEVAL = {"instruction_id": ["a"], "kwargs": [{}]}
COUNTDOWN = {"numbers": [1, 2], "target": 3}


@pytest.mark.parametrize(
    ("row", "truth"),
    [
        ({"ground_truth": "72"}, "72"),
        ({"ground_truth": 72}, "72"),
        ({"ground_truth": ["72"]}, "72"),
        ({"ground_truth": VERL}, "72"),
        ({"ground_truth": json.dumps(VERL)}, "72"),
        ({"reward_model": VERL}, "72"),
        ({"ground_truth": "8", "reward_model": VERL}, "8"),
        ({"messages": [], "reference_answer": "72"}, "72"),
        ({"ground_truth": "48 and 24 make 72.\n#### 72"}, "72"),
        ({"ground_truth": "#### the title\nof a text"}, "#### the title\nof a text"),
        ({"reference_answer": "72"}, None),
        ({"reward_model": "a name"}, None),
        ({"reward_model": {"ground_truth": ""}}, None),
        ({"ground_truth": IFEVAL}, json.dumps(IFEVAL)),
        ({"ground_truth": [IFEVAL]}, json.dumps([IFEVAL])),
        (
            {"ground_truth": ["a", "b"], "dataset": "web"},
            '["a", "b"]',
        ),  # open-instruct's verifier's
    ],
)
def test_the_ground_truth_is_a_text(row: Row, truth: str | None) -> None:
    assert read_truth(row, is_compared=True) == truth
    assert (find_truth(row) is None) == (truth is None)


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"ground_truth": COUNTDOWN}, "ground_truth.numbers"),
        ({"reward_model": {"ground_truth": COUNTDOWN}}, "reward_model.ground_truth.numbers"),
        ({"ground_truth": ["a", "b"]}, "ground_truth.0"),
    ],
)
def test_an_object_is_not_compared_with_itself(row: Row, path: str) -> None:
    with pytest.raises(RowError, match="ground_truth is") as refused:
        read_truth(row, is_compared=True)
    assert f"data.columns.ground_truth={path})" in str(refused.value.cure)
    assert read_truth(row, is_compared=False) is not None  # a function of the user's reads JSON


def test_a_function_of_the_user_gets_a_solution_as_it_is() -> None:
    row = {"ground_truth": "It is 72.\n#### 72"}
    assert read_truth(row, is_compared=False) == row["ground_truth"]


def test_rows_of_verl_are_verified_by_their_answer(tmp_path: Path) -> None:
    row = {"data_source": "x", "prompt": [{"role": "user", "content": "Hi"}], "reward_model": VERL}
    path = write_lines(tmp_path / "a.jsonl", [row])
    data = read_for_draft(path, {})
    assert (data.kind, data.verifier) == (Kind.rlvr, "math")
    [found] = converted(path, kind=Kind.rlvr)
    assert (found["ground_truth"], found["reward_model"]) == ("72", VERL)
    named = {"ground_truth": "reward_model"}
    assert converted(path, kind=Kind.rlvr, columns=named)[0]["ground_truth"] == "72"


@pytest.mark.parametrize(
    ("truth", "verifier"),
    [
        (["72"], "math"),
        (["red"], "exact"),
        (IFEVAL, "ifeval"),
        ("48 and 24 make 72.\n#### 72", "math"),
        ("So it is\n$\\boxed{72}$.", "math"),
        ("First read.\nThen write.", "rewards.py:reward"),  # no answer equals so long a text
        (COUNTDOWN, "rewards.py:reward"),
        (["a", "b"], "rewards.py:reward"),
        (json.dumps({"inputs": ["1"], "outputs": ["2"]}), "rewards.py:reward"),
        ("{1, 2}", "exact"),
    ],
)
def test_the_verifier_fits_the_ground_truth(tmp_path: Path, truth: object, verifier: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "Hi", "ground_truth": truth}])
    assert str(read_for_draft(path, {}).verifier).endswith(verifier)


def test_a_row_with_tests_of_a_program_among_answers_is_named(tmp_path: Path) -> None:
    """Half of the rows are of another subject: a comparison would give the right programs 0."""
    tests = {"prompt": "Write it", "ground_truth": json.dumps({"inputs": ["1"], "outputs": ["2"]})}
    rows = [{"prompt": "Hi", "ground_truth": "72"}, tests]
    path = write_lines(tmp_path / "a.jsonl", rows)
    assert read_for_draft(path, {}).verifier == "math"
    [problem] = problems(path, kind=Kind.rlvr)
    assert (problem.id, problem.where) == ("data_row", f"{path}:2")
    assert read_truth(tests, is_compared=False) == tests["ground_truth"]


def test_a_row_with_an_object_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "Hi", "ground_truth": COUNTDOWN}])
    [problem] = problems(path, kind=Kind.rlvr)
    assert (problem.id, problem.where) == ("data_row", f"{path}:1")
    # the cure works
    column = {"ground_truth": "ground_truth.target"}
    assert converted(path, kind=Kind.rlvr, columns=column)[0]["ground_truth"] == "3"
