"""The shares of a mixture by rows and by the tokens that are learnt."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launch.data.samples import LengthsBySide
from launch.data.staging import stage
from launch.errors import UserError
from launch.execution.mixture_shares import (
    count_training_rows,
    describe_shares_by_tokens,
    share_mixture,
    split_merged,
)
from launch.execution.template_errors import write_whole
from launch.planning.mixture import MixtureEntry
from launch.planning.plan import Plan
from tests.conftest import machine_in, planned
from tests.data.files import CHAT, chat, write_lines


def lengths(*learnt: int | None, kept: Sequence[bool] = (), tokens: int = 100) -> LengthsBySide:
    side = {"messages": tuple(tokens for _ in learnt)}
    return LengthsBySide(
        places=tuple(f"a:{number}" for number, _ in enumerate(learnt, 1)),
        kept=tuple(kept or (True for _ in learnt)),
        tokens=side,
        untruncated=side,
        loss={"messages": learnt},
    )


@pytest.fixture
def entries(tmp_path: Path) -> Sequence[MixtureEntry]:
    """Two files of 6 and 4 rows, half of the second."""
    write_lines(tmp_path / "a.jsonl", [chat(f"{number}?", "Yes.") for number in range(6)])
    write_lines(tmp_path / "b.jsonl", [chat(f"{number}!", "No.") for number in range(4)])
    mix = "data.mix=[{name: ./a.jsonl}, {name: ./b.jsonl, share: 0.5}]"
    line = ("stage=sft", "trainer=trl_sft", "gpus=1", mix, "allow=[data_small_epoch]")
    return planned(*line, machine=machine_in(tmp_path)).inputs.mixture


def test_long_answers_weigh_more_by_tokens_than_by_rows(entries: Sequence[MixtureEntry]) -> None:
    first, second = share_mixture(entries, [lengths(10, 20), lengths(90, 90)], [6, 4])
    assert (first.rows, second.rows) == (6, 2)
    assert (first.row_share, second.row_share) == (0.75, 0.25)
    assert (first.token_share, second.token_share) == (90 / 270, 180 / 270)
    assert first.describe() == "a.jsonl: 6 rows (75.0%), about 90 tokens learnt (33.3%)"


def test_what_is_not_trained_does_not_count(entries: Sequence[MixtureEntry]) -> None:
    """A row that the trainer drops, and a reward model, which learns of whole sequences."""
    dropped = lengths(10, 30, kept=(True, False))
    rewards = lengths(None, None)
    first, second = share_mixture(entries, [dropped, rewards], [6, 4])
    assert (first.tokens_per_row, second.tokens_per_row) == (5, 100)


def test_without_the_rows_of_one_there_are_no_shares(entries: Sequence[MixtureEntry]) -> None:
    first, second = share_mixture(entries, [lengths(10), lengths(90)], [6, None])
    assert (first.token_share, second.token_share, second.rows) == (None, None, None)
    assert "%" not in first.describe() + second.describe()
    assert "90" in second.describe()
    assert share_mixture(entries[:1], [lengths(10)], [6]) == ()


def test_rows_that_are_held_out_are_not_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [chat(f"{number}?", "Yes.") for number in range(10)])
    held_out = write_lines(tmp_path / "held.jsonl", [CHAT] * 3)
    machine = machine_in(tmp_path)
    line = ("stage=sft", "trainer=trl_sft", "gpus=1", f"data.mix=[{{name: {path}}}]")
    line = (*line, "allow=[data_small_epoch]")
    for validation, rows in ((0.2, 8), (str(held_out), 10)):
        plan = planned(*line, f"data.validation={validation}", machine=machine)
        [entry] = plan.inputs.mixture
        assert entry.data is not None
        whole = write_whole(entry, tmp_path / "whole.jsonl")
        written = [line for file in whole for line in file.read_bytes().splitlines()]
        assert len(written) == 10 + (3 if rows == 10 else 0)
        assert count_training_rows(entry, whole) == rows
        stage(entry.data, machine.digests.of)
        staged = write_whole(entry, tmp_path / "none.jsonl")
        assert staged[0] == entry.data.train_file and count_training_rows(entry, staged) == rows
    hub = replace(entry, data=None, source=replace(entry.source, local=None))
    assert write_whole(hub, tmp_path / "none.jsonl") == () and count_training_rows(hub, ()) is None


def mixed(folder: Path, mix: str) -> Plan:
    line = ("stage=sft", "trainer=trl_sft", "gpus=1", mix, "allow=[data_small_epoch]")
    return planned(*line, machine=machine_in(folder))


@pytest.mark.parametrize(
    ("proportion", "shares"),
    [((50, 50), (1.0, 2 / 3)), ((70, 30), (1.0, 2 / 7)), ((1, 9), (1 / 6, 1.0))],
)
def test_shares_are_set_by_tokens(
    tmp_path: Path, proportion: Sequence[float], shares: Sequence[float]
) -> None:
    """600 rows of 10 learnt tokens, and 100 of 90."""
    write_lines(tmp_path / "a.jsonl", [chat(f"{number}?", "Yes.") for number in range(600)])
    write_lines(tmp_path / "b.jsonl", [chat(f"{number}!", "No.") for number in range(100)])
    plan = mixed(tmp_path, "data.mix=[{name: ./a.jsonl}, {name: ./b.jsonl}]")
    [staged] = plan.inputs.mixture
    entries = split_merged(staged)
    assert [len(entry.data.files.paths) for entry in entries if entry.data] == [1, 1]
    counted = [lengths(10, 10), lengths(90, 90)]
    mixture = share_mixture(entries, counted, [600, 100])
    described = describe_shares_by_tokens(plan.config.data.mix, mixture, proportion)
    [override] = shlex.split(described.partition(": ")[2])
    followed = mixed(tmp_path, override).inputs.mixture
    assert [entry.share for entry in followed] == pytest.approx(shares, abs=1e-3)
    learnt = share_mixture(followed, counted, [600, 100])
    expected = proportion[0] / sum(proportion)
    assert learnt[0].token_share == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("rows", "proportion"), [(None, (1, 1)), (4, (1, 1, 1)), (4, (1,))])
def test_shares_that_cannot_be_set_by_tokens_are_refused(
    entries: Sequence[MixtureEntry], tmp_path: Path, rows: int | None, proportion: Sequence[float]
) -> None:
    mix = mixed(tmp_path, "data.mix=[{name: ./a.jsonl}, {name: ./b.jsonl}]").config.data.mix
    mixture = share_mixture(entries, [lengths(10), lengths(90)], [6, rows])
    with pytest.raises(UserError) as refused:
        describe_shares_by_tokens(mix, mixture, proportion)
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("usage", "command line")
