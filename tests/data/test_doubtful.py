"""Texts that may not be what was meant are named: names of empty values, and repeated prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.kinds import Kind
from launch.data.structure import read_structure
from tests.data.files import chat, local, write_csv, write_lines


@pytest.mark.parametrize("value", ["nan", "NaN", "NULL", "None", "<NA>", "#N/A", " null "])
def test_the_name_of_an_empty_value_is_named_with_its_column(tmp_path: Path, value: str) -> None:
    rows = [["instruction", "input", "output", "note"], ["Count.", value, "1", value]]
    path = write_csv(tmp_path / "a.csv", [*rows, ["Count on.", "from 1", "2", "x"]])
    described = read_structure(local(path)).describe()
    assert f"{value.strip()!r} in input (1 row), first: {path}:2" in described
    assert "in note (1 row), first" not in described  # which is not used


def test_a_label_that_is_a_word_is_no_empty_value(tmp_path: Path) -> None:
    row = {"prompt": "Hi", "completion": "Hello", "label": "none"}
    path = write_lines(tmp_path / "a.jsonl", [row])
    columns = {"label": "label:some/none"}
    assert "empty" not in read_structure(local(path, kind=Kind.kto, columns=columns)).describe()


@pytest.mark.parametrize(("echoes", "is_named"), [(2, True), (1, False), (0, False)])
def test_answers_that_begin_with_their_prompt_are_named(
    tmp_path: Path, echoes: int, is_named: bool
) -> None:
    rows = [chat("What is salt?", "What is salt? A mineral.")] * echoes
    rows += [chat("What is salt?", "A mineral.")] * (3 - echoes)
    path = write_lines(tmp_path / "a.jsonl", rows)
    described = read_structure(local(path)).describe()
    assert ("begin with their whole prompt" in described) == is_named


def test_both_sides_of_a_pair_may_repeat_the_prompt(tmp_path: Path) -> None:
    row = {"prompt": "Hi you", "chosen": "Hi you\nHello", "rejected": "Hi you\nNo"}
    path = write_lines(tmp_path / "a.jsonl", [row])
    described = read_structure(local(path, kind=Kind.dpo)).describe()
    assert (
        f"the answers of 1 row begin with their whole prompt, which is learnt too (first: {path}:1)"
        in described
    )


def test_an_answer_that_begins_with_the_only_word_of_its_prompt_is_not_named(
    tmp_path: Path,
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [chat("Hello", "Hello, you!")])
    assert "whole prompt" not in read_structure(local(path)).describe()
