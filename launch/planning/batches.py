"""Forecasts a plan's batches from the data's token lengths: tokens, padding and load of the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from launch.config.recipe_keys import Packing, RecipeConfig
from launch.planning.batch_split import Batch
from launch.planning.lengths import Histogram, Lengths, draw_batches

UNKNOWN_TRL = "unknown: a run measures them at its start, unless it packs into bins"
_STEPS = 24  # optimizer steps that are simulated for a prediction
_DRAWN = 10_000  # samples, in global batches, that are drawn for the imbalance


@dataclass(frozen=True)
class TokenForecast:
    """What to expect of a plan's batches, over the whole data set. A number that does not apply is
    None.

    An imbalance compares the ranks' tokens in an accumulation step: it is the largest number, with
    padding, divided by the mean without padding.
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
    imbalance_balanced: (
        float | None
    )  # balanced by length; None also where the trainer can't balance

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
    balances: bool = True,
) -> TokenForecast:
    """Forecast the batches of a plan with this recipe on data of these lengths.

    `padded_together` is the number of samples that are padded to the same length, when it exceeds
    the micro batch. `balances` is whether the trainer supports recipe.balanced.
    """
    total = lengths.tokens.total
    loss_share = None
    if lengths.label_tokens is not None and total:
        loss_share = lengths.label_tokens / total
    forecast = TokenForecast(
        samples=lengths.samples,
        mean=lengths.tokens.mean,
        longest=lengths.tokens.longest,
        loss_share=loss_share,
        tokens_per_step=lengths.tokens_of_step(batch.global_),
        padding_share=None,
        micro_batch=None,
        micro_batch_p99=None,
        imbalance_upstream=None,
        imbalance_balanced=None,
    )
    if recipe.packing == Packing.bins:
        return forecast

    is_padded = recipe.packing == Packing.none
    together = padded_together or batch.per_device
    micro_batches = together / batch.per_device  # that are padded to the same length
    if is_padded:
        padding_share = lengths.expected_padding_share(together)
        tokens = lengths.padded_tokens(together)
    else:
        padding_share = 0.0
        tokens = lengths.tokens.mean * together
    p99 = lengths.micro_batch_quantile(together, recipe.packing, 0.99)
    forecast = replace(
        forecast,
        padding_share=padding_share,
        micro_batch=tokens / micro_batches,
        micro_batch_p99=math.ceil(p99 / micro_batches),
    )
    if batch.width == 1:
        return forecast

    accumulation = batch.global_ // (batch.width * together)
    rank_batch = replace(batch, per_device=together, accumulation=accumulation)
    upstream = _mean_imbalance(lengths, rank_batch, padded=is_padded, balanced=False)
    balanced = None
    if balances:
        balanced = _mean_imbalance(lengths, rank_batch, padded=is_padded, balanced=True)
    return replace(forecast, imbalance_upstream=upstream, imbalance_balanced=balanced)


def _mean_imbalance(lengths: Lengths, batch: Batch, *, padded: bool, balanced: bool) -> float:
    """Return the mean imbalance of random global batches, in upstream's order or balanced by
    length.
    """
    tokens = lengths.tokens
    if padded and lengths.longer is not None:
        # both halves of a pair are padded to the longer one
        counts = [(2 * length, count) for length, count in lengths.longer.counts]
        tokens = Histogram(tuple(counts))
    steps = max(1, _DRAWN // batch.global_)
    load = simulate_load(tokens, batch, packed=not padded, balanced=balanced, steps=steps)
    return load.waited * batch.width / load.tokens if load.tokens else 1.0


@dataclass(frozen=True)
class SimulatedLoad:
    """The tokens of one optimizer step over all ranks, each number the mean over simulated
    steps.
    """

    # the tokens of the rows of each micro batch that the other ranks wait for
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
    """Distribute random global batches over the ranks as accelerate does, or as the patch does if
    `balanced`.

    `lengths` are the tokens of the data's samples, hashable. `halves` is the number of rows of a
    sample: 2 for pairs, whose halves count as equally long. With `waits_each_turn` the ranks wait
    for each other in every accumulation step, else once per optimizer step.

    Raises ValueError without lengths.
    """
    # imported only where lengths are measured
    from launch.worker.length_balancing import balance_by_length

    ranks = batch.width
    size = batch.per_device
    slowest: list[tuple[int, ...]] = []
    sample_tokens = 0
    padded_tokens = 0
    longest_waits = 0.0
    mean_waits = 0.0
    largest = 0
    for drawn in draw_batches(lengths, batch.global_, steps):
        samples: Sequence[int] = drawn
        if balanced:
            order = balance_by_length(drawn, ranks, size, padded=not packed)
            samples = [drawn[index] for index in order]
        micro_batches = _split_into_micro_batches(samples, size, packed, halves)
        tokens = [sum(rows) for rows in micro_batches]
        sample_tokens += sum(samples)
        padded_tokens += sum(tokens)
        largest = max(largest, *tokens)
        for waiting in _group_by_wait(len(micro_batches), ranks, waits_each_turn):
            totals = [_sum_at(tokens, indices) for indices in waiting]
            slowest_rank = totals.index(max(totals))
            slowest += [micro_batches[index] for index in waiting[slowest_rank]]
            longest_waits += max(totals)
            mean_waits += sum(totals) / ranks
    return SimulatedLoad(
        slowest=tuple(slowest),
        steps=steps,
        tokens=sample_tokens / steps,
        padded_tokens=padded_tokens / steps,
        imbalance=longest_waits / mean_waits if mean_waits else 1.0,
        largest=largest,
    )


def _split_into_micro_batches(
    samples: Sequence[int], size: int, packed: bool, halves: int
) -> list[tuple[int, ...]]:
    """Return the tokens of each row of each micro batch: packed one row, else rows as long as the
    longest.
    """
    micro_batches: list[tuple[int, ...]] = []
    for start in range(0, len(samples), size):
        micro_batch = samples[start : start + size]
        if packed:
            rows = [sum(micro_batch)]
        else:
            longest = math.ceil(max(micro_batch) / halves)
            rows = [longest] * (halves * len(micro_batch))
        micro_batches.append(tuple(rows))
    return micro_batches


def _group_by_wait(micro_batches: int, ranks: int, waits_each_turn: bool) -> list[list[list[int]]]:
    """Return, for each time that the ranks wait for each other, the indices of the micro batches
    that each rank has computed since the time before.

    Rank r gets the micro batches r, r + ranks, r + 2 x ranks and so on.
    """
    by_rank = [list(range(rank, micro_batches, ranks)) for rank in range(ranks)]
    if not waits_each_turn:
        return [by_rank]
    waits = []
    for turn in zip(*by_rank, strict=True):
        waiting = [[index] for index in turn]
        waits.append(waiting)
    return waits


def _sum_at(values: Sequence[int], indices: Iterable[int]) -> int:
    return sum(values[index] for index in indices)


def describe_tokens(
    forecast: TokenForecast | None, batch: Batch, why_unknown: str
) -> list[tuple[str, str]]:
    """Describe the forecast as facts of a plan, each a name and a text.

    `why_unknown` stands in the place of a forecast, and describes how the lengths become known.
    """
    if forecast is None:
        return [("lengths", why_unknown)]
    lengths = forecast.summary
    if forecast.loss_share is not None:
        lengths += f"; {forecast.loss_share:.0%} of the tokens carry loss"
    tokens = f"{forecast.tokens_per_step:,.0f} per step without padding"
    if forecast.micro_batch is not None:
        tokens += (
            f"; micro batch of {batch.per_device}: mean {forecast.micro_batch:,.0f}, 99% within "
            f"{forecast.micro_batch_p99:,}, {forecast.padding_share:.0%} padding"
        )
    facts = [("lengths", lengths), ("tokens", tokens)]
    if forecast.imbalance_upstream is not None:
        text = (
            f"tokens per rank, largest over mean: {forecast.imbalance_upstream:.2f} in "
            "upstream's order"
        )
        if forecast.imbalance_balanced is not None:
            text += f", {forecast.imbalance_balanced:.2f} with recipe.balanced=true"
        facts.append(("balance", text))
    return facts
