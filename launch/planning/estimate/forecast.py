"""A plan's peak memory against the card: for the longest micro batch that its limit allows, and for the data's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from launch.planning.estimate.memory import MemoryEstimate, estimate_memory
from launch.planning.estimate.planned import UnknownMemoryError, planned_setting
from launch.planning.estimate.remedy import Remedy, remedy_for
from launch.planning.estimate.setting import MemorySetting
from launch.planning.lengths import Lengths
from launch.planning.plan import Plan

UNCERTAINTY = 0.15  # of a prediction; docs/explanation/memory.md has the measured errors
TAIL = 5.0  # standard deviations above the mean: the longest of some 100,000 packed micro batches of a run


class MemoryFit(StrEnum):
    """Whether a predicted peak fits a card."""

    fits = "fits"
    tight = "tight"  # the card's memory is within the prediction's uncertainty
    wont = "won't fit"
    unknown = "unknown"  # there is no prediction, or no card


@dataclass(frozen=True)
class CardMemory:
    """The memory of one card."""

    gib: float
    source: str  # where the number comes from


@dataclass(frozen=True)
class MemoryForecast:
    """A plan's predicted peak memory against a card."""

    setting: MemorySetting | None = None
    worst: MemoryEstimate | None = None  # every sample as long as the limit; None when the memory is unknown
    longest: MemoryEstimate | None = None  # the data's longest micro batch; None without the data's lengths
    longest_tokens: int | None = None  # of that micro batch
    first: MemoryEstimate | None = None  # the least that a first micro batch is expected to take
    first_tokens: int | None = None  # of that micro batch
    card: CardMemory | None = None
    why: str = ""  # the reason why the memory is unknown

    @property
    def expected(self) -> MemoryEstimate | None:
        """The estimate to go by: for the data where its lengths are known, else for the limit."""
        return self.longest or self.worst

    @property
    def fit(self) -> MemoryFit:
        return classify_fit(self.expected, self.card)

    @property
    def cannot_start(self) -> bool:
        """Whether even the first micro batch needs more than the card has."""
        return self.first is not None and self.card is not None and self.first.required > self.card.gib

    @property
    def remedy(self) -> Remedy | None:
        """The change that makes an uncertain setting fit; None when it fits already, or no change does."""
        if self.setting is None or self.card is None or self.fit not in (MemoryFit.tight, MemoryFit.wont):
            return None
        tokens = self.longest_tokens or self.setting.tokens
        return remedy_for(replace(self.setting, tokens=tokens), self.card.gib / (1 + UNCERTAINTY))

    def as_json(self) -> dict[str, Any]:
        card = {"gib": round(self.card.gib, 2), "source": self.card.source} if self.card else None
        return {
            "fit": self.fit.value,
            "why_unknown": self.why or None,
            "gpu": card,
            "uncertainty": UNCERTAINTY,
            "worst_tokens": self.setting.tokens if self.setting else None,
            "worst": self.worst.as_json() if self.worst else None,
            "longest_tokens": self.longest_tokens,
            "longest": self.longest.as_json() if self.longest else None,
            "first_tokens": self.first_tokens,
            "first": self.first.as_json() if self.first else None,
            "cannot_start": self.cannot_start,
            "remedy": dict(self.remedy.overrides) if self.remedy else None,
        }


def classify_fit(estimate: MemoryEstimate | None, card: CardMemory | None) -> MemoryFit:
    """Compare a prediction with a card, by the prediction's uncertainty.

    A run fits if what torch reserves does; it won't if what it allocates does not, as cached blocks can be given back.
    """
    if estimate is None or card is None:
        return MemoryFit.unknown
    if estimate.total * (1 + UNCERTAINTY) <= card.gib:
        return MemoryFit.fits
    return MemoryFit.tight if estimate.required * (1 - UNCERTAINTY) <= card.gib else MemoryFit.wont


def forecast_memory(
    plan: Plan, environ: Mapping[str, str], *, card: CardMemory | None, lengths: Lengths | None, flash: bool
) -> MemoryForecast:
    """Forecast the memory of a plan. Reads the local model's config.json and the headers of its weights.

    `lengths`: of the tokenised data; `flash`: flash-attn is installed for the trainer.
    """
    try:
        setting = planned_setting(plan, environ, flash=flash)
    except UnknownMemoryError as unknown:
        return MemoryForecast(card=card, why=str(unknown))
    worst = estimate_memory(setting)
    first_tokens = average_micro_batch(lengths, setting)
    first = estimate_memory(replace(setting, tokens=first_tokens))
    if lengths is None:
        return MemoryForecast(setting, worst, card=card, first=first, first_tokens=first_tokens)
    tokens = longest_micro_batch(lengths, setting)
    longest = estimate_memory(replace(setting, tokens=tokens))
    return MemoryForecast(setting, worst, longest, tokens, first, first_tokens, card)


def average_micro_batch(lengths: Lengths | None, setting: MemorySetting) -> int:
    """Return the tokens of a micro batch of average samples without padding, the least to expect of the first one.
    Without the data's lengths it is a token for each sequence: only what does not depend on the data is known then."""
    if lengths is None:
        return setting.sequences
    return max(setting.sequences, round(setting.micro_batch * lengths.tokens.mean))


def longest_micro_batch(lengths: Lengths, setting: MemorySetting) -> int:
    """Return the tokens of the longest micro batch of a whole run, with padding.

    Padded, its rows are as long as the longest sample of the data, which is in some micro batch. Packed, it is a sum,
    taken some standard deviations above its mean, but at most the longest sample times the micro batch size.
    """
    if not setting.packing:
        halves = lengths.longer or lengths.tokens
        return setting.sequences * halves.longest
    mean, counts = lengths.tokens.mean, lengths.tokens.counts
    deviation = math.sqrt(math.fsum((length - mean) ** 2 * count for length, count in counts) / lengths.tokens.samples)
    size = setting.micro_batch
    likely = math.ceil(size * mean + TAIL * deviation * math.sqrt(size))
    return max(lengths.tokens.longest, min(likely, size * lengths.tokens.longest))


def describe(forecast: MemoryForecast) -> list[str]:
    """Describe the forecast in lines: the peak against the card, its parts, and the effect of the data's lengths."""
    if forecast.worst is None or forecast.setting is None:
        return [f"unknown: {forecast.why}"]
    setting = forecast.setting
    card = f" of {forecast.card.gib:.1f} GiB ({forecast.card.source})" if forecast.card else ""
    packed = "packed" if setting.packing else "padded"
    limit = setting.tokens // setting.sequences
    at_limit = f"at the limit, {setting.sequences} x {limit} tokens {packed}"
    lines = []
    if forecast.longest:
        lines.append(f"{forecast.longest.total:.1f} GiB{card} per GPU: {forecast.fit}; the data's longest micro batch, "
                     f"{forecast.longest_tokens} tokens {packed}")  # fmt: skip
        lines.append(_describe_parts(forecast.longest))
        lines.append(f"{forecast.worst.total:.1f} GiB: {classify_fit(forecast.worst, forecast.card)}; {at_limit}")
    else:
        fit = f": {forecast.fit}" if forecast.card else ""
        lines.append(f"{forecast.worst.total:.1f} GiB{card} per GPU{fit}; {at_limit}")
        lines.append(_describe_parts(forecast.worst))
    if forecast.remedy:
        lines.append(f"would fit: {forecast.remedy} ({forecast.remedy.gib:.1f} GiB)")
    elif forecast.fit == MemoryFit.wont:
        lines.append("no setting with this global batch fits at this width")
    elif forecast.card is None:
        lines.append("the GPU is unknown: set cluster.gpu_memory=GIB, or cluster.gpu_type to its name, such as h100")
    return lines


def _describe_parts(estimate: MemoryEstimate) -> str:
    return ", ".join(f"{name} {size:.1f}" for name, size in estimate.parts().items() if size >= 0.05)
