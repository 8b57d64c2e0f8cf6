"""Counts the rows of each data set of a mixture, and the tokens that are learnt in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launch.data.mixture_share import MixtureShare
from launch.data.samples import LengthsBySide
from launch.planning.mixture import MixtureEntry


def share_mixture(
    entries: Sequence[MixtureEntry],
    lengths: Sequence[LengthsBySide],
    row_counts: Sequence[int | None],
) -> tuple[MixtureShare, ...]:
    """Return the shares of several data sets; () for a single one.

    `lengths` are those of the rows that were tokenised, `row_counts` the rows of each data set.
    """
    if len(entries) < 2 or len(lengths) < len(entries):
        return ()
    rows = []
    for entry, count in zip(entries, row_counts, strict=True):
        rows.append(None if count is None else int(count * entry.share))
    means = [_mean_learnt(of_entry) for of_entry in lengths]
    shares = []
    total_rows = sum(count or 0 for count in rows)
    total_tokens = sum((count or 0) * mean for count, mean in zip(rows, means, strict=True))
    is_counted = None not in rows and total_rows > 0 and total_tokens > 0
    for entry, count, mean in zip(entries, rows, means, strict=True):
        name = _name_of(entry)
        if is_counted and count is not None:
            token_share = count * mean / total_tokens
            shares.append(MixtureShare(name, mean, count, count / total_rows, token_share))
        else:
            shares.append(MixtureShare(name, mean, count))
    return tuple(shares)


def count_rows(entry: MixtureEntry, files: Sequence[Path]) -> int | None:
    """Return the number of an entry's training rows; None for an entry of the hub.

    `files` are those of `write_whole`, the first of which has the training rows. If it is not the
    staged file, it also has the rows that will be held out.
    """
    if not files:
        return None
    with files[0].open("rb") as stream:
        rows = sum(1 for _ in stream)
    data = entry.data
    if data is not None and files[0] != data.train_file and isinstance(data.validation, float):
        rows -= round(data.validation * rows)
    return rows


def _mean_learnt(lengths: LengthsBySide) -> float:
    """Return the mean number of tokens that carry loss, over the rows and all their sides.

    For a reward model all tokens count. A row that the trainer drops has none.
    """
    total = 0
    for side, counts in lengths.loss.items():
        learnt = zip(counts, lengths.tokens[side], lengths.kept, strict=True)
        for count, tokens, is_kept in learnt:
            if is_kept:
                total += tokens if count is None else count
    return total / max(1, len(lengths.kept))


def _name_of(entry: MixtureEntry) -> str:
    if entry.data is None:
        return entry.source.reference
    names = [path.name for path in entry.data.files.paths]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
