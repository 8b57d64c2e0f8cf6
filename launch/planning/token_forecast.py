"""A plan's batches before it runs, from the data's token lengths: padding, tokens per step, load balancing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from launch.config.schema import Family, Packing, RecipeConfig
from launch.planning.batch import Batch
from launch.planning.lengths import Lengths
from launch.worker.dealing import compute_load, deal

UNKNOWN = "unknown: cache_only=true measures them"
UNKNOWN_TRL = "unknown: a run measures them at its start, unless it packs into bins"
_DRAWN = 10_000  # samples, in global batches, that are drawn for the imbalance


@dataclass(frozen=True)
class TokenForecast:
    """What to expect of a plan's batches, over the whole data set. None where a number does not apply.

    An imbalance compares the ranks' tokens in an accumulation step: the largest, with padding, over the mean without.
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


def forecast_tokens(
    lengths: Lengths, recipe: RecipeConfig, batch: Batch, *, padded_together: int | None = None, deals: bool = True
) -> TokenForecast:
    """Forecast the batches of a plan with this recipe on data of these lengths.

    `padded_together`: the number of samples that are padded to the same length, when it exceeds the micro batch.
    `deals`: the trainer supports recipe.balanced.
    """
    bins, padded = recipe.packing == Packing.bins, recipe.packing == Packing.none
    total, mean = lengths.tokens.total, lengths.tokens.mean
    together = padded_together or batch.per_device
    part = batch.per_device / together
    rank_batch = replace(batch, per_device=together, accumulation=batch.global_ // (batch.width * together))
    is_even = bins or batch.width == 1
    upstream, balanced = (None, None) if is_even else _mean_imbalance(lengths, rank_batch, padded=padded)
    return TokenForecast(
        samples=lengths.samples,
        mean=mean,
        longest=lengths.tokens.longest,
        loss_share=lengths.label_tokens / total if lengths.label_tokens is not None and total else None,
        tokens_per_step=lengths.tokens_of_step(batch.global_),
        padding_share=None if bins else lengths.padding_share(together) if padded else 0.0,
        micro_batch=None if bins else part * (lengths.padded_tokens(together) if padded else mean * together),
        micro_batch_p99=None
        if bins
        else math.ceil(part * lengths.micro_batch_quantile(together, recipe.packing, 0.99)),
        imbalance_upstream=upstream,
        imbalance_balanced=balanced if deals else None,
    )


def _mean_imbalance(lengths: Lengths, batch: Batch, *, padded: bool) -> tuple[float, float]:
    """Return the mean imbalance of drawn global batches: in upstream's order, and dealt by length."""
    histogram, halves = (lengths.tokens, 1) if lengths.longer is None or not padded else (lengths.longer, 2)
    count = max(1, _DRAWN // batch.global_)
    upstream = balanced = 0.0
    for drawn in histogram.draw_batches(batch.global_, count):
        samples = [halves * length for length in drawn]
        dealt = [samples[slot] for slot in deal(samples, batch.width, batch.per_device, padded=padded)]
        upstream += compute_load(samples, batch.width, batch.per_device, padded=padded).imbalance
        balanced += compute_load(dealt, batch.width, batch.per_device, padded=padded).imbalance
    return upstream / count, balanced / count


def describe(forecast: TokenForecast | None, batch: Batch, family: Family) -> list[tuple[str, str]]:
    """Describe the forecast as facts of a plan: a name and a text each. TRL's trainers have no tokenising pass."""
    if forecast is None:
        return [("lengths", UNKNOWN_TRL if family == Family.trl else UNKNOWN)]
    loss = f"; {forecast.loss_share:.0%} of the tokens carry loss" if forecast.loss_share is not None else ""
    data = f"{forecast.samples:,} samples, mean {forecast.mean:,.0f}, longest {forecast.longest:,} tokens{loss}"
    step = f"{forecast.tokens_per_step:,.0f} per step without padding"
    if forecast.micro_batch is not None:
        step += f"; micro batch of {batch.per_device}: mean {forecast.micro_batch:,.0f}, 99% within "
        step += f"{forecast.micro_batch_p99:,}, {forecast.padding_share:.0%} padding"
    facts = [("lengths", data), ("tokens", step)]
    if forecast.imbalance_upstream is not None:
        text = f"tokens per rank, largest over mean: {forecast.imbalance_upstream:.2f} in upstream's order"
        if forecast.imbalance_balanced is not None:
            text += f", {forecast.imbalance_balanced:.2f} with recipe.balanced=true"
        facts.append(("balance", text))
    return facts
