"""Forecasts how full the rows of dpo.py's packing are, from the data's token lengths.

A packed step is one row of chosen and one of rejected tokens per rank, each padded to
max_seq_length. Pairs are added until one of the two rows would overflow, or until the row holds the
rank's samples of the global batch (data_loader.py:303-362, `_reshard_with_packing`). In a packed step
accumulation therefore only raises that number. Without packing the same samples are padded to their
longest half (dpo_utils.py:1089).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launch.config.recipe_keys import Packing
from launch.planning.batch_split import Batch
from launch.planning.lengths import Lengths
from launch.worker.finding import Finding, Fix
from launch.worker.wording import noun_for

# A row of the reference pass may hold this many times the pairs of the per-device batch (dpo.py:221).
REFERENCE_ROWS = 4
# The largest share of padding among the tokens; above it most of the computation is padding.
MAX_PADDING = 0.5
_MAX_PAIRS = 4096  # per rank; more than any row holds


@dataclass(frozen=True)
class PackedRows:
    """The rows that samples were packed into."""

    rows: int
    samples: int
    tokens: int
    limit: int  # tokens of a row
    halves: int  # sequences of a sample; 2 for pairs

    @property
    def filled(self) -> float:
        """The share of the rows that holds tokens; the rest is padding. 1 without a row."""
        capacity = self.rows * self.halves * self.limit
        return self.tokens / capacity if capacity else 1.0

    @property
    def samples_per_row(self) -> float:
        return self.samples / self.rows if self.rows else 0.0


def pack_samples(samples: Iterable[Sequence[int]], limit: int, max_samples: int) -> PackedRows:
    """Pack samples, given by the lengths of their halves, in their order.

    A row holds at most `max_samples`, each half within `limit` tokens. A longer sample gets a row
    of its own, truncated.
    """
    rows = 0
    packed_samples = 0
    tokens = 0
    samples_in_row = 0
    row_tokens: list[int] = []  # of each half
    for sample in samples:
        lengths = [min(length, limit) for length in sample]
        fits = False
        if samples_in_row:
            extended = [total + length for total, length in zip(row_tokens, lengths, strict=True)]
            fits = samples_in_row < max_samples and max(extended) <= limit
        if fits:
            row_tokens = extended
            samples_in_row += 1
        else:
            row_tokens = lengths
            samples_in_row = 1
            rows += 1
        packed_samples += 1
        tokens += sum(lengths)
    return PackedRows(rows, packed_samples, tokens, limit, halves=len(row_tokens))


@dataclass(frozen=True)
class PackingForecast:
    """How full packed rows will be."""

    training: PackedRows
    reference: PackedRows  # of the reference pass, before the training
    steps: int  # of an epoch
    # pairs per rank with which most of a row is filled; None where no number of pairs fills it
    needed_pairs: int | None


def forecast_packing(lengths: Lengths, limit: int, batch: Batch, seed: int = 0) -> PackingForecast:
    """Forecast the rows of packed pairs. Raises ValueError for data whose pairs are unknown."""
    if not lengths.pairs:
        raise ValueError("the lengths of the pairs are unknown")
    pairs = list(lengths.pairs)
    random.Random(seed).shuffle(pairs)
    training = pack_samples(pairs, limit, batch.samples_per_rank)
    reference = pack_samples(pairs, limit, REFERENCE_ROWS * batch.per_device)
    epoch_rows = training.rows * lengths.samples / len(pairs)
    steps = int(epoch_rows / batch.width)
    return PackingForecast(training, reference, steps, _count_needed_pairs(pairs, limit))


def _count_needed_pairs(pairs: Sequence[Sequence[int]], limit: int) -> int | None:
    """Return the least power of 2 of pairs per rank with which most of a row is filled; None where
    none does.
    """
    count = 1
    while count <= _MAX_PAIRS:
        if pack_samples(pairs, limit, count).filled >= 1 - MAX_PADDING:
            return count
        count *= 2
    return None


def describe_packing(forecast: PackingForecast, batch: Batch) -> str:
    """Describe the forecast in one line."""
    training = forecast.training
    reference = forecast.reference
    steps = f"{forecast.steps:,} {noun_for(forecast.steps, 'step')}"
    return (
        f"rows of {training.limit:,} tokens hold {training.samples_per_row:.1f} pairs and are "
        f"{training.filled:.0%} full (at most {batch.samples_per_rank} pairs); "
        f"the reference pass {reference.filled:.0%}; {steps} per epoch"
    )


def padding_problem(
    lengths: Lengths | None, packing: Packing, limit: int, batch: Batch
) -> Finding | None:
    """Return the problem tokens_wasted if dpo.py would compute more padding than tokens; None if it
    would not, or if the lengths are unknown.
    """
    if lengths is None or (packing == Packing.bins and not lengths.pairs):
        return None
    if packing != Packing.bins:
        return _padded_problem(lengths, batch)
    forecast = forecast_packing(lengths, limit, batch)
    pairs = batch.samples_per_rank
    empty = 1 - forecast.training.filled
    if empty <= MAX_PADDING:
        return _reference_problem(forecast, pairs, batch)
    message = (
        f"{empty:.0%} of every packed row will be padding: {pairs} pairs per rank fill "
        f"{forecast.training.filled:.0%} of {limit:,} tokens"
    )
    sentence = f"set recipe.max_seq_length below {limit:,}, or {{0}}"
    overrides = ["recipe.packing=none"]
    needed = forecast.needed_pairs
    if needed is not None and needed > pairs:
        sentence = f"set {{1}}; or {sentence}"
        global_batch = needed * batch.width
        overrides.append(
            f"recipe.per_device_batch_size={needed} recipe.global_batch_size={global_batch}"
        )
    cure = Fix.of(sentence, *overrides)
    return Finding.error("tokens_wasted", message, "recipe.per_device_batch_size", cure)


def _reference_problem(forecast: PackingForecast, pairs: int, batch: Batch) -> Finding | None:
    """Return the problem of the reference pass, whose rows depend on the per-device batch, unlike
    those of a packed step.
    """
    empty = 1 - forecast.reference.filled
    if empty <= MAX_PADDING or batch.per_device == pairs:
        return None
    message = (
        f"{empty:.0%} of the reference pass will be padding: its rows hold {REFERENCE_ROWS} "
        "x the per-device batch"
    )
    sentence = "set {0}: it fills them, and changes nothing else in packed rows"
    cure = Fix.of(sentence, f"recipe.per_device_batch_size={pairs}")
    return Finding.error("tokens_wasted", message, "recipe.per_device_batch_size", cure)


def _padded_problem(lengths: Lengths, batch: Batch) -> Finding | None:
    """Return the problem of samples that are padded to the longest one of their rank."""
    samples = batch.samples_per_rank
    padding = lengths.expected_padding_share(samples)
    if padding <= MAX_PADDING:
        return None
    message = (
        f"{padding:.0%} of the tokens will be padding: dpo.py pads the {samples} pairs of a "
        "rank to the longest"
    )
    sentence = "set {0}"
    overrides = ["recipe.packing=bins"]
    fewer = samples // 2
    while fewer and lengths.expected_padding_share(fewer) > MAX_PADDING:
        fewer //= 2
    if fewer:
        sentence += f", or {{1}} ({fewer} per rank) for less than half"
        overrides.append(f"recipe.global_batch_size={fewer * batch.width}")
    return Finding.error("tokens_wasted", message, "recipe.packing", Fix.of(sentence, *overrides))
