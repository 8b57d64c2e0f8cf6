"""What a short run measured, read back from its folder: speed, figures, and the operations that its
MFU counts.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from launch.config.schema import Device, Kind, Packing
from launch.execution.record.events import PHASES
from launch.execution.record.outcome import Outcome, folder_status
from launch.execution.record.run import Run
from launch.execution.record.steps import logged_number
from launch.planning.estimate.cards import card_memory
from launch.planning.estimate.forecast import has_reference
from launch.planning.estimate.shape import token_flops
from launch.planning.flags import values_of
from launch.planning.parallel import Width, has_master_weights
from launch.planning.plan import Plan
from launch.trials.card_rate import CardRate

# cause_id of a run that was ended because its seconds were used up (execution.engine)
TIME_USED = "time_used"


@dataclass(frozen=True)
class Measurement:
    """What one run measured."""

    plan: Plan
    requested_steps: int
    outcome: Outcome
    steps: tuple[
        Mapping[str, Any], ...
    ] = ()  # the objects of metrics.jsonl, up to the last requested step
    evidence: tuple[Mapping[str, Any], ...] = ()  # the items of evidence.json
    inspected_ranks: frozenset[int] = frozenset()  # that inspected their model at the first step
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of each
    total_steps: int | None = None  # of the whole training, as the trainer reports it
    card_gib: float | None = None  # memory of a GPU, None where unknown

    @property
    def expected_steps(self) -> int:
        """The steps that this run had to do: the requested ones, or all of a training that has
        fewer.
        """
        return min(self.requested_steps, self.total_steps or self.requested_steps)

    @property
    def width(self) -> Width:
        return self.plan.parallel.width

    @property
    def has_masters(self) -> bool:
        """Whether the optimizer updates fp32 master weights."""
        return has_master_weights(self.plan.config.trainer.family, self.plan.parallel)

    @property
    def finished(self) -> bool:
        """Whether the run succeeded and logged its last step."""
        return (
            self.outcome.exit_code == 0
            and len(self.steps) > 0
            and self.last_step >= self.expected_steps
        )

    @property
    def last_step(self) -> int:
        """The last logged step, 0 without one."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    def values(self, name: str) -> list[float]:
        """The numbers under `name`, step by step, NaN and infinities included; steps without one
        are left out.
        """
        return [value for _, value in self.series(name)]

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, number) of each step that has one."""
        numbers = ((int(step["step"]), logged_number(step, name)) for step in self.steps)
        return [(step, value) for step, value in numbers if value is not None]


def finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def read_measurement(plan: Plan, steps: int) -> Measurement | None:
    """Read what the run of `plan` left in its folder; None if no run has ended there."""
    run = Run(plan.folder)
    if run.outcome is None:
        return None
    nodes = [run, *map(Run, plan.folder.glob("nodes/*"))]
    ranks = {
        event.rank
        for node in nodes
        for event in node.events("evidence")
        if event.data["what"] == "dtype"
    }
    card = card_memory(plan.config.cluster, plan.machine.environ)
    return Measurement(
        plan=plan,
        requested_steps=steps,
        outcome=run.outcome,
        steps=tuple(step for step in run.steps() if step["step"] <= steps),
        evidence=tuple(run.evidence),
        inspected_ranks=frozenset(ranks),
        phases=_phase_seconds(run),
        total_steps=run.total_steps,
        card_gib=card.gib if card else None,
    )


def archive_earlier_try(plan: Plan) -> None:
    """Rename the folder of an earlier try of the same plan, if there is one, so that the folder is
    free.
    """
    if folder_status(plan.folder) != "absent":
        plan.folder.rename(
            plan.folder.with_name(f"{plan.folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        )


def _phase_seconds(run: Run) -> dict[str, float]:
    """Seconds of each phase; the last one ended with the run."""
    seconds: dict[str, float] = {}
    for phase in itertools.chain(*run.event_summary.attempts):
        if phase.ended is not None:
            seconds[phase.name] = round(seconds.get(phase.name, 0.0) + phase.ended - phase.began, 3)
    return seconds


def step_rates(measured: Measurement, skip: int = 0) -> tuple[str, list[float]]:
    """The unit of the rates, tokens without padding or samples, and the rate of each timed step
    after the first `skip`.
    """
    timed, size = timed_steps(measured, skip), measured.plan.batch.global_
    if all(tokens is not None for _, tokens in timed):
        return "tokens", [(tokens or 0.0) / seconds for seconds, tokens in timed]
    return "samples", [size / seconds for seconds, _ in timed]


def second_half_ratio(measured: Measurement, skip: int) -> float | None:
    """The median rate of the second half of the steps over that of the first half."""
    rates = step_rates(measured)[1][skip:]
    middle = len(rates) // 2
    if middle == 0:
        return None
    first = statistics.median(rates[:middle])
    return statistics.median(rates[middle:]) / first if first > 0 else None


def padding_share(measured: Measurement) -> float | None:
    """The fraction of padding among all tokens of all steps."""
    pairs = [
        (logged_number(step, "tokens"), logged_number(step, "tokens_padded"))
        for step in measured.steps
    ]
    counted = [(tokens, padded) for tokens, padded in pairs if tokens is not None and padded]
    total = sum(padded for _, padded in counted)
    return 1 - sum(tokens for tokens, _ in counted) / total if total else None


def timed_steps(
    measured: Measurement, skip: int = 0, name: str = "tokens"
) -> list[tuple[float, float | None]]:
    """(seconds, tokens, or what else `name` counts) of each step that has a time, without the first
    `skip`, or fewer if there are no others.
    """
    steps = ((logged_number(step, "seconds"), logged_number(step, name)) for step in measured.steps)
    timed = [(seconds, tokens) for seconds, tokens in steps if seconds is not None and seconds > 0]
    return timed[min(skip, max(0, len(timed) - 1)) :]


LEAST_NOISE = 0.02  # of a rate measured over a few steps
_ONE_STEP_NOISE = 0.2
_LEAST_STEPS = 2  # from which a spread can be computed
_STARTUP = PHASES[: PHASES.index("training")]  # which a run goes through once


@dataclass(frozen=True)
class Figures:
    """One run. Rates are of the `counted_steps` steps after the warm-up, over all ranks."""

    per_second: float
    unit: str  # of the rate: tokens without padding, else samples
    step_seconds: float
    counted_steps: int
    noise: float = LEAST_NOISE  # standard error of the rate's logarithm
    padded_per_second: float | None = None  # tokens, padding included
    padding: float | None = None  # fraction of all tokens
    flops: float | None = None  # operations of the model per second
    mfu_measured: float | None = None  # `flops` over the measured peak rate of the cards
    mfu_datasheet: float | None = None  # `flops` over the data sheet's peak rate
    memory_gib: float | None = None  # peak of rank 0, allocated
    reserved_gib: float | None = None  # peak of rank 0, reserved by torch
    first_loss: float | None = None
    loss: float | None = None  # after the last step
    losses: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()  # without padding, of each step, warm-up included
    before: float = 0.0  # seconds of the phases before the training


def compute_figures(
    measured: Measurement, warmup: int, rate: CardRate | None = None, *, typical: bool = False
) -> Figures | None:
    """The figures of a run after its first `warmup` steps, or fewer if there are no others; None
    when its steps have no times.

    The speed is the mean, or where `typical` the medians over the steps: early steps still allocate
    memory and compile.
    """
    seconds = [seconds for seconds, _ in timed_steps(measured, warmup)]
    if not seconds:
        return None
    unit, rates = step_rates(measured, warmup)
    if typical:
        per_second, step_seconds = statistics.median(rates), statistics.median(seconds)
    else:
        per_second, step_seconds = (
            statistics.fmean(rates, weights=seconds),
            statistics.fmean(seconds),
        )
    noise, logs = _ONE_STEP_NOISE, [math.log(rate) for rate in rates if rate > 0]
    if len(logs) >= _LEAST_STEPS:
        noise = max(LEAST_NOISE, statistics.stdev(logs) / math.sqrt(len(logs)))
    plan, losses, tokens = (
        measured.plan,
        tuple(measured.values("loss")),
        tuple(measured.values("tokens")),
    )
    padded = [
        count for _, count in timed_steps(measured, warmup, "tokens_padded") if count is not None
    ]
    per_token = count_operations(plan, tokens).per_token if unit == "tokens" else None
    flops = None if per_token is None else per_second * per_token
    # ranks on CPU share the machine
    cards = plan.batch.width if plan.parallel.width.device == Device.cuda else 1
    return Figures(
        per_second=per_second,
        unit=unit,
        step_seconds=step_seconds,
        counted_steps=len(seconds),
        noise=noise,
        padded_per_second=sum(padded) / sum(seconds) if len(padded) == len(seconds) else None,
        padding=padding_share(measured),
        flops=flops,
        mfu_measured=_compute_mfu(flops, rate.measured_tflops if rate else None, cards),
        mfu_datasheet=_compute_mfu(flops, rate.datasheet_tflops if rate else None, cards),
        memory_gib=max(measured.values("memory_gib"), default=None),
        reserved_gib=max(measured.values("memory_reserved_gib"), default=None),
        first_loss=losses[0] if losses else None,
        loss=losses[-1] if losses else None,
        losses=losses,
        tokens=tokens,
        before=sum(measured.phases.get(phase, 0.0) for phase in _STARTUP),
    )


def measurement_json(
    measured: Measurement | None, figures: Figures | None
) -> dict[str, Any] | None:
    """What a run measured, as its record has it; None before it ran. A run that failed has some of
    it.
    """
    if measured is None:
        return None
    losses = measured.values("loss")
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


def _compute_mfu(flops: float | None, tflops: float | None, cards: int) -> float | None:
    return None if flops is None or not tflops else flops / (tflops * 1e12 * cards)


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that there are; None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


@dataclass(frozen=True)
class Operations:
    """Floating-point operations per token without padding."""

    per_token: float | None  # None when the model's shape is unknown
    # mean tokens of a document, which attention spans; None when attention is left out
    document_tokens: float | None
    reference_in_step: bool  # the reference model's forward pass in each step is counted too
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        if self.per_token is None:
            return f"MFU is unknown: {'; '.join(self.left_out)}"
        parts = [
            (
                f"MFU counts {self.per_token / 1e9:.4g} GFLOP per token without padding, without "
                "recomputation"
            )
        ]
        if self.document_tokens is not None:
            parts.append(f"attention over documents of {self.document_tokens:.0f} tokens, the mean")
        if self.reference_in_step:
            parts.append("the reference model's forward pass in each step")
        return "; ".join([*parts, *(f"not counted: {what}" for what in self.left_out)])


def count_operations(plan: Plan, tokens: Sequence[float]) -> Operations:
    """Count a plan's operations; `tokens`: without padding, of each step."""
    shape, frozen = plan.shape, plan.trains_adapter
    # open-instruct's trainers, and others with this flag, compute the reference's log-probs before
    # the training
    reference = has_reference(plan) and not values_of(plan.flags).get("precompute_ref_log_probs")
    document = _mean_document_tokens(plan, tokens)
    if shape is None:
        return Operations(None, document, reference, ("the model's shape is unknown",))
    left_out = (
        []
        if document is not None
        else ["attention, because the length of the documents is unknown"]
    )
    left_out += ["the adapters"] if frozen else []
    # one number per sequence instead of the output matrix
    headless = plan.config.stage.kind == Kind.rm
    per_token = token_flops(shape, document, frozen=frozen, reference=reference, headless=headless)
    return Operations(per_token, document, reference, tuple(left_out))


def _mean_document_tokens(plan: Plan, tokens: Sequence[float]) -> float | None:
    """The mean tokens of a document; None where packing fills a token budget, so that documents are
    not counted.
    """
    if not tokens or plan.config.recipe.packing == Packing.bins:
        return None
    documents = plan.batch.global_ * (2 if plan.config.stage.kind in (Kind.dpo, Kind.rm) else 1)
    return statistics.fmean(tokens) / documents
