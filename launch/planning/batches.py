"""A plan's batches before it runs, from the data's token lengths: padding, tokens per step, load of
ranks, packed rows.

Rows of dpo.py are upstream's own packing, simulated: a packed step is one row of chosen and one of
rejected tokens per rank, each padded to max_seq_length. Pairs are added until one of the two would
overflow, or until the row holds the rank's samples of the global batch (data_loader.py:303-362,
`_reshard_with_packing`). In a packed step accumulation therefore only raises that number. Without
packing the same samples are padded to their longest half (dpo_utils.py:1089).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from launch.config.schema import Family, Packing, RecipeConfig
from launch.planning.lengths import Histogram, Lengths, draw_batches
from launch.planning.parallel import Batch
from launch.worker.finding import Finding, Fix

UNKNOWN = "unknown: cache_only=true measures them"
UNKNOWN_TRL = "unknown: a run measures them at its start, unless it packs into bins"
_STEPS = 24  # optimizer steps that are simulated for a prediction
_DRAWN = 10_000  # samples, in global batches, that are drawn for the imbalance


@dataclass(frozen=True)
class TokenForecast:
    """What to expect of a plan's batches, over the whole data set. None where a number does not
    apply.

    An imbalance compares the ranks' tokens in an accumulation step: the largest, with padding, over
    the mean without.
    """

    samples: int  # pairs for DPO
    mean: float  # tokens of a sample
    longest: int  # tokens of a sample
    loss_share: float | None  # of the tokens that carry loss
    tokens_per_step: float  # without padding
    padding_share: float | None  # of all computed tokens; None for bins
    micro_batch: float | None  # mean tokens with padding; None for bins, which have a token budget
    micro_batch_p99: int | None  # the tokens that 99% of the micro batches do not exceed
    imbalance_upstream: float | None  # in upstream's order; None for bins and for a single rank
    imbalance_balanced: float | None  # dealt by length; None also where the trainer can't deal

    @property
    def summary(self) -> str:
        return f"{self.samples:,} samples, mean {self.mean:,.0f}, longest {self.longest:,} tokens"

    def __repr__(self) -> str:
        return f"<{self.summary}>"


def forecast_tokens(
    lengths: Lengths,
    recipe: RecipeConfig,
    batch: Batch,
    *,
    padded_together: int | None = None,
    deals: bool = True,
) -> TokenForecast:
    """Forecast the batches of a plan with this recipe on data of these lengths.

    `padded_together`: the number of samples that are padded to the same length, when it exceeds the
    micro batch. `deals`: the trainer supports recipe.balanced.
    """
    bins, padded = recipe.packing == Packing.bins, recipe.packing == Packing.none
    total, mean = lengths.tokens.total, lengths.tokens.mean
    together = padded_together or batch.per_device
    part = batch.per_device / together
    rank_batch = replace(
        batch, per_device=together, accumulation=batch.global_ // (batch.width * together)
    )
    is_even = bins or batch.width == 1
    upstream, balanced = (
        (None, None) if is_even else _mean_imbalance(lengths, rank_batch, padded=padded)
    )
    return TokenForecast(
        samples=lengths.samples,
        mean=mean,
        longest=lengths.tokens.longest,
        loss_share=lengths.label_tokens / total
        if lengths.label_tokens is not None and total
        else None,
        tokens_per_step=lengths.tokens_of_step(batch.global_),
        padding_share=None if bins else lengths.padding_share(together) if padded else 0.0,
        micro_batch=None
        if bins
        else part * (lengths.padded_tokens(together) if padded else mean * together),
        micro_batch_p99=None
        if bins
        else math.ceil(part * lengths.micro_batch_quantile(together, recipe.packing, 0.99)),
        imbalance_upstream=upstream,
        imbalance_balanced=balanced if deals else None,
    )


def _mean_imbalance(lengths: Lengths, batch: Batch, *, padded: bool) -> tuple[float, float]:
    """Return the mean imbalance of drawn global batches: in upstream's order, and dealt by
    length.
    """
    tokens = lengths.tokens
    if padded and lengths.longer is not None:  # both halves of a pair are padded to the longer one
        tokens = Histogram(tuple((2 * length, count) for length, count in lengths.longer.counts))
    steps = max(1, _DRAWN // batch.global_)
    loads = [
        simulate_load(tokens, batch, packed=not padded, balanced=balanced, steps=steps)
        for balanced in (False, True)
    ]
    upstream, balanced = (
        load.waited * batch.width / load.tokens if load.tokens else 1.0 for load in loads
    )
    return upstream, balanced


@dataclass(frozen=True)
class SimulatedLoad:
    """The tokens of one optimizer step over all ranks, each number the mean over simulated
    steps.
    """

    # the micro batches that the steps wait for, each the tokens of its rows
    slowest: tuple[tuple[int, ...], ...]
    steps: int  # simulated
    tokens: float  # without padding
    padded_tokens: float  # with padding
    imbalance: float  # the longest rank's tokens over the mean
    largest: int  # tokens of the largest micro batch seen

    @property
    def padding(self) -> float:
        """The share of padding among all tokens."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def waited(self) -> float:
        """The tokens of the ranks that the others wait for."""
        return sum(map(sum, self.slowest)) / self.steps


@lru_cache(maxsize=512)
def simulate_load(
    lengths: Sequence[int],
    batch: Batch,
    *,
    packed: bool,
    balanced: bool = False,
    halves: int = 1,
    waits_each_turn: bool = True,
    steps: int = _STEPS,
) -> SimulatedLoad:
    """Deal random global batches to the ranks as accelerate does, or as the patch does if
    `balanced`.

    `lengths`: tokens of the data's samples, hashable; `halves`: rows of a sample, 2 for pairs,
    which count as equally long; `waits_each_turn`: the ranks wait for each other in every
    accumulation step, else once an optimizer step.
    Raises ValueError without lengths.
    """
    from launch.worker.dealing import deal  # once lengths are measured

    ranks, size = batch.width, batch.per_device
    slowest: list[tuple[int, ...]] = []
    real = padded = longest = mean = 0.0
    largest = 0
    for samples in draw_batches(lengths, batch.global_, steps):
        dealt = (
            [samples[at] for at in deal(samples, ranks, size, padded=not packed)]
            if balanced
            else samples
        )
        rows = [
            _row_tokens(dealt[at : at + size], packed, halves) for at in range(0, len(dealt), size)
        ]
        tokens = [sum(micro_batch) for micro_batch in rows]
        real, padded, largest = real + sum(samples), padded + sum(tokens), max(largest, *tokens)
        by_rank = [list(range(rank, len(rows), ranks)) for rank in range(ranks)]
        waits = (
            [[[at] for at in turn] for turn in zip(*by_rank, strict=True)]
            if waits_each_turn
            else [by_rank]
        )
        for of_ranks in waits:  # the micro batches of each rank until all have met
            totals = [sum(tokens[at] for at in group) for group in of_ranks]
            slowest += (rows[at] for at in of_ranks[totals.index(max(totals))])
            longest, mean = longest + max(totals), mean + sum(totals) / ranks
    return SimulatedLoad(
        tuple(slowest),
        steps,
        real / steps,
        padded / steps,
        longest / mean if mean else 1.0,
        largest,
    )


def _row_tokens(samples: Sequence[int], packed: bool, halves: int) -> tuple[int, ...]:
    """Return the tokens of each row: one row of all, or rows as long as the longest."""
    if packed:
        return (sum(samples),)
    return (-(-max(samples) // halves),) * (halves * len(samples))


def describe_tokens(
    forecast: TokenForecast | None, batch: Batch, family: Family
) -> list[tuple[str, str]]:
    """Describe the forecast as facts of a plan: a name and a text each. TRL's trainers have no
    tokenising pass.
    """
    if forecast is None:
        return [("lengths", UNKNOWN_TRL if family == Family.trl else UNKNOWN)]
    loss = (
        f"; {forecast.loss_share:.0%} of the tokens carry loss"
        if forecast.loss_share is not None
        else ""
    )
    step = f"{forecast.tokens_per_step:,.0f} per step without padding"
    if forecast.micro_batch is not None:
        step += (
            f"; micro batch of {batch.per_device}: mean {forecast.micro_batch:,.0f}, 99% within "
        )
        step += f"{forecast.micro_batch_p99:,}, {forecast.padding_share:.0%} padding"
    facts = [("lengths", f"{forecast.summary}{loss}"), ("tokens", step)]
    if forecast.imbalance_upstream is not None:
        text = (
            f"tokens per rank, largest over mean: {forecast.imbalance_upstream:.2f} in "
            "upstream's order"
        )
        if forecast.imbalance_balanced is not None:
            text += f", {forecast.imbalance_balanced:.2f} with recipe.balanced=true"
        facts.append(("balance", text))
    return facts


# x the per-device batch: the pairs that a row of the reference pass may hold (dpo.py:221)
REFERENCE_ROWS = 4
MAX_PADDING = 0.5  # share of the tokens; above it most of the computation is padding
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
        room = self.rows * self.halves * self.limit
        return self.tokens / room if room else 1.0

    @property
    def samples_per_row(self) -> float:
        return self.samples / self.rows if self.rows else 0.0


def pack_samples(samples: Iterable[Sequence[int]], limit: int, max_samples: int) -> PackedRows:
    """Pack samples, given by the lengths of their halves, in their order.

    A row holds at most `max_samples`, each half within `limit` tokens. A longer sample gets a row
    of its own, truncated.
    """
    rows = packed = tokens = halves = in_row = 0
    sums: list[int] = []
    for sample in samples:
        lengths = [min(length, limit) for length in sample]
        grown = (
            [total + length for total, length in zip(sums, lengths, strict=True)]
            if in_row
            else lengths
        )
        if in_row and (in_row >= max_samples or max(grown) > limit):
            grown, in_row = lengths, 0
        if not in_row:
            rows += 1
        sums, in_row, halves = grown, in_row + 1, len(lengths)
        packed, tokens = packed + 1, tokens + sum(lengths)
    return PackedRows(rows, packed, tokens, limit, halves)


@dataclass(frozen=True)
class PackingForecast:
    """How full packed rows will be."""

    training: PackedRows
    reference: PackedRows  # of the reference pass, before the training
    steps: int  # of an epoch
    # per rank, so that most of a row is filled; None where no number of pairs fills it
    needed_pairs: int | None


def forecast_packing(lengths: Lengths, limit: int, batch: Batch, seed: int = 0) -> PackingForecast:
    """Forecast the rows of packed pairs. Raises ValueError for data whose pairs are unknown."""
    if not lengths.pairs:
        raise ValueError("the lengths of the pairs are unknown")
    pairs = list(lengths.pairs)
    random.Random(seed).shuffle(pairs)
    training = pack_samples(pairs, limit, samples_per_rank(batch))
    reference = pack_samples(pairs, limit, REFERENCE_ROWS * batch.per_device)
    epoch_rows = training.rows * lengths.samples / len(pairs)
    powers = (1 << exponent for exponent in range(_MAX_PAIRS.bit_length()))
    needed = next(
        (count for count in powers if pack_samples(pairs, limit, count).filled >= 1 - MAX_PADDING),
        None,
    )
    return PackingForecast(training, reference, int(epoch_rows / batch.width), needed)


def samples_per_rank(batch: Batch) -> int:
    """Return the samples of one optimizer step on one rank."""
    return batch.per_device * batch.accumulation


def describe_packing(forecast: PackingForecast, batch: Batch) -> str:
    """Describe the forecast in one line."""
    training, reference = forecast.training, forecast.reference
    steps = "1 step" if forecast.steps == 1 else f"{forecast.steps:,} steps"
    return (
        f"rows of {training.limit:,} tokens hold {training.samples_per_row:.1f} pairs and are "
        f"{training.filled:.0%} full (at most {samples_per_rank(batch)} pairs); "
        f"the reference pass {reference.filled:.0%}; {steps} per epoch"
    )


def padding_problem(
    lengths: Lengths | None, packing: Packing, limit: int, batch: Batch
) -> Finding | None:
    """Return the problem tokens_wasted where dpo.py would compute more padding than tokens; None
    where it would not, or where the lengths are unknown.
    """
    if lengths is None or (packing == Packing.bins and not lengths.pairs):
        return None
    if packing != Packing.bins:
        return _padded_problem(lengths, batch)
    forecast = forecast_packing(lengths, limit, batch)
    pairs, empty = samples_per_rank(batch), 1 - forecast.training.filled
    if empty <= MAX_PADDING:
        return _reference_problem(forecast, pairs, batch)
    message = (
        f"{empty:.0%} of every packed row will be padding: {pairs} pairs per rank fill "
        f"{forecast.training.filled:.0%} of {limit:,} tokens"
    )
    sentence, ways = f"set recipe.max_seq_length below {limit:,}, or {{0}}", ["recipe.packing=none"]
    needed = forecast.needed_pairs
    if needed is not None and needed > pairs:
        sentence = f"set {{1}}; or {sentence}"
        ways.append(
            f"recipe.per_device_batch_size={needed} recipe.global_batch_size={needed * batch.width}"
        )
    cure = Fix.of(sentence, *ways)
    return Finding.error("tokens_wasted", message, "recipe.per_device_batch_size", cure)


def _reference_problem(forecast: PackingForecast, pairs: int, batch: Batch) -> Finding | None:
    """Judge the reference pass: its rows depend on the per-device batch, unlike those of a packed
    step.
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
    samples = samples_per_rank(batch)
    padding = lengths.padding_share(samples)
    if padding <= MAX_PADDING:
        return None
    message = (
        f"{padding:.0%} of the tokens will be padding: dpo.py pads the {samples} pairs of a "
        "rank to the longest"
    )
    sentence, ways = "set {0}", ["recipe.packing=bins"]
    halvings = (samples >> times for times in range(1, samples.bit_length()))
    fewer = next((count for count in halvings if lengths.padding_share(count) <= MAX_PADDING), None)
    if fewer is not None:
        sentence += f", or {{1}} ({fewer} per rank) for less than half"
        ways.append(f"recipe.global_batch_size={fewer * batch.width}")
    return Finding.error("tokens_wasted", message, "recipe.packing", Fix.of(sentence, *ways))
