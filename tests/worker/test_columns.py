"""Lengths read from the Arrow table of a tokenised data set, and the file that tokenising writes of
them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.planning.lengths import load_lengths
from launch.worker import columns
from launch.worker.channel import EventWriter
from launch.worker.columns import build_content, write, write_lengths

datasets = pytest.importorskip("datasets", reason="the `train` dependencies are not installed")

ROWS = [
    ([5, 6, 7, 8], [-100, -100, 7, 8]),
    ([1, 2], [1, 2]),
    ([9, 9, 9], [-100, 9, -100]),
    ([4], [4]),
]


def chats(repeats: int = 1) -> datasets.Dataset:
    rows = ROWS * repeats
    return datasets.Dataset.from_dict(
        {"input_ids": [ids for ids, _ in rows], "labels": [labels for _, labels in rows]}
    )


def pairs() -> datasets.Dataset:
    ids, labels = zip(*ROWS, strict=True)
    rows = {"chosen_input_ids": ids, "chosen_labels": labels}
    return datasets.Dataset.from_dict(
        {**rows, "rejected_input_ids": ids[::-1], "rejected_labels": labels[::-1]}
    )


def test_of_chats() -> None:
    read = columns.read_lengths(chats())
    assert read.tokens() == read.padded() == [4, 2, 3, 1]
    assert read.loss_tokens == (2, 1, 1, 0)  # nothing predicts a first token


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("rows", [2, 10_000])
def test_of_some_in_another_order(labels: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_CHUNK_ROWS", rows)
    both = datasets.concatenate_datasets([chats(700), chats(3)])  # two chunks of Arrow's
    shuffled = both.shuffle(seed=5).select(range(2000)).with_format("torch")
    read = columns.read_lengths(shuffled if labels else shuffled.remove_columns("labels"))
    expected = [len(ids) for ids in shuffled.with_format(None)["input_ids"]]
    assert read.tokens() == expected
    by_length = {4: 2, 2: 1, 3: 1, 1: 0}
    assert read.loss_tokens == (tuple(by_length[length] for length in expected) if labels else None)


def test_of_pairs() -> None:
    read = columns.read_lengths(pairs())
    assert read.halves == ((4, 2, 3, 1), (1, 3, 2, 4))
    assert read.tokens() == [5, 5, 5, 5]
    assert read.padded() == [8, 6, 6, 8]
    assert read.loss_tokens == (2, 2, 2, 2)


def test_what_is_not_tokenised_is_refused() -> None:
    with pytest.raises(ValueError, match="its columns are messages"):
        columns.read_lengths(datasets.Dataset.from_dict({"messages": ["hello"]}))


def test_the_lengths_of_a_streamed_data_set_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They serve the next plan: the run goes on."""
    write_lengths(tmp_path / "lengths.json", chats().to_iterable_dataset(), EventWriter(None, 0))
    assert (
        "the dataset is streamed: its rows are tokenised during training" in capsys.readouterr().err
    )
    assert not (tmp_path / "lengths.json").exists()


def test_the_planner_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "lengths.json"
    write(path, build_content(columns.read_lengths(chats())))
    lengths = load_lengths(path)
    assert lengths is not None
    assert (lengths.kind.value, lengths.tokens.counts, lengths.label_tokens) == (
        "sft",
        ((1, 1), (2, 1), (3, 1), (4, 1)),
        4,
    )
    assert [each.name for each in path.parent.iterdir()] == ["lengths.json"]
    write(path, build_content(columns.read_lengths(pairs())))
    lengths = load_lengths(path)
    assert lengths is not None and lengths.longer is not None
    assert (lengths.kind.value, lengths.samples, lengths.tokens.longest, lengths.longer.total) == (
        "dpo",
        4,
        5,
        14,
    )
    assert lengths.pairs == ((4, 1), (2, 3), (3, 2), (1, 4))


def test_of_many_pairs_some_are_kept() -> None:
    read = columns.SampleLengths((tuple(range(1, 10_001)), tuple(range(1, 10_001))), None)
    content = json.loads(json.dumps(build_content(read)))
    assert content["label_tokens"] is None
    assert 3000 < len(content["pairs"]) <= 4096
    assert content["pairs"][0] == [1, 1] and content["pairs"][-1][0] > 9990
