"""Marks of turns that say what is learnt: which answers a row's marks choose, and which rows are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import DataFormat, Kind
from launch.config.schema import TrainOn
from launch.data.conversion import Conversion
from launch.data.structure import read_structure
from launch.errors import UserError
from launch.worker.finding import Finding
from launch.worker.turns import TRAINED_TURNS
from tests.data.files import CHAT, local, write_lines

FIRST, SECOND = {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}
ASKED = {"role": "user", "content": "?"}


def row(first: dict[str, Any], second: dict[str, Any], **asked: Any) -> dict[str, Any]:
    return {"messages": [ASKED | asked, FIRST | first, ASKED, SECOND | second]}


def convert_row(folder: Path, content: Any, train_on: TrainOn, kind: Kind = Kind.sft) -> Any:
    data = local(write_lines(folder / "a.jsonl", [content]), kind=kind)
    data = replace(data, train_on=train_on)
    [(_, columns)] = Conversion(data).rows(data.files.paths)
    return columns


def refusal(folder: Path, content: Any, train_on: TrainOn, kind: Kind = Kind.sft) -> Finding:
    with pytest.raises(UserError) as refused:
        convert_row(folder, content, train_on, kind)
    [problem] = refused.value.problems
    assert problem.where == f"{folder / 'a.jsonl'}:1"
    return problem


@pytest.mark.parametrize(
    ("content", "learnt"),
    [
        (row({"weight": 0}, {"weight": 1}), (False, True)),
        (row({"train": True}, {"train": False}), (True, False)),
        (row({"train_on_turn": True}, {"train_on_turn": True}), (True, True)),
        (row({"training": 1}, {"training": 0}), (True, False)),
        (row({"loss": False}, {"loss": True}), (False, True)),
        (row({"loss_mask": 0}, {"loss_mask": 1.0}), (False, True)),
        (row({"output_with_loss": False}, {"output_with_loss": True}), (False, True)),
        (row({"mask": True}, {"mask": False}), (False, True)),  # of what is left out
        (row({"mask": 1}, {"train": True}), (False, True)),
        (row({"train": True, "weight": 1}, {"weight": 0}, train=False), (True, False)),
        (
            {
                "conversations": [
                    {"input": "?", "output": "a", "train": False},
                    {"input": "?", "output": "b", "train": True},
                ]
            },
            (False, True),
        ),
    ],
)
def test_marks_of_other_tools_choose_answers(
    tmp_path: Path, content: Any, learnt: tuple[bool, bool]
) -> None:
    columns = convert_row(tmp_path, content, TrainOn.marked)
    assert columns[TRAINED_TURNS] == [False, learnt[0], False, learnt[1]]
    keys = {key for turn in columns["messages"] for key in turn}
    assert keys == {"role", "content"}  # a template sees no mark


@pytest.mark.parametrize(
    ("content", "train_on", "id", "texts"),
    [
        (row({"train": True}, {}), TrainOn.marked, "data_marks", ("turn 4",)),
        (row({}, {"weight": 1}), TrainOn.marked, "data_marks", ("turn 2",)),
        (row({}, {}), TrainOn.marked, "data_marks", ("weight",)),
        (row({"train": False}, {"train": False}), TrainOn.marked, "data_no_answer", ()),
        (row({"weight": 0.5}, {"weight": 1}), TrainOn.marked, "data_marks", ("0.5", "turn 2")),
        (row({"train": "yes"}, {"train": 1}), TrainOn.marked, "data_marks", ("'yes'",)),
        (
            row({"train": True, "mask": True}, {"train": True}),
            TrainOn.marked,
            "data_marks",
            ("train, mask",),
        ),
        (row({"train": 1}, {"train": 1}, train=True), TrainOn.marked, "data_marks", ("user",)),
        (row({"train_detail": [{"begin_offset": 0}]}, {}), TrainOn.all, "data_marks", ()),
        (row({"mask": True}, {}), TrainOn.all, "data_marks", ("mask: true",)),
        (row({"loss": 0}, {}), TrainOn.all, "data_marks", ("loss: 0",)),
        (row({}, {}, loss_mask=1), TrainOn.all, "data_marks", ("user",)),
        (row({}, {"weight": 0}), TrainOn.last, "data_marks", ("turn 4", "=last")),
        (
            {
                "conversations": [
                    {"from": "human", "value": "?"},
                    {"from": "gpt", "value": "a", "train": False},
                    {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
                ]
            },
            TrainOn.all,
            "data_marks",
            ("differ",),
        ),
    ],
)
def test_marks_that_cannot_be_followed_are_named(
    tmp_path: Path, content: Any, train_on: TrainOn, id: str, texts: tuple[str, ...]
) -> None:
    problem = refusal(tmp_path, content, train_on)
    assert problem.id == id
    assert [text for text in texts if text not in problem.message] == []
    assert problem.cure is not None


def test_the_cure_of_a_marked_answer_learns_the_others(tmp_path: Path) -> None:
    content = row({"weight": 0}, {"weight": 1})
    problem = refusal(tmp_path, content, TrainOn.all)
    assert problem.cure is not None
    assert [action.sets for action in problem.cure.actions] == [("data.train_on=marked",)]
    assert convert_row(tmp_path, content, TrainOn.marked)[TRAINED_TURNS][3]
    # where other answers have no mark, they need one
    problem = refusal(tmp_path, row({"weight": 0}, {}), TrainOn.all)
    assert "mark each answer" in str(problem.cure)


def test_marks_of_answers_that_are_not_learnt_do_not_matter(tmp_path: Path) -> None:
    assert TRAINED_TURNS not in convert_row(tmp_path, row({"weight": 0}, {}), TrainOn.last)
    marked_end = FIRST | {"weight": 0}
    pair = {"prompt": "?", "chosen": [FIRST], "rejected": [SECOND]}
    assert convert_row(tmp_path, pair, TrainOn.all, Kind.dpo)["chosen"][-1] == FIRST
    problem = refusal(tmp_path, {**pair, "chosen": [marked_end]}, TrainOn.all, Kind.dpo)
    assert problem.id == "data_marks" and "chosen" in problem.message


def test_the_description_counts_marked_answers(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row({"train": True}, {"train": False})] * 3)
    data = replace(local(path), train_on=TrainOn.marked)
    assert "3 of 6 answers are marked to be learnt" in read_structure(data).describe()
    assert data.key != local(path).key


def test_plain_text_is_taken_as_it_is(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": " Some text.\n", "id": "x"}, {"text": "b"}])
    data = local(path, form=DataFormat.text)
    assert [columns for _, columns in Conversion(data).rows(data.files.paths)] == [
        {"text": " Some text.\n"},
        {"text": "b"},
    ]
    described = read_structure(data).describe()
    assert "2 rows read: text" in described and "turns" not in described
    assert "'id' (in 1 row)" in described


@pytest.mark.parametrize(
    ("content", "id"),
    [({"text": "  "}, "data_row"), ({"text": 4}, "data_row"), (CHAT, "data_columns")],
)
def test_rows_without_text_are_named(tmp_path: Path, content: Any, id: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [content])
    data = local(path, form=DataFormat.text)
    with pytest.raises(UserError) as refused:
        list(Conversion(data).rows(data.files.paths))
    assert refused.value.problems[0].id == id


def test_text_that_is_not_requested_is_refused_with_the_key(tmp_path: Path) -> None:
    problem = refusal(tmp_path, {"text": "Some text."}, TrainOn.all)
    assert problem.id == "data_columns" and "data.format=text" in str(problem.cure)


def test_the_cure_of_a_row_without_a_marked_answer_does_not_ask_for_marks(tmp_path: Path) -> None:
    problem = refusal(tmp_path, row({"weight": 0}, {"weight": 0}), TrainOn.all)
    assert problem.id == "data_marks" and "train_on" not in str(problem.cure)
