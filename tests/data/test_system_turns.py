"""data.system_turns=merge: where the text of a system turn goes, and what can't go with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.config.schema import TrainOn
from launch.data.conversion import Conversion
from launch.data.structure import read_structure
from launch.errors import UserError
from tests.conftest import machine_in, planned, problem_ids
from tests.data.files import local, write_lines

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "Who?"}
ANSWERED = {"role": "assistant", "content": "Me."}
OTHER = {"role": "assistant", "content": "You."}
MERGED = {"role": "user", "content": "Be brief.\n\nWho?"}


def merged(folder: Path, row: dict[str, Any], kind: Kind = Kind.sft) -> dict[str, Any]:
    data = local(write_lines(folder / "a.jsonl", [row]), kind=kind)
    data = replace(data, merges_system_turns=True)
    [(_, columns)] = Conversion(data).rows(data.files.paths)
    return columns


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([SYSTEM, ASKED, ANSWERED], [MERGED, ANSWERED]),
        ([ASKED, ANSWERED], [ASKED, ANSWERED]),
        # an answer follows: the text is a turn of its own
        ([SYSTEM, ANSWERED], [{"role": "user", "content": "Be brief."}, ANSWERED]),
        ([{**SYSTEM, "content": ""}, ASKED, ANSWERED], [ASKED, ANSWERED]),
        # the other keys of a user turn stay
        ([SYSTEM, {**ASKED, "name": "Eva"}, ANSWERED], [{**MERGED, "name": "Eva"}, ANSWERED]),
    ],
)
def test_the_text_is_above_that_of_the_first_user_turn(
    tmp_path: Path, turns: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert merged(tmp_path, {"messages": turns})["messages"] == expected


@pytest.mark.parametrize("turns", [[SYSTEM, ASKED, ANSWERED], [SYSTEM, ANSWERED]])
def test_the_marks_stay_with_their_turns(tmp_path: Path, turns: list[dict[str, Any]]) -> None:
    """A row of two answers, of which the second is learnt."""
    rows = [{"messages": [*turns, ASKED, {**ANSWERED, "train": True}]}]
    rows[0]["messages"][len(turns) - 1] = {**ANSWERED, "train": False}
    data = local(write_lines(tmp_path / "a.jsonl", rows))
    data = replace(data, merges_system_turns=True, train_on=TrainOn.marked)
    [(_, columns)] = Conversion(data).rows(data.files.paths)
    assert [role["role"] for role in columns["messages"]][-2:] == ["user", "assistant"]
    assert columns["trained_turns"] == [False] * (len(columns["messages"]) - 1) + [True]


def test_every_shape_has_its_system_turns_merged(tmp_path: Path) -> None:
    alpaca = {"instruction": "Who?", "output": "Me.", "system": "Be brief."}
    assert merged(tmp_path, alpaca)["messages"] == [MERGED, ANSWERED]
    pair = {"prompt": [SYSTEM, ASKED], "chosen": [ANSWERED], "rejected": [OTHER]}
    assert merged(tmp_path, pair, Kind.dpo) == {
        "chosen": [MERGED, ANSWERED],
        "rejected": [MERGED, OTHER],
    }
    prompt = {"prompt": [SYSTEM, ASKED], "ground_truth": "Me.", "dataset": "math"}
    assert merged(tmp_path, prompt, Kind.rlvr)["prompt"] == [MERGED]


def test_what_only_a_system_turn_can_have_is_not_lost(tmp_path: Path) -> None:
    row = {"messages": [{**SYSTEM, "functions": "[]"}, ASKED, ANSWERED]}
    with pytest.raises(UserError) as refused:
        merged(tmp_path, row)
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("data_roles", f"{tmp_path / 'a.jsonl'}:1")
    assert "functions" in problem.message


def test_the_plan_says_so_and_stages_other_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"messages": [SYSTEM, ASKED, ANSWERED]}] * 3)
    data = local(path)
    merging = replace(data, merges_system_turns=True)
    note = "the system turns of 3 rows are put into the first user turn"
    assert note in read_structure(merging).describe()
    assert "system turns of" not in read_structure(data).describe()
    assert merging.key != data.key
    line = ("stage=sft", f"data.mix=[{{name: {path}}}]", "allow=[data_small_epoch]")
    plans = [
        planned(*line, *more, machine=machine_in(tmp_path))
        for more in ((), ("data.system_turns=merge",))
    ]
    assert plans[0].identity != plans[1].identity


@pytest.mark.parametrize(
    "line",
    [
        ("stage=sft",),
        ("stage=dpo", "trainer=trl_dpo", "gpus=1"),
        ("stage=rlvr", "trainer=grpo_fast", "gpus=8", "data.mix=[{name: ./prompts.jsonl}]"),
    ],
)
def test_rows_that_launch_does_not_convert_are_refused(
    tmp_path: Path, line: tuple[str, ...]
) -> None:
    prompt = {"prompt": [SYSTEM, ASKED], "ground_truth": "Me.", "dataset": "math"}
    write_lines(tmp_path / "prompts.jsonl", [prompt] * 400)
    machine = machine_in(tmp_path)
    found = problem_ids(*line, "data.system_turns=merge", machine=machine)
    assert set(found) == {"system_turns_not_staged"}
