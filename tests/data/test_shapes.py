"""Each shape of a public data set is recognised, and nothing of its row is lost in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.data.draft import draft_stage, read_for_draft
from launch.data.structure import read_structure
from tests.data.files import converted, local, write_lines
from tests.data.shapes import SFT, SHAPES, WORSE, Shape

NAMED = "columns that are not used: "


def texts_of(turns: list[dict[str, Any]], roles: tuple[str, ...]) -> str:
    """Everything that a template may write of the turns of these roles."""
    return "\n".join(str(turn) for turn in turns if turn["role"] in roles)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_texts_of_a_row_are_in_the_turns_that_they_belong_to(
    tmp_path: Path, shape: Shape
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [shape.row])
    [row] = converted(path, kind=shape.kind)
    turns = row["messages" if shape.kind == Kind.sft else "chosen"]
    answers = turns if shape.kind == Kind.sft else turns[-1:]
    learned = texts_of(answers, ("assistant",))
    assert all(text in learned for text in shape.learned)
    read = texts_of(turns, ("system", "user", "tool", "environment"))
    read += row.get("tools", "")
    if shape.kind != Kind.sft:
        read += texts_of(turns[:-1], ("assistant",))
    assert all(text in read for text in shape.read)
    if shape.kind != Kind.sft:
        assert row["rejected"][:-1] == turns[:-1]
        assert row["rejected"][-1] == {"role": "assistant", "content": WORSE}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_new_drafts_a_stage_and_names_the_columns_that_it_leaves_out(
    tmp_path: Path, shape: Shape
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [shape.row] * 30)
    kind = None if shape.kind == Kind.dpo else shape.kind
    data = read_for_draft(path, {}, kind)
    assert data.kind == shape.kind
    described = data.structure.describe()
    assert f"{shape.format} (" in described
    listed = ", ".join(map(repr, shape.unused))
    assert (f"{NAMED}{listed}" in described) if shape.unused else (NAMED not in described)
    text = draft_stage(data, group="demo", path=None, trainer=None)
    assert f"- {'demo_dpo' if shape.kind == Kind.dpo else 'demo'} #" in text


def test_a_reward_model_gets_the_same_pairs(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [SHAPES[-1].row])
    assert converted(path, kind=Kind.rm) == converted(path, kind=Kind.dpo)


def test_a_column_that_few_rows_fill_is_named_with_their_number(tmp_path: Path) -> None:
    row = SFT[0].row
    rows = [
        {**row, "id": "", "source": "", "remark": "x" if number < 2 else ""} for number in range(5)
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    assert f"{NAMED}'remark' (in 2 rows)" in read_structure(local(path)).describe()
    path = write_lines(tmp_path / "b.jsonl", [{**row, "remark": f"{n}"} for n in range(5)])
    assert f"{NAMED}'id', 'source', 'remark'" in read_structure(local(path)).describe()


def test_marks_of_answers_are_named(tmp_path: Path) -> None:
    """A mark that is not known may say that an answer is wrong."""
    rows = [
        {"prompt": "Hi", "completion": f"{n}", "label": n % 2, "is_odd": n > 2} for n in range(5)
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    assert f"{NAMED}'label', 'is_odd'" in read_structure(local(path)).describe()


def test_turns_in_a_text_are_used(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"messages": json.dumps(SFT[0].row["messages"])}])
    assert NAMED not in read_structure(local(path)).describe()
