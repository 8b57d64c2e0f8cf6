"""flags.dataset_streaming: the data is bounded by steps, and nothing may need its rows before."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.data.staging import stage
from launch.digests import hash_file
from launch.errors import actions_of
from tests.conftest import machine_in, planned, problems
from tests.data.files import PAIR, chat, write_lines

STREAMED = "flags.dataset_streaming=true"
SFT = ("stage=demo", "trainer=trl_sft", "gpus=1", "data.build=null")
DPO = ("stage=demo_dpo", "trainer=trl_dpo", "gpus=1", "data.build=null")
MINE = "data.mix=[{name: ./mine.jsonl}]"
STEPS = "recipe.max_steps=3"
HUB = "data.mix=[{name: allenai/some-data}]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [chat(f"What is {number}?", "A number.") for number in range(300)]
    write_lines(tmp_path / "mine.jsonl", rows)
    write_lines(tmp_path / "held.jsonl", rows[:1])
    write_lines(tmp_path / "pairs.jsonl", [PAIR] * 300)
    return tmp_path


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_a_folder_of_each_format_is_streamed(folder: Path, suffix: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [chat(f"What is {number}?", "A number.") for number in range(300)]
    if suffix == "jsonl":
        write_lines(folder / "chats" / "a.jsonl", rows)
    elif suffix == "parquet":
        (folder / "chats").mkdir()
        datasets.Dataset.from_list(rows).to_parquet(folder / "chats" / "a.parquet")
    else:
        datasets.Dataset.from_list(rows).save_to_disk(folder / "chats")
    line = (*SFT, "data.mix=[{name: ./chats}]", STEPS, STREAMED)
    plan = planned(*line, machine=machine_in(folder))
    [entry] = plan.inputs.mixture
    assert entry.data is not None and {file.suffix for file in entry.data.files.paths} == {
        f".{suffix}"
    }
    staged = stage(entry.data, hash_file)
    assert staged is not None and staged.train == 300
    # what TRL streams are the staged JSON lines
    assert plan.flags["dataset_name"].value == str(entry.data.folder)


@pytest.mark.parametrize(
    "line",
    [
        (*SFT, MINE, STEPS),
        (*SFT, HUB, STEPS),
        # rows of files that launch stages are held out before
        (*SFT, MINE, STEPS, "data.validation=0.1"),
        (*DPO, "data.mix=[{name: ./pairs.jsonl}]", STEPS),
    ],
)
def test_a_stream_that_steps_bound_is_planned(folder: Path, line: tuple[str, ...]) -> None:
    plan = planned(*line, STREAMED, machine=machine_in(folder))
    assert plan.flags["dataset_streaming"].value is True
    assert planned(*line, machine=machine_in(folder)).identity != plan.identity


@pytest.mark.parametrize(
    ("line", "id", "named"),
    [
        ((*SFT, MINE, "recipe.max_steps=null"), "streaming_without_end", "where the data ends"),
        ((*SFT, MINE, STEPS, "data.fraction=0.5"), "streaming_needs_rows", "0.5"),
        (
            (*SFT, "data.mix=[{name: ./mine.jsonl}, {name: allenai/some-data}]", STEPS),
            "streaming_needs_rows",
            "mixture",
        ),
        ((*SFT, HUB, STEPS, "data.validation=0.1"), "streaming_needs_rows", "data.validation"),
        (
            (*SFT, MINE, STEPS, "data.validation=[{name: ./mine.jsonl, share: 0.1}]"),
            "streaming_needs_rows",
            "mixture",
        ),
        (
            (*SFT, MINE, STEPS, "flags.train_sampling_strategy=group_by_length"),
            "streaming_needs_rows",
            "group_by_length",
        ),
        (
            (*DPO, HUB, STEPS, "flags.precompute_ref_log_probs=true"),
            "streaming_needs_rows",
            "reference",
        ),
        (("stage=demo_rlvr", "trainer=trl_grpo", "gpus=1"), "streaming_needs_rows", "RLVR"),
    ],
)
def test_what_needs_the_rows_is_named_with_the_flag(
    folder: Path, line: tuple[str, ...], id: str, named: str
) -> None:
    machine = machine_in(folder)
    [problem] = problems(*line, STREAMED, machine=machine)
    assert (problem.id, problem.where) == (id, "override flags.dataset_streaming")
    assert named in problem.message
    assert "flags.dataset_streaming" in [str(action) for action in actions_of(problem.cure)]
    # without the stream it is no problem
    planned(*line, machine=machine)


def test_the_stream_of_a_mixture_is_replaced_by_that_of_the_data_set(folder: Path) -> None:
    machine = machine_in(folder)
    [problem] = problems(*SFT, MINE, STEPS, "flags.streaming=true", machine=machine)
    assert problem.id == "stream_of_a_mixture"
    [action] = actions_of(problem.cure)
    assert (action.sets, action.removes) == ((STREAMED,), "flags.streaming")
    planned(*SFT, MINE, STEPS, *action.sets, machine=machine)
