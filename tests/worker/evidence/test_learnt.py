"""The evidence of what is learnt: labels of a trainer's data that are right, and labels that are not."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets", reason="the `train` dependencies are not installed")

import datasets

from launch.worker.columns import MASKED
from launch.worker.evidence import PROVEN, REFUTED, UNPROVEN, Evidence
from launch.worker.evidence.learnt import check_learnt, read_dataset, read_numpy
from launch.worker.turns import TRAINED_TURNS, choose_answers, keep_answers
from tests.chat_tokenizer import make_tokenizer
from tests.worker.test_turns import CHATS, TEMPLATES, chat, tokenise

LIMIT = "150"


def tokenizer() -> Any:
    return make_tokenizer(TEMPLATES["tulu"])


def rows(learns: str) -> list[dict[str, Any]]:
    made = []
    for texts in CHATS.values():
        row: dict[str, Any] = {"messages": chat(texts)}
        if learns == "marked":
            row[TRAINED_TURNS] = [False, True, False, False, False, True]
        made.append(row)
    return made


def trained(learns: str, kept: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """What a trainer trains on that keeps these answers; None: those that it should."""
    reader = tokenizer()
    made = []
    for row in rows(learns):
        ids, labels = tokenise(reader, row["messages"])
        chosen = choose_answers(row, learns) if kept is None else kept
        made.append(
            {
                "input_ids": ids,
                "labels": keep_answers(reader, row["messages"], ids, labels, chosen),
            }
        )
    return made


def judge(learns: str, dataset: Any, sources: Sequence[Any], limit: str | None = None) -> Evidence:
    [evidence] = check_learnt(sources, read_dataset(dataset), tokenizer(), learns, limit)
    return evidence


def pack(made: Sequence[dict[str, Any]]) -> Any:
    """All rows in one, as TRL's packing writes them."""
    joined = {}
    for name in ("input_ids", "labels"):
        joined[name] = [list(chain.from_iterable(row[name] for row in made))]
    lengths = [[len(row["input_ids"]) for row in made]]
    return datasets.Dataset.from_dict({**joined, "seq_lengths": lengths})


@pytest.mark.parametrize("learns", ["last", "marked"])
@pytest.mark.parametrize(
    ("kept", "verdict"),
    [(None, PROVEN), ([1, 3, 5], REFUTED), ([1], REFUTED), ([3], REFUTED), ([], REFUTED)],
    ids=str,
)
def test_other_answers_than_those_that_are_due_are_refuted(
    learns: str, kept: Sequence[int] | None, verdict: str
) -> None:
    made = trained(learns, kept)
    for dataset in (datasets.Dataset.from_list(made), pack(made)):
        evidence = judge(learns, dataset, [rows(learns)])
        assert evidence.verdict == verdict, evidence
        if verdict == PROVEN:
            assert evidence.value == learns and str(evidence.note).startswith("3 of 3")


def test_rows_that_are_cut_are_compared_as_far_as_they_go() -> None:
    made = [{name: ids[: int(LIMIT)] for name, ids in row.items()} for row in trained("marked")]
    dataset = datasets.Dataset.from_list(made)
    assert judge("marked", dataset, [rows("marked")], LIMIT).verdict == PROVEN
    others = [
        {name: ids[: int(LIMIT)] for name, ids in row.items()} for row in trained("marked", [3])
    ]
    assert judge("marked", datasets.Dataset.from_list(others), [rows("marked")], LIMIT).verdict == (
        REFUTED
    )


def test_rows_that_are_not_there_prove_nothing() -> None:
    dataset = datasets.Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[1, 2]]})
    assert judge("last", dataset, [rows("last")]).verdict == UNPROVEN
    assert check_learnt([], [], None, None, None) == []


@pytest.mark.parametrize("hidden", [0, 1])
def test_every_token_of_a_text_needs_a_label(hidden: int) -> None:
    reader = tokenizer()
    texts = [{"text": "A short one."}, {"text": "A long one. " * 30}]
    limit = 100
    made = []
    for row in texts:
        ids = reader(row["text"] + reader.eos_token)["input_ids"]
        for start in range(0, len(ids), limit):
            piece = ids[start : start + limit]
            made.append({"input_ids": piece, "labels": [MASKED] * hidden + piece[hidden:]})
    evidence = judge("text", pack(made), [texts], str(limit))
    assert evidence.verdict == (REFUTED if hidden else PROVEN)
    # a piece that was dropped is not counted as found
    evidence = judge("text", pack(made[:-1]), [texts], str(limit))
    assert evidence.verdict == REFUTED


def test_the_numpy_files_of_olmo_core_are_read(tmp_path: Path) -> None:
    import numpy

    for kept, verdict in ((None, PROVEN), ([1], REFUTED)):
        made = trained("last", kept)
        ids = list(chain.from_iterable(row["input_ids"] for row in made))
        mask = [label != MASKED for row in made for label in row["labels"]]
        numpy.array(ids, dtype=numpy.uint16).tofile(tmp_path / "token_ids_part_0000.npy")
        numpy.array(mask, dtype=numpy.bool_).tofile(tmp_path / "labels_mask_part_0000.npy")
        start = 0
        with gzip.open(tmp_path / "token_ids_part_0000.csv.gz", "wt") as stream:
            for row in made:
                end = start + len(row["input_ids"])
                stream.write(f"{start},{end}\n")
                start = end
        documents = read_numpy(tmp_path, numpy.uint16)
        [evidence] = check_learnt([rows("last")], documents, tokenizer(), "last", None)
        assert evidence.verdict == verdict
