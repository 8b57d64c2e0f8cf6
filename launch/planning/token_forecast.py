"""What the data's token lengths say about a plan's batches before it runs: padding, tokens, and who waits for whom."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from launch.config.schema import Family, Packing, RecipeConfig
from launch.planning.batch import Batch
from launch.planning.lengths import SCHEMA_VERSION, Lengths
from launch.worker.dealing import deal, load_of

UNKNOWN = "unknown: cache_only=true measures them"
UNKNOWN_TRL = "unknown: a run measures them as it starts, unless it packs into bins"
_DRAWN = 10_000  # samples, in global batches, that the imbalance is taken from


@dataclass(frozen=True)
class TokenForecast:
    """Expected, over the whole data set. `samples`: pairs for DPO. `loss_share`: of the tokens that carry loss.
    `padding_share` of all that is computed. `micro_batch` and `micro_batch_p99`: tokens with padding, the mean and what
    99% stay within; None for bins, which have a budget. `imbalance`: tokens of the ranks in an accumulation step, the
    largest with its padding over the mean without, in upstream's order and dealt by length; None for bins
    and where a rank is alone, the second also where the trainer can't deal."""

    samples: int
    mean: float
    longest: int
    loss_share: float | None
    tokens_per_step: float
    padding_share: float | None
    micro_batch: float | None
    micro_batch_p99: int | None
    imbalance_upstream: float | None
    imbalance_balanced: float | None

    def as_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **vars(self)}


def forecast_tokens(
    lengths: Lengths, recipe: RecipeConfig, batch: Batch, *, together: int | None = None, deals: bool = True
) -> TokenForecast:
    """The forecast of a plan with this recipe and batch on data of these lengths. `together`: the samples that are
    padded to the same length, when they are more than a micro batch. `deals`: the trainer knows recipe.balanced."""
    bins, padded = recipe.packing == Packing.bins, recipe.packing == Packing.none
    total, mean = lengths.tokens.total, lengths.tokens.mean
    together = together or batch.per_device
    part = batch.per_device / together
    of_a_rank = replace(batch, per_device=together, accumulation=batch.global_ // (batch.width * together))
    upstream, balanced = (None, None) if bins or batch.width == 1 else _imbalance(lengths, of_a_rank, padded=padded)
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


def _imbalance(lengths: Lengths, batch: Batch, *, padded: bool) -> tuple[float, float]:
    """The mean imbalance of drawn global batches, in upstream's order and as the patch balanced_batches deals them."""
    histogram, halves = (lengths.tokens, 1) if lengths.longer is None or not padded else (lengths.longer, 2)
    count = max(1, _DRAWN // batch.global_)
    drawn = [halves * length for length in histogram.drawn(batch.global_ * count)]
    upstream = balanced = 0.0
    for at in range(0, len(drawn), batch.global_):
        samples = drawn[at : at + batch.global_]
        dealt = [samples[slot] for slot in deal(samples, batch.width, batch.per_device, padded=padded)]
        upstream += load_of(samples, batch.width, batch.per_device, padded=padded).imbalance
        balanced += load_of(dealt, batch.width, batch.per_device, padded=padded).imbalance
    return upstream / count, balanced / count


def describe(forecast: TokenForecast | None, batch: Batch, family: Family) -> list[tuple[str, str]]:
    """The forecast as facts of a plan: a name and a text each. A trainer of TRL's `family` has no tokenising pass."""
    if forecast is None:
        return [("lengths", UNKNOWN_TRL if family == Family.trl else UNKNOWN)]
    loss = f"; {forecast.loss_share:.0%} of the tokens carry loss" if forecast.loss_share is not None else ""
    data = f"{forecast.samples:,} samples, mean {forecast.mean:,.0f}, longest {forecast.longest:,} tokens{loss}"
    step = f"{forecast.tokens_per_step:,.0f} a step without padding"
    if forecast.micro_batch is not None:
        step += f"; micro batch of {batch.per_device}: mean {forecast.micro_batch:,.0f}, 99% within "
        step += f"{forecast.micro_batch_p99:,}, {forecast.padding_share:.0%} padding"
    facts = [("lengths", data), ("tokens", step)]
    if forecast.imbalance_upstream is not None:
        text = f"tokens a rank, largest over mean: {forecast.imbalance_upstream:.2f} in upstream's order"
        if forecast.imbalance_balanced is not None:
            text += f", {forecast.imbalance_balanced:.2f} with recipe.balanced=true"
        facts.append(("balance", text))
    return facts
