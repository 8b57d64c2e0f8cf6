"""Checks which answers a trainer learns: rows of its data are tokenised and found in what it trains
on, and their tokens with a label are decoded.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..columns import MASKED, PACKED, iter_batches
from ..samples import parse_tools
from ..trl_data import TEXT
from ..trl_options import LEARNS_TEXT
from ..turns import choose_answers, find_learnt
from ..wording import count_of
from . import Evidence
from .tokenised import spread_rows

LEARNT = "train_on"
_HOW = "the labels of rows in what is trained on, decoded"


@dataclass(frozen=True)
class TrainedTokens:
    """A part of what is trained on: documents, one after the other."""

    ids: Any  # (tokens,)
    loss: Any  # (tokens,), whether each has a label
    lengths: Any  # (documents,)


@dataclass(frozen=True)
class _Row:
    """A row of the data, or a piece of one, as it has to be trained on."""

    ids: tuple[int, ...]
    source: Mapping[str, Any]
    is_whole: bool


def check_learnt(
    sources: Iterable[Any],
    trained: Iterable[TrainedTokens],
    tokenizer: Any,
    requested: str | None,
    limit: str | None,
) -> list[Evidence]:
    """Return the evidence "train_on", from some rows of each data set.

    `sources` are the data sets before they are tokenised; `limit` is the requested maximum length
    of a row in tokens.
    """
    if requested is None:
        return []
    if tokenizer is None:
        return [Evidence(LEARNT, None, "no tokenizer was found").judge(requested, None)]
    most = None if limit is None else int(limit)
    rows: list[_Row] = []
    for source in sources:
        for number in spread_rows(len(source)):
            rows += _tokenise(source[number], tokenizer, requested, most)
    found = find_rows(trained, [row.ids for row in rows])
    faults = []
    compared = 0
    for row, loss in zip(rows, found, strict=True):
        if loss is None and requested != LEARNS_TEXT:  # a filter may have left the row out
            continue
        compared += 1
        fault = _judge_row(row, loss, tokenizer, requested)
        if fault is not None:
            faults.append(fault)
    if not compared:
        how = f"none of {count_of(len(rows), 'row')} was found in what is trained on"
        return [Evidence(LEARNT, None, how).judge(requested, None)]
    if faults:
        value = f"{faults[0]} ({len(faults)} of {count_of(compared, 'row')})"
        return [Evidence(LEARNT, value, _HOW).judge(requested, False)]
    note = f"{compared} of {count_of(len(rows), 'row')} found and decoded"
    return [Evidence(LEARNT, requested, _HOW, note=note).judge(requested, True)]


def _tokenise(
    row: Mapping[str, Any], tokenizer: Any, requested: str, limit: int | None
) -> Iterator[_Row]:
    """Yield the forms in which a row may be trained on: whole, or cut at either end.

    Plain text yields its pieces.
    """
    if requested == LEARNS_TEXT:
        text = row[TEXT]
        end = tokenizer.eos_token
        ids = tokenizer(text if text.endswith(end) else text + end)["input_ids"]
        step = limit or len(ids)
        for start in range(0, len(ids), step):
            yield _Row(tuple(ids[start : start + step]), row, False)
        return
    ids = tokenizer.apply_chat_template(
        row["messages"], tools=parse_tools(row.get("tools")), tokenize=True, return_dict=True
    )["input_ids"]
    if limit is None or len(ids) <= limit:
        yield _Row(tuple(ids), row, True)
        return
    yield _Row(tuple(ids[:limit]), row, False)
    yield _Row(tuple(ids[-limit:]), row, False)


def _judge_row(
    row: _Row, loss: Sequence[bool] | None, tokenizer: Any, requested: str
) -> str | None:
    """Return what is wrong with the labels of a row; None if they are as requested."""
    if loss is None:
        return f"a part of {len(row.ids)} tokens of a text is not trained on"
    if requested == LEARNS_TEXT:
        learnt_tokens = sum(loss)
        if learnt_tokens == len(loss):
            return None
        return f"{learnt_tokens} of {len(loss)} tokens of a text"
    due = choose_answers(row.source, requested)
    tools = parse_tools(row.source.get("tools"))
    learnt = find_learnt(tokenizer, row.source["messages"], row.ids, loss, tools)
    if learnt == due:
        return None
    if not row.is_whole and None not in learnt and set(learnt) <= set(due):
        return None
    names = [str(number + 1) if number is not None else "none" for number in learnt]
    turns = ", ".join(str(number + 1) for number in due)
    return f"turn {', '.join(names) or 'none'} of a row whose turn {turns} is to be learnt"


def find_rows(
    trained: Iterable[TrainedTokens], wanted: Sequence[tuple[int, ...]]
) -> list[list[bool] | None]:
    """Return, for each of `wanted`, which tokens have a label in the first document that is equal
    to it; None where there is no such document.
    """
    import numpy

    missing: dict[int, list[int]] = {}  # numbers in `wanted` by length
    for number, ids in enumerate(wanted):
        missing.setdefault(len(ids), []).append(number)
    arrays = [numpy.asarray(ids) for ids in wanted]
    found: list[list[bool] | None] = [None] * len(wanted)
    for part in trained:
        starts = numpy.cumsum(part.lengths) - part.lengths
        has_wanted_length = numpy.isin(part.lengths, list(missing))
        for start, length in zip(
            starts[has_wanted_length], part.lengths[has_wanted_length], strict=True
        ):
            document = part.ids[start : start + length]
            numbers = missing[int(length)]
            equal = [number for number in numbers if numpy.array_equal(document, arrays[number])]
            for number in equal:
                found[number] = part.loss[start : start + length].tolist()
                numbers.remove(number)
    return found


def read_dataset(dataset: Any) -> Iterator[TrainedTokens]:
    """Yield the documents of a tokenised data set: its rows, or what TRL has packed into them."""
    import numpy

    if not {"input_ids", "labels"} <= set(getattr(dataset, "column_names", None) or ()):
        return
    packed = [name for name in dataset.column_names if name == PACKED]
    for batch in iter_batches(dataset, ["input_ids", "labels", *packed]):
        ids = batch.column("input_ids")
        lengths = numpy.diff(ids.offsets.to_numpy())
        if packed:
            lengths = batch.column(PACKED).flatten().to_numpy()
        loss = batch.column("labels").flatten().to_numpy() != MASKED
        yield TrainedTokens(ids.flatten().to_numpy(), loss, lengths)


def read_numpy(folder: Path, dtype: Any) -> Iterator[TrainedTokens]:
    """Yield the documents of open-instruct's tokenised numpy files, whose tokens have `dtype`
    (numpy_dataset_conversion.py:322-344).
    """
    import numpy

    for tokens in sorted(folder.glob("token_ids_part_*.npy")):
        labels = tokens.with_name(tokens.name.replace("token_ids", "labels_mask"))
        with gzip.open(tokens.with_suffix(".csv.gz"), "rt", encoding="utf-8") as stream:
            places = numpy.array([[int(row[0]), int(row[1])] for row in csv.reader(stream)])
        yield TrainedTokens(
            numpy.memmap(tokens, mode="r", dtype=dtype),
            numpy.memmap(labels, mode="r", dtype=numpy.bool_),
            places[:, 1] - places[:, 0],
        )
