"""Compares the rows that a trainer has tokenised, or found in a cache, with staged rows: some of
these are tokenised again and looked for.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .. import columns

_SAMPLES = 64  # rows of a data set that are tokenised again
_CANDIDATES = 2_000  # rows of the same length that are compared with one of them
# The columns with tokens and labels, as open-instruct and TRL name them.
_COLUMNS = (
    *("input_ids", "labels", "chosen_input_ids", "chosen_labels", "rejected_input_ids"),
    *("rejected_labels", "prompt_ids", "chosen_ids", "rejected_ids", "completion_ids"),
)

TokenRow = Mapping[str, Any]


def spread_rows(count: int) -> list[int]:
    """Return the numbers of at most 64 of `count` rows, evenly spread, with the first and the
    last.
    """
    size = min(count, _SAMPLES)
    return [number * (count - 1) // max(1, size - 1) for number in range(size)]


def tokenise_with_open_instruct(config: Any, tokenizer: Any) -> Iterator[tuple[int, TokenRow]]:
    """Yield the number and the columns of some rows of a data set, as the transforms of its
    DatasetConfig tokenise them. Rows that its filters leave out are not among them.
    """
    from open_instruct import dataset_transformation as upstream

    transforms = list(zip(config.transform_fn, config.transform_fn_args, strict=True))
    for number in spread_rows(len(config.dataset)):
        row = dict(config.dataset[number])
        for name, options in transforms:
            transform, kind = upstream.TRANSFORM_FNS[name]
            result = transform(row, tokenizer, **options)
            if kind == "map":
                row = result
            elif not result:
                break
        else:
            yield number, row


def tokenise_with_trl(
    prepare: Callable[[Any, Any], Any], dataset: Any, args: Any
) -> list[TokenRow]:
    """Return the columns of some rows of a data set, as `prepare(rows, args)` of a TRL trainer makes
    them, without the cache of `datasets`. `prepare` has to leave them unpacked.

    Every rank has to call it: TRL lets the first rank go first.
    """
    import datasets

    alone = copy.copy(args)
    if getattr(args, "packing", False):
        alone.truncation_mode = "keep_start"  # as packing cuts, whatever the mode
    if hasattr(alone, "dataset_num_proc"):
        alone.dataset_num_proc = None
    was_caching = datasets.is_caching_enabled()
    has_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_caching()
    datasets.disable_progress_bars()
    try:
        few = dataset.select(spread_rows(len(dataset)))
        return list(prepare(few, alone).with_format(None))
    finally:
        if was_caching:
            datasets.enable_caching()
        if has_bars:
            datasets.enable_progress_bars()


def count_missing(dataset: Any, rows: Sequence[TokenRow]) -> int:
    """Return how many of the tokenised `rows` are not among those of `dataset`."""
    names = [name for name in _COLUMNS if name in dataset.column_names]
    if not names or not rows:
        return 0
    if columns.PACKED in dataset.column_names:
        return _count_missing_documents(dataset, rows)
    lengths = columns.read_ends(dataset, names[0])[0]
    positions: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        positions.setdefault(length, []).append(position)
    plain = dataset.with_format(None).select_columns(names)
    missing = 0
    for row in rows:
        due = {name: _as_list(row[name]) for name in names if name in row}
        candidates = positions.get(len(due.get(names[0], ())), [])
        if len(candidates) > _CANDIDATES:  # too many rows are cut at one length
            continue
        missing += not any(_is_same(plain[position], due) for position in candidates)
    return missing


def _count_missing_documents(dataset: Any, rows: Sequence[TokenRow]) -> int:
    """Return how many of the tokenised `rows` are none of the documents of packed rows."""
    import numpy

    def key_of(tokens: Any, labels: Any) -> tuple[bytes, bytes]:
        return numpy.asarray(tokens, "int64").tobytes(), numpy.asarray(labels, "int64").tobytes()

    due = [key_of(row["input_ids"], row["labels"]) for row in rows]
    lengths_due = list({len(row["input_ids"]) for row in rows})
    missing = set(due)
    is_there = columns.find_present(dataset)
    row = 0
    for batch in columns.iter_batches(dataset, ["input_ids", "labels", columns.PACKED]):
        tokens = batch.column("input_ids").flatten().to_numpy()
        labels = batch.column("labels").flatten().to_numpy()
        lengths = batch.column(columns.PACKED).flatten().to_numpy()
        starts = columns.find_starts(batch.column(columns.PACKED))
        documents = numpy.diff(batch.column(columns.PACKED).offsets.to_numpy())
        present = is_there[row : row + len(documents)]
        row += len(documents)
        is_candidate = numpy.isin(lengths, lengths_due) & numpy.repeat(present, documents)
        for start, length in zip(starts[is_candidate], lengths[is_candidate], strict=True):
            part = slice(start, start + length)
            missing.discard(key_of(tokens[part], labels[part]))
    return sum(key in missing for key in due)


def _is_same(found: TokenRow, due: Mapping[str, list[int]]) -> bool:
    return all(list(found[name]) == tokens for name, tokens in due.items())


def _as_list(tokens: Any) -> list[int]:
    return [int(token) for token in tokens]


def compare_counts(dataset: Any, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Compare the tokens of a data set's table, and those that carry loss, with what open-instruct
    counted of each of its `parts` when it built the table (dataset_transformation.py:2232).

    Returns the differences, each with the data set's name and both numbers.
    """
    if "labels" not in dataset.column_names or "input_ids" not in dataset.column_names:
        return []
    if sum(int(part["final_instances"]) for part in parts) != len(dataset):
        return []  # the evidence "mixture" reports that the number of rows differs
    lengths, trained = columns.count_learnt_labels(dataset)
    faults = []
    start = 0
    for part in parts:
        end = start + int(part["final_instances"])
        found = Counter(total_tokens=sum(lengths[start:end]))
        found["trainable_tokens"] = sum(trained[start:end])
        start = end
        for key, noun in (("total_tokens", "tokens"), ("trainable_tokens", "trained tokens")):
            if key in part and int(part[key]) != found[key]:
                faults.append(f"{found[key]} of {part[key]} {noun} of {part['dataset_name']}")
    return faults


@contextlib.contextmanager
def left_to_trainer() -> Iterator[None]:
    """Suppress the errors of a comparison: the trainer itself reports what can't be tokenised."""
    errors = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OSError)
    with contextlib.suppress(*errors):
        yield
