"""The figures of a short run, and of one setting over its runs; the operations per token that its MFU counts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from launch.config.schema import Device, Kind, Packing
from launch.planning.estimate.flops import token_flops
from launch.planning.estimate.shape import ModelShape, read_shape, shape_from_yaml
from launch.planning.plan import Plan
from launch.trials.bench.statistics import median
from launch.trials.card_rate import CardRate
from launch.trials.measurement import Measurement, compute_speed, number, padding_share

_ADAPTERS = ("use_lora", "use_qlora", "use_peft")


@dataclass(frozen=True)
class Figures:
    """One run. Rates are of the steps after the warm-up, over all ranks."""

    per_second: float
    unit: str  # tokens, without padding, or samples
    padded_per_second: float | None  # tokens, padding included
    step_seconds: float
    counted_steps: int  # after the warm-up
    padding: float | None  # fraction of all tokens
    flops: float | None  # operations of the model per second
    mfu_measured: float | None  # `flops` over the measured peak rate of the cards
    mfu_datasheet: float | None  # `flops` over the data sheet's peak rate
    memory_gib: float | None  # peak of rank 0, allocated
    reserved_gib: float | None  # peak of rank 0, reserved by torch
    first_loss: float | None
    loss: float | None  # after the last step
    losses: tuple[float, ...]
    tokens: tuple[float, ...]  # without padding, of each step, warm-up included
    before: float  # seconds of the phases before the training


def compute_figures(measured: Measurement, plan: Plan, warmup: int, rate: CardRate | None) -> Figures | None:
    """The figures of a run; None when its steps have no times."""
    speed = compute_speed(measured, warmup)
    if speed is None:
        return None
    losses, tokens = tuple(measured.values("loss")), tuple(measured.values("tokens"))
    later = measured.steps[warmup:]
    padded = [number(step, "tokens_padded") for step in later]
    seconds = [number(step, "seconds") for step in later]
    padded_tokens = sum(count for count in padded if count is not None)
    elapsed = sum(duration or 0.0 for duration in seconds)
    per_token = count_operations(plan, tokens).per_token if speed.unit == "tokens" else None
    flops = None if per_token is None else speed.per_second * per_token
    cards = plan.batch.width if plan.parallel.width.device == Device.cuda else 1  # ranks on CPU share the machine
    return Figures(
        per_second=speed.per_second,
        unit=speed.unit,
        padded_per_second=padded_tokens / elapsed if padded_tokens and None not in padded else None,
        step_seconds=speed.step_seconds,
        counted_steps=speed.steps,
        padding=padding_share(measured),
        flops=flops,
        mfu_measured=_compute_mfu(flops, rate.measured if rate else None, cards),
        mfu_datasheet=_compute_mfu(flops, rate.datasheet if rate else None, cards),
        memory_gib=max(measured.values("memory_gib"), default=None),
        reserved_gib=max(measured.values("memory_reserved_gib"), default=None),
        first_loss=losses[0] if losses else None,
        loss=losses[-1] if losses else None,
        losses=losses,
        tokens=tokens,
        before=sum(duration for phase, duration in measured.phases.items() if phase != "training"),
    )


def measurement_json(measured: Measurement | None, warmup: int, rate: CardRate | None = None) -> dict[str, Any] | None:
    """What a run measured, as its record has it; None before it ran. A run that failed has some of it."""
    if measured is None:
        return None
    figures, losses = compute_figures(measured, measured.plan, warmup, rate), measured.values("loss")
    return {
        "steps": measured.last_step,
        "total_steps": measured.total_steps,
        "phases": dict(measured.phases),
        "exit_code": measured.outcome.exit_code,
        "cause": measured.outcome.cause,
        **dict.fromkeys(field.name for field in fields(Figures)),
        "first_loss": losses[0] if losses else None,
        "loss": losses[-1] if losses else None,
        **(asdict(figures) if figures else {}),
    }


def rates_of_steps(measured: Measurement, warmup: int) -> list[float]:
    """The rate of each step after the warm-up: tokens per second, or steps where tokens are not counted."""
    timed = [(number(step, "tokens"), number(step, "seconds")) for step in measured.steps[warmup:]]
    counted = all(tokens for tokens, _ in timed)
    return [((tokens or 0.0) if counted else 1.0) / seconds for tokens, seconds in timed if seconds]


def _compute_mfu(flops: float | None, rate: float | None, cards: int) -> float | None:
    return None if flops is None or not rate else flops / (rate * cards)


def median_figure(figures: Sequence[Figures], name: str) -> float | None:
    """The median of a figure over the runs that have it."""
    return median([getattr(run, name) for run in figures])


@dataclass(frozen=True)
class Operations:
    """Floating-point operations per token without padding."""

    per_token: float | None  # None when the model's shape is unknown
    document: float | None  # mean tokens of a document, which attention spans; None when attention is left out
    reference: bool  # the reference model's forward pass in each step is counted too
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        if self.per_token is None:
            return f"MFU is unknown: {'; '.join(self.left_out)}"
        parts = [f"MFU counts {self.per_token / 1e9:.4g} GFLOP per token without padding, without recomputation"]
        if self.document is not None:
            parts.append(f"attention over documents of {self.document:.0f} tokens, the mean")
        if self.reference:
            parts.append("the reference model's forward pass in each step")
        return "; ".join([*parts, *(f"not counted: {what}" for what in self.left_out)])

    def as_json(self) -> dict[str, Any]:
        return {
            "per_token": self.per_token,
            "document_tokens": self.document,
            "reference_in_step": self.reference,
            "left_out": list(self.left_out),
        }


def count_operations(plan: Plan, tokens: Sequence[float]) -> Operations:
    """Count a plan's operations; `tokens`: without padding, of each step."""
    shape, reference = _find_shape(plan), _evaluates_reference(plan)
    document = _mean_document_tokens(plan, tokens)
    frozen = any(name in plan.flags and plan.flags[name].value is True for name in _ADAPTERS)
    if shape is None:
        return Operations(None, document, reference, ("the model's shape is unknown",))
    left_out = [] if document is not None else ["attention, because the length of the documents is unknown"]
    left_out += ["the adapters"] if frozen else []
    headless = plan.config.stage.kind == Kind.rm  # one number per sequence instead of the output matrix
    per_token = token_flops(shape, document, frozen=frozen, reference=reference, headless=headless)
    return Operations(per_token, document, reference, tuple(left_out))


def _mean_document_tokens(plan: Plan, tokens: Sequence[float]) -> float | None:
    """The mean tokens of a document; None where packing fills a token budget, so that documents are not counted."""
    if not tokens or plan.config.recipe.packing == Packing.bins:
        return None
    documents = plan.batch.global_ * (2 if plan.config.stage.kind in (Kind.dpo, Kind.rm) else 1)
    return statistics.fmean(tokens) / documents


def _find_shape(plan: Plan) -> ModelShape | None:
    """The shape in the model folder's config.json, else the one in the model's YAML."""
    local = plan.inputs.model.local
    shape = read_shape(local) if local else None
    return shape or (None if plan.config.model.path else shape_from_yaml(plan.config.model.shape))


def _evaluates_reference(plan: Plan) -> bool:
    """Whether each step runs the reference model too; open-instruct's trainers cache its log-probs before training."""
    if not plan.config.trainer.live_reference:
        return False
    cached = plan.flags.get("precompute_ref_log_probs")
    return not (cached and cached.value is True)
