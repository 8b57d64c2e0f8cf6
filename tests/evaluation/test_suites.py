"""What `tasks=` may name, and what identifies it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.evaluation.demo_suite import ensure_demo_suite
from launch.evaluation.suites import TULU3_SPECS, digest_spec, find_specs


def test_names_groups_and_folders_can_be_mixed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.yaml").write_text("task: mine\n")
    specs = find_specs(f"gsm8k, {own},tulu3", tmp_path / "cache")
    assert specs[0].names == ("gsm8k",) and specs[0].folder is None
    assert specs[1].names == () and specs[1].folder == own
    assert specs[2:] == TULU3_SPECS


@pytest.mark.parametrize(
    ("tasks", "problem"), [("", "bad_value"), (" , ", "bad_value"), ("./nowhere", "no_task_files")]
)
def test_what_names_no_task_is_refused(tasks: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        find_specs(tasks, tmp_path)
    assert refused.value.problems[0].id == problem


def test_own_tasks_are_identified_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: mine\n")
    (before,) = find_specs(f"{tmp_path}/", tmp_path)
    digest = digest_spec(before)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "mine.pyc").write_bytes(b"1")
    assert digest_spec(before) == digest
    (tmp_path / "mine.yaml").write_text("task: mine\nnum_fewshot: 1\n")
    assert digest_spec(before) != digest


def test_both_orders_of_the_demo_have_the_same_words(tmp_path: Path) -> None:
    folder = ensure_demo_suite(tmp_path)
    rows = [json.loads(line) for line in (folder / "demo_order.jsonl").read_text().splitlines()]
    assert len(rows) == 100
    for row in rows:
        sentence, shuffled = (choice.split() for choice in row["choices"])
        assert sorted(sentence) == sorted(shuffled) and sentence != shuffled
        assert (sentence[0], sentence[-1]) == (shuffled[0], shuffled[-1])
    assert ensure_demo_suite(tmp_path) == folder
