"""How long the samples of a tokenised `datasets.Dataset` are, read from its Arrow table without making a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SFT = ("",)
PAIRS = ("chosen_", "rejected_")  # what the columns of a preference pair begin with
MASKED = -100  # the label of a token without loss
_ROWS = 1000


@dataclass(frozen=True)
class Columns:
    """The samples of a data set, in its order. `halves`: tokens of each sample, of pairs the chosen half's and then the
    rejected half's. `loss_tokens`: those of a sample, both halves, that carry loss; None without labels."""

    halves: tuple[tuple[int, ...], ...]
    loss_tokens: tuple[int, ...] | None

    def tokens(self) -> list[int]:
        """Of each sample, both halves."""
        return [sum(sample) for sample in zip(*self.halves, strict=True)]

    def padded(self) -> list[int]:
        """Of each sample as a micro batch of its own: upstream pads both halves to the longer (dpo_utils.py:1089)."""
        return [len(sample) * max(sample) for sample in zip(*self.halves, strict=True)]


def read(dataset: Any, *, labels: bool = True) -> Columns:
    """The lengths of the samples of `dataset`, and with `labels` how many of their tokens carry loss.

    Raises ValueError for a data set without input_ids, or chosen_input_ids and rejected_input_ids.

    The label of a sample's first token does not count: nothing predicts it.
    """
    names = set(dataset.column_names)
    prefixes = next((each for each in (SFT, PAIRS) if all(f"{prefix}input_ids" in names for prefix in each)), None)
    if prefixes is None:
        raise ValueError(f"no tokenised data: its columns are {', '.join(sorted(names))}")
    labelled = labels and all(f"{prefix}labels" in names for prefix in prefixes)
    columns = [_column(dataset, f"{prefix}{'labels' if labelled else 'input_ids'}", labelled) for prefix in prefixes]
    loss = tuple(map(sum, zip(*(counts for _, counts in columns), strict=True))) if labelled else None
    return Columns(tuple(lengths for lengths, _ in columns), loss)


def _column(dataset: Any, name: str, count: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths of a column of lists; and how many of each list, its first left out, are no MASKED, with `count`."""
    lengths: list[int] = []
    counts: list[int] = []
    for chunk in _chunks(dataset, name):
        starts = chunk.offsets.to_numpy()
        lengths += (starts[1:] - starts[:-1]).tolist()
        if count:
            counts += _unmasked(chunk.flatten().to_numpy(), starts - starts[0])
    return tuple(lengths), tuple(counts)


def _chunks(dataset: Any, name: str) -> Iterator[Any]:
    for rows in dataset.select_columns([name]).with_format("arrow").iter(batch_size=_ROWS):
        yield from rows[name].chunks


def _unmasked(labels: Any, starts: Any) -> list[int]:
    import numpy

    before = numpy.concatenate([[0], numpy.cumsum(labels != MASKED)])
    first = numpy.minimum(starts[:-1] + 1, starts[1:])
    return [int(count) for count in before[starts[1:]] - before[first]]
