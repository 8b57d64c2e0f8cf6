"""The lengths of the samples of a tokenised `datasets.Dataset`.

They are read from its Arrow table, without tensors, and written for the next plan
(launch/planning/lengths.py).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .channel import EventWriter
from .json_codec import versioned

SFT = ("",)
PAIRS = ("chosen_", "rejected_")  # column prefixes of preference pairs
MASKED = -100  # the label of a token that carries no loss
PACKED = "seq_lengths"  # TRL's column with the lengths of the documents of a packed row
_CHUNK_ROWS = 10_000


@dataclass(frozen=True)
class SampleLengths:
    """The lengths of the samples of a dataset, in its order."""

    # The tokens per sample. Pairs have one tuple for chosen and one for rejected.
    halves: tuple[tuple[int, ...], ...]
    # The tokens per sample that carry loss, in both halves; None without labels.
    loss_tokens: tuple[int, ...] | None

    def tokens(self) -> list[int]:
        """Return the tokens of each sample, both halves."""
        return [sum(sample) for sample in zip(*self.halves, strict=True)]

    def padded(self) -> list[int]:
        """Return the padded tokens of each sample: upstream pads both halves to the longer one
        (dpo_utils.py:1089).
        """
        return [len(sample) * max(sample) for sample in zip(*self.halves, strict=True)]


def read_lengths(dataset: Any) -> SampleLengths:
    """Read the sample lengths of `dataset` and, if it has labels, how many tokens of each sample
    carry loss.

    The label of a sample's first token does not count, because nothing predicts it.

    Raises ValueError for a dataset that is streamed, or that has neither input_ids nor
    chosen_input_ids and rejected_input_ids.
    """
    if not hasattr(dataset, "data"):
        raise ValueError("the dataset is streamed: its rows are tokenised during training")
    names = set(dataset.column_names)
    prefixes = _find_layout(names)
    if prefixes is None:
        raise ValueError(
            f"the dataset is not tokenised: its columns are {', '.join(sorted(names))}"
        )
    has_labels = all(f"{prefix}labels" in names for prefix in prefixes)
    column = "labels" if has_labels else "input_ids"
    lengths_of_columns = []
    loss_of_columns = []
    for prefix in prefixes:
        lengths, loss_tokens = _read_column(dataset, f"{prefix}{column}", has_labels)
        lengths_of_columns.append(lengths)
        loss_of_columns.append(loss_tokens)
    loss = None
    if has_labels:
        loss = tuple(sum(tokens) for tokens in zip(*loss_of_columns, strict=True))
    return SampleLengths(tuple(lengths_of_columns), loss)


def _find_layout(names: Collection[str]) -> tuple[str, ...] | None:
    """Return the prefixes of the `input_ids` columns of a tokenised data set; None if it is not."""
    for layout in (SFT, PAIRS):
        if all(f"{prefix}input_ids" in names for prefix in layout):
            return layout
    return None


def _read_column(dataset: Any, name: str, count: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the length of each list in a column.

    With `count`, the number of entries after the first that are not MASKED is returned too.
    """
    import numpy

    lengths: list[Any] = []
    counts: list[Any] = []
    for rows in _iter_chunks(dataset, name):
        starts = rows.offsets.to_numpy()
        lengths.append(numpy.diff(starts))
        if count:
            counts.append(_count_unmasked(rows.flatten().to_numpy(), starts - starts[0]))
    ordered_counts = tuple(_in_order(dataset, counts)) if count else ()
    return tuple(_in_order(dataset, lengths)), ordered_counts


def _in_order(dataset: Any, parts: list[Any]) -> list[int]:
    """Return one number for each row in the dataset's order; `parts` has them in table order."""
    import numpy

    values = numpy.concatenate(parts) if parts else numpy.zeros(0, int)
    # A shuffled or selected dataset has a list of the table rows that it consists of.
    order = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
    ordered: list[int] = (values if order is None else values[order]).tolist()
    return ordered


def find_present(dataset: Any) -> Any:
    """Return which rows of a data set's table are among its rows, as an array of truth values."""
    import numpy

    if dataset._indices is None:
        return numpy.ones(len(dataset.data), bool)
    present = numpy.zeros(len(dataset.data), bool)
    present[dataset._indices.column(0).to_numpy()] = True
    return present


def read_ends(dataset: Any, name: str) -> tuple[list[int], list[int]]:
    """Return the length of each list in a column, and its last entry; -1 for an empty list."""
    import numpy

    lengths: list[Any] = []
    entries: list[Any] = []
    for rows in _iter_chunks(dataset, name):
        starts = rows.offsets.to_numpy()
        values = numpy.append(rows.flatten().to_numpy(), -1)
        sizes = numpy.diff(starts)
        lengths.append(sizes)
        entries.append(values[numpy.where(sizes > 0, starts[1:] - starts[0] - 1, -1)])
    return _in_order(dataset, lengths), _in_order(dataset, entries)


def count_learnt_labels(dataset: Any) -> tuple[list[int], list[int]]:
    """Return the tokens of each row of a chat data set, and how many of its labels are not
    MASKED, the first label included.
    """
    import numpy

    lengths: list[Any] = []
    counts: list[Any] = []
    for rows in _iter_chunks(dataset, "labels"):
        starts = rows.offsets.to_numpy()
        starts = starts - starts[0]
        before = numpy.concatenate([[0], numpy.cumsum(rows.flatten().to_numpy() != MASKED)])
        lengths.append(numpy.diff(starts))
        counts.append(numpy.diff(before[starts]))
    return _in_order(dataset, lengths), _in_order(dataset, counts)


@dataclass(frozen=True)
class PackedCounts:
    """What each row of a data set holds that TRL has packed, in the data set's order."""

    documents: list[int]
    tokens: list[int]
    trained: list[int]  # tokens that carry loss, without the first of each document


def read_packed(dataset: Any) -> PackedCounts:
    """Read the documents and tokens of the rows that TRL has packed with the ends of documents."""
    import numpy

    documents: list[Any] = []
    tokens: list[Any] = []
    trained: list[Any] = []
    for batch in iter_batches(dataset, ["labels", PACKED]):
        rows = batch.column("labels")
        documents.append(numpy.diff(batch.column(PACKED).offsets.to_numpy()))
        starts = rows.offsets.to_numpy() - rows.offsets[0].as_py()
        tokens.append(numpy.diff(starts))
        carries = rows.flatten().to_numpy() != MASKED
        carries[find_starts(batch.column(PACKED))] = False
        before = numpy.concatenate([[0], numpy.cumsum(carries)])
        trained.append(numpy.diff(before[starts]))
    return PackedCounts(*(_in_order(dataset, parts) for parts in (documents, tokens, trained)))


def find_starts(lengths: Any) -> Any:
    """Return where the documents begin whose lengths are in a column of lists."""
    import numpy

    flat = lengths.flatten().to_numpy()
    return numpy.cumsum(flat) - flat


def _iter_chunks(dataset: Any, name: str) -> Iterator[Any]:
    """Yield the column in table order, some rows at a time.

    Reading it in shuffled order is fifteen times slower.
    """
    for chunk in dataset.data.column(name).chunks:
        for start in range(0, len(chunk), _CHUNK_ROWS):
            yield chunk.slice(start, _CHUNK_ROWS)


def iter_batches(dataset: Any, names: Collection[str]) -> Iterator[Any]:
    """Yield the columns `names` in table order, some rows at a time, as Arrow's record batches."""
    yield from dataset.data.table.select(list(names)).to_batches(max_chunksize=_CHUNK_ROWS)


def _count_unmasked(labels: Any, starts: Any) -> Any:
    """Return how many labels of each list after the first are not MASKED.

    The lists are joined in `labels`, and `starts` has where each begins, and the end.
    """
    import numpy

    before = numpy.concatenate([[0], numpy.cumsum(labels != MASKED)])
    first = numpy.minimum(starts[:-1] + 1, starts[1:])
    return before[starts[1:]] - before[first]


_MAX_PAIRS = 4096  # pairs whose two lengths are kept


def build_content(lengths: SampleLengths) -> dict[str, Any]:
    """Build the file's content: histograms {length: samples}.

    For pairs, it also has the two lengths of some pairs, evenly spaced.
    """
    content: dict[str, Any] = versioned(
        {
            "kind": "sft" if len(lengths.halves) == 1 else "dpo",
            "label_tokens": None if lengths.loss_tokens is None else sum(lengths.loss_tokens),
            "tokens": _histogram(lengths.tokens()),
        }
    )
    if len(lengths.halves) == 2:
        chosen, rejected = lengths.halves
        content["chosen"] = _histogram(chosen)
        content["rejected"] = _histogram(rejected)
        content["longer"] = _histogram(map(max, chosen, rejected))
        stride = max(1, -(-len(chosen) // _MAX_PAIRS))
        content["pairs"] = list(zip(chosen[::stride], rejected[::stride], strict=True))
    return content


def write(path: Path, content: dict[str, Any]) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)


def _histogram(lengths: Iterable[int]) -> dict[str, int]:
    return {str(length): count for length, count in sorted(Counter(lengths).items())}


def write_lengths(path: Path, dataset: Any, events: EventWriter) -> None:
    """Write the lengths of a tokenised data set.

    A failure is only a warning, since the file serves the next plan.
    """
    try:
        write(path, build_content(read_lengths(dataset)))
    except (OSError, ValueError) as error:
        events.warn(f"could not write the lengths of the tokenised data: {error}")
