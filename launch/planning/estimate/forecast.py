"""Forecasts a plan's peak memory and compares it with the GPU's.

The peak is predicted for the longest micro batch that the limit of a sample allows, and for the
longest one of the data. The module planned_setting makes the setting that is estimated, and
out_of_memory decides what to change if it does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from launch.config.schema import Device
from launch.planning.estimate.cards import CardMemory, card_memory, describe_unknown_card
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.memory_estimate import (
    EVALUATION,
    GENERATION,
    UNCERTAINTY,
    MemoryEstimate,
    largest_fitting,
)
from launch.planning.estimate.model_state import host_bytes
from launch.planning.estimate.out_of_memory import Remedy, find_remedy
from launch.planning.estimate.planned_setting import UnknownMemoryError, planned_setting
from launch.planning.estimate.setting import (
    MemorySetting,
    average_micro_batch,
    longest_micro_batch,
)
from launch.planning.lengths import Lengths, load_lengths
from launch.planning.plan import Plan
from launch.table import format_bytes
from launch.worker.wording import count_of

_LIMIT_KEY = "recipe.max_seq_length"


class MemoryFit(StrEnum):
    """Whether a predicted peak fits a GPU."""

    fits = "fits"
    tight = "tight"  # the GPU's memory is within the prediction's uncertainty
    wont = "won't fit"
    unknown = "unknown"  # there is no prediction, or no GPU


@dataclass(frozen=True)
class MemoryForecast:
    """A plan's predicted peak memory against a GPU."""

    setting: MemorySetting | None = None
    # The estimate if every sample is as long as the limit; None if the memory is unknown.
    worst: MemoryEstimate | None = None
    # The estimate for the data's longest micro batch; None without the data's lengths.
    longest: MemoryEstimate | None = None
    longest_tokens: int | None = None  # tokens of that micro batch
    first: MemoryEstimate | None = None  # the least that a first micro batch is expected to take
    first_tokens: int | None = None  # tokens of that micro batch
    card: CardMemory | None = None
    why_no_card: str = ""  # the reason why the GPU is unknown, and what to set
    lengths: Lengths | None = None  # the lengths of the tokenised data
    why: str = ""  # the reason why the memory is unknown
    liger: bool = True  # whether a remedy may be Liger

    @property
    def expected(self) -> MemoryEstimate | None:
        """The estimate for the data if its lengths are known, else the one for the limit."""
        return self.longest or self.worst

    @property
    def fit(self) -> MemoryFit:
        return classify_fit(self.expected, self.card)

    @property
    def cannot_start(self) -> bool:
        """Whether even the first micro batch needs more than the GPU has."""
        return (
            self.first is not None and self.card is not None and self.first.required > self.card.gib
        )

    @property
    def remedy(self) -> Remedy | None:
        """The change that makes an uncertain setting fit; None when it fits already, or no change
        does.
        """
        if self.setting is None or self.card is None:
            return None
        if self.fit not in (MemoryFit.tight, MemoryFit.wont):
            return None
        limit = largest_fitting(self.card.gib)
        return find_remedy(self.setting, limit, liger=self.liger, lengths=self.lengths)

    def __repr__(self) -> str:
        return f"<{describe_forecast(self)[0]}>"

    def json_fields(self) -> dict[str, Any]:
        card = {"gib": round(self.card.gib, 2), "source": self.card.source} if self.card else None
        return {
            "fit": self.fit.value,
            "why_unknown": self.why or None,
            "gpu": card,
            "uncertainty": UNCERTAINTY,
            "worst_tokens": self.setting.tokens if self.setting else None,
            "worst": self.worst,
            "longest_tokens": self.longest_tokens,
            "longest": self.longest,
            "first_tokens": self.first_tokens,
            "first": self.first,
            "cannot_start": self.cannot_start,
            "remedy": dict(self.remedy.overrides) if self.remedy else None,
        }


def classify_fit(estimate: MemoryEstimate | None, card: CardMemory | None) -> MemoryFit:
    """Compare a prediction with a GPU, by the prediction's uncertainty.

    A run fits if the memory that torch reserves does. It does not fit if the memory that torch
    allocates does not: reserved blocks that are not allocated can be freed.
    """
    if estimate is None or card is None:
        return MemoryFit.unknown
    if estimate.surely_fits(card.gib):
        return MemoryFit.fits
    if estimate.surely_exceeds(card.gib):
        return MemoryFit.wont
    return MemoryFit.tight


def forecast_memory(
    plan: Plan,
    environ: Mapping[str, str],
    *,
    card: CardMemory | None,
    lengths: Lengths | None,
    flash: bool,
) -> MemoryForecast:
    """Forecast the memory of a plan. Reads the local model's config.json and the headers of its
    weights.

    `lengths` are those of the tokenised data, if they are known. `flash` is whether flash-attn is
    installed for the trainer.
    """
    try:
        setting = planned_setting(plan, environ, flash=flash)
    except UnknownMemoryError as unknown:
        return MemoryForecast(card=card, why=str(unknown))
    worst = estimate_memory(setting)
    first_tokens = average_micro_batch(lengths, setting)
    first = estimate_memory(replace(setting, tokens=first_tokens, generation=None))
    if lengths is None:
        return MemoryForecast(setting, worst, card=card, first=first, first_tokens=first_tokens)
    tokens = longest_micro_batch(lengths, setting)
    longest = estimate_memory(replace(setting, tokens=tokens))
    return MemoryForecast(
        setting, worst, longest, tokens, first, first_tokens, card, lengths=lengths
    )


def forecast_on_machine(plan: Plan) -> MemoryForecast | None:
    """Return the forecast of a plan for GPUs; None for one on a CPU."""
    if plan.parallel.width.device != Device.cuda:
        return None
    environ = plan.machine.environ
    cluster = plan.config.cluster
    card = card_memory(cluster, environ)
    forecast = forecast_memory(
        plan,
        environ,
        card=card,
        lengths=load_lengths(plan.lengths_file),
        flash=plan.machine.has_flash_attention,
    )
    return forecast if card else replace(forecast, why_no_card=describe_unknown_card(cluster))


def describe_forecast(forecast: MemoryForecast) -> list[str]:
    """Describe the forecast in lines: the peak against the GPU, its parts, and the effect of the
    data's lengths.
    """
    if forecast.worst is None or forecast.setting is None:
        return [f"unknown: {forecast.why}"]
    setting = forecast.setting
    card = f" of {forecast.card.gib:.1f} GiB ({forecast.card.source})" if forecast.card else ""
    packed = "packed" if setting.packing else "padded"
    limit = setting.tokens // setting.sequences
    samples = count_of(setting.sequences, "sample")
    each = " each" if setting.sequences > 1 else ""
    at_limit = f"a micro batch of {samples} of {limit} tokens{each} ({_LIMIT_KEY}), {packed}, takes"
    lines = []
    if forecast.longest:
        longest = (
            f"the data's longest micro batch, {forecast.longest_tokens} tokens {packed}, takes"
        )
        lines.append(
            f"{forecast.fit}: {longest} {forecast.longest.total:.1f} GiB{card} on each GPU"
        )
        lines.append(_describe_parts(forecast.longest))
        fit_at_limit = classify_fit(forecast.worst, forecast.card)
        lines.append(f"{fit_at_limit}: {at_limit} {forecast.worst.total:.1f} GiB")
    else:
        fit = f"{forecast.fit}: " if forecast.card else ""
        lines.append(f"{fit}{at_limit} {forecast.worst.total:.1f} GiB{card} on each GPU")
        lines.append(_describe_parts(forecast.worst))
    if host_bytes(setting):
        lines.append(f"the machine's own memory holds {format_bytes(host_bytes(setting))} of it")
    if forecast.remedy:
        lines.append(f"would fit: {_describe_remedy(forecast.remedy)}")
    elif forecast.fit == MemoryFit.wont:
        lines.append("no setting with this global batch fits at this width")
    elif forecast.card is None and forecast.why_no_card:
        lines.append(forecast.why_no_card)
    return lines


def _describe_remedy(remedy: Remedy) -> str:
    held = host_bytes(remedy.setting)
    on_host = f", and {format_bytes(held)} of the machine's own memory" if held else ""
    return f"{remedy} ({remedy.gib:.1f} GiB{on_host})"


def _describe_parts(estimate: MemoryEstimate) -> str:
    moment = ""
    if estimate.moment in (GENERATION, EVALUATION):
        moment = f"in {estimate.moment}: "
    parts = [f"{name} {size:.1f}" for name, size in estimate.parts().items() if size >= 0.05]
    return moment + ", ".join(parts)
