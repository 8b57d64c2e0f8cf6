"""Counts the rows of each data set of a mixture, and the tokens that are learnt in them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launch.config.schema import MixConfig
from launch.config.yaml_nodes import write_scalar
from launch.data.mixture_share import MixtureShare, find_shares_of_rows
from launch.data.samples import LengthsBySide
from launch.errors import refusal
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
    for number, entry in enumerate(entries):
        count = rows[number]
        share = MixtureShare(_name_of(entry), means[number], count, row_counts[number])
        if is_counted and count is not None:
            token_share = count * means[number] / total_tokens
            share = replace(share, row_share=count / total_rows, token_share=token_share)
        shares.append(share)
    return tuple(shares)


def describe_shares_by_tokens(
    mix: Sequence[MixConfig], mixture: Sequence[MixtureShare], proportion: Sequence[float]
) -> str:
    """Return the override of data.mix whose data sets have learnt tokens in `proportion`.

    Raises UserError: usage, if the proportion does not have one number for each data set, or if
    rows are not counted.
    """
    given = ",".join(f"{part:g}" for part in proportion)
    if not len(mix) == len(mixture) == len(proportion):
        message = f"tokens={given} has {len(proportion)} numbers, and data.mix {len(mix)} data sets"
        raise refusal("usage", message, "command line", "write one number for each data set")
    shares = find_shares_of_rows(mixture, proportion)
    if shares is None:
        message = f"tokens={given} needs the rows of each data set, and some are not counted here"
        cure = "download the data sets of the hub, and name their files in data.mix"
        raise refusal("usage", message, "command line", cure)
    entries = []
    for entry, share in zip(mix, shares, strict=True):
        fields = [f"name: {write_scalar(entry.name)}", f"share: {share:.4g}"]
        if entry.split != "train":
            fields.append(f"split: {write_scalar(entry.split)}")
        entries.append(f"{{{', '.join(fields)}}}")
    override = f"data.mix=[{', '.join(entries)}]"
    return f"learnt tokens as {given}: {shlex.quote(override)}"


def split_merged(entry: MixtureEntry) -> tuple[MixtureEntry, ...]:
    """Return the separate data sets of one staged entry."""
    return tuple(replace(entry, data=data, merged=()) for data in entry.merged) or (entry,)


def count_training_rows(entry: MixtureEntry, files: Sequence[Path]) -> int | None:
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
