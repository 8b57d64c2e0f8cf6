"""What a gate is, and those that judge a width by itself: rules with stable ids."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.config.schema import Device, Kind
from launch.config.trials import GatesConfig
from launch.execution.completion import compare_first_loss
from launch.trials.measurement import (
    Measurement,
    compute_figures,
    finite,
    padding_share,
    second_half_ratio,
)
from launch.worker.finding import TOO_SHORT, Finding

# RLVR's loss is 0 by construction, and its data is sampled
LOSS_KINDS = (Kind.sft, Kind.dpo, Kind.rm)
_DPO = (Kind.dpo,)
_NO_REFERENCE = ("simpo",)
OUT_OF_MEMORY = ("out_of_memory", "host_memory")


@dataclass(frozen=True)
class GateCase:
    """What a gate judges."""

    now: Measurement
    before: Measurement | None  # of the width before, None at the first
    config: GatesConfig


GateFunction = Callable[[GateCase], Finding | None]


@dataclass(frozen=True)
class Gate:
    """One rule."""

    id: str
    reason: str  # why it exists
    source: str  # where it, or its limit, comes from
    kinds: tuple[Kind, ...]
    early: bool  # it also judges a width that did not finish
    judge: GateFunction

    def apply(self, case: GateCase, allow: Collection[str]) -> Finding | None:
        """Return the gate's result; None where it does not apply to this width."""
        applies = case.now.plan.config.stage.kind in self.kinds and (
            self.early or case.now.finished
        )
        result = self.judge(case) if applies else None
        return result and replace(result, id=self.id).apply_allow(allow)


def gate(
    id: str, source: str, *, kinds: tuple[Kind, ...] = tuple(Kind), early: bool = False
) -> Callable[[GateFunction], Gate]:
    """Make a gate of a function whose docstring is the reason. The function returns None where the
    gate does not apply: another kind of loss, no width before.
    """

    def make(function: GateFunction) -> Gate:
        return Gate(id, " ".join((function.__doc__ or "").split()), source, kinds, early, function)

    return make


def passed(message: str, **numbers: Any) -> Finding:
    return Finding("", message, severity="pass", numbers=numbers)


def warned(message: str, **numbers: Any) -> Finding:
    return Finding("", message, severity="warn", numbers=numbers)


def failed(message: str, **numbers: Any) -> Finding:
    return Finding("", message, numbers=numbers)


def _find_not_finite(what: str, series: Sequence[tuple[int, float]]) -> Finding | None:
    """A failure at the first of the (step, value) pairs whose value is not finite."""
    bad = [(step, value) for step, value in series if not math.isfinite(value)]
    return (
        failed(f"the {what} is {bad[0][1]} at step {bad[0][0]}", step=bad[0][0], steps=len(bad))
        if bad
        else None
    )


@gate("finished_steps", "the trainer's exit code and the steps that it logged", early=True)
def finished_steps(case: GateCase) -> Finding:
    """A width that did not finish its steps has measured nothing to compare the next one with."""
    now, outcome, done = case.now, case.now.outcome, case.now.last_step
    if now.finished:
        return passed(
            f"{done} of {now.expected_steps} steps", steps=done, wanted=now.expected_steps
        )
    cause = outcome.cause or "the run ended early without an error"
    cure = f"; {outcome.cure}" if outcome.cure else ""
    message = f"it ended after {done} of {now.expected_steps} steps: {cause}{cure}"
    return failed(message, steps=done, wanted=now.expected_steps, exit_code=outcome.exit_code)


@gate("loss_finite", "a weight that has become NaN stays NaN", early=True)
def loss_finite(case: GateCase) -> Finding | None:
    """A loss that is not finite has already destroyed the weights."""
    series = case.now.series("loss")
    if not series:
        return failed("no loss was logged", steps=len(case.now.steps)) if case.now.steps else None
    last = series[-1][1]
    passes = passed(f"{len(series)} losses, the last one {last:.4g}", steps=len(series), last=last)
    return _find_not_finite("loss", series) or passes


@gate(
    "memory_room",
    "torch.cuda.max_memory_allocated of rank 0; the allocator reserves somewhat more",
    early=True,
)
def memory_room(case: GateCase) -> Finding | None:
    """A run that barely fits fails at the longest sample, hours later."""
    now = case.now
    if now.outcome.cause_id in OUT_OF_MEMORY:
        cure = f"; {now.outcome.cure}" if now.outcome.cure else ""
        return failed(
            f"out of memory after {now.outcome.steps} steps{cure}", steps=now.outcome.steps
        )
    if now.width.device == Device.cpu:
        return passed("no GPU: host memory is not judged") if now.finished else None
    if not now.steps:
        return None
    peaks = now.values("memory_reserved_gib") or now.values("memory_gib")
    if not peaks:
        return warned("the trainer logs no memory")
    peak = max(peaks)
    if now.card_gib is None:
        return warned(f"{peak:.1f} GiB at the peak; the card's memory is unknown", peak_gib=peak)
    room = 1 - peak / now.card_gib
    numbers = {"peak_gib": peak, "card_gib": now.card_gib, "room": room}
    message = f"{peak:.1f} of {now.card_gib:.1f} GiB at the peak, {room:.0%} left"
    return (
        passed(message, **numbers)
        if room >= case.config.memory_room.room
        else warned(message, **numbers)
    )


@gate(
    "evidence_complete",
    "evidence.json: what the worker found in the trainer's objects at the first step",
    early=True,
)
def evidence_complete(case: GateCase) -> Finding | None:
    """Upstream falls back silently: Liger, packing, ZeRO or a rank may be missing and the loss
    still falls.
    """
    allow = case.now.plan.config.allow
    required = (item for item in case.now.evidence if f"refuted_{item['what']}" not in allow)
    requested = [
        item
        for item in required
        if item.get("requested") is not None and item.get("how") != TOO_SHORT
    ]
    unproven = [item for item in requested if item.get("verdict") != "proven"]
    refuted = [item for item in unproven if item.get("verdict") == "refuted"]
    numbers = {"asked": len(requested), "proven": len(requested) - len(unproven)}
    if refuted:
        parts = (
            f"{item['what']}={item['requested']} was requested, but is {item.get('found')}"
            for item in refuted
        )
        return failed("; ".join(parts), refuted=[item["what"] for item in refuted], **numbers)
    if requested and not unproven:
        values = {item["what"]: item.get("found") for item in case.now.evidence}
        shown = [
            f"{name} {values[name]}"
            for name in ("liger", "packing", "attention", "dtype")
            if values.get(name)
        ]
        return passed(f"all {len(requested)} proven; {', '.join(shown)}", **numbers)
    if not case.now.finished:
        return None  # the run ended before the inspection; another gate reports the cause
    names = ", ".join(f"{item['what']}={item['requested']}" for item in unproven)
    return failed(
        f"no proof of {names}" if requested else "the run proved no setting of its plan", **numbers
    )


@gate(
    "all_ranks_step",
    "each rank reports its model at its first step; every step reduces gradients over all ranks",
)
def all_ranks_step(case: GateCase) -> Finding | None:
    """A rank that trains alone, or not at all, changes the batch silently."""
    now = case.now
    size = now.plan.batch.width
    if size == 1:
        return None
    missing = sorted(set(range(size)) - now.inspected_ranks)
    if missing:
        names = ", ".join(map(str, missing))
        return failed(f"no first step of rank {names} was reported", ranks=size, missing=missing)
    backend = next(
        (str(item.get("found")) for item in now.evidence if item.get("what") == "backend"), None
    )
    if now.width.device == Device.cuda and backend is not None and "nccl" not in backend:
        return failed(
            f"the ranks communicate through {backend}, not NCCL", ranks=size, backend=backend
        )
    through = f"through {backend}" if backend else "through an unknown backend"
    return passed(
        f"all {size} ranks took their first step and continued together, {through}", ranks=size
    )


@gate(
    "grad_norm_sane",
    "clipping hides an exploding norm from the loss, not from the optimizer's moments",
    early=True,
)
def grad_norm_sane(case: GateCase) -> Finding | None:
    """A gradient norm that is huge, or jumps, is the first sign of divergence."""
    config = case.config.grad_norm_sane
    series = case.now.series("grad_norm")
    if not series:
        return warned("this trainer logs no gradient norm") if case.now.steps else None
    if bad := _find_not_finite("gradient norm", series):
        return bad
    norms = [norm for _, norm in series]
    median, most = statistics.median(norms), max(norms)
    spikes = [step for step, norm in series if norm > config.spike * median]
    numbers = {
        "median": median,
        "most": most,
        "limit": config.limit,
        "spikes": len(spikes),
        "steps": len(norms),
    }
    if median > config.limit:
        return failed(
            f"the median gradient norm is {median:.4g}, above {config.limit:.4g}", **numbers
        )
    if len(spikes) > max(1, config.spikes * len(norms)):
        message = (
            f"{len(spikes)} of {len(norms)} gradient norms are above {config.spike:g} x the "
            f"median ({median:.4g})"
        )
        return failed(message, **numbers)
    if spikes:
        return warned(
            f"a gradient norm of {most:.4g} at step {spikes[0]}; the median is {median:.4g}",
            **numbers,
        )
    return passed(f"median {median:.4g}, at most {most:.4g}", **numbers)


@gate(
    "loss_falls",
    "Mann-Kendall's test, and medians of the first and last steps: both are robust against single "
    "spikes",
    kinds=LOSS_KINDS,
)
def loss_falls(case: GateCase) -> Finding | None:
    """A loss that does not fall in the first steps shows a wrong learning rate, wrong labels or a
    wrong template.
    """
    config = case.config.loss_falls
    losses = [loss for loss in case.now.values("loss") if math.isfinite(loss)]
    if not losses:
        return None
    if len(losses) < config.short:
        return warned(
            f"{len(losses)} steps are too few to show a trend",
            steps=len(losses),
            least=config.short,
        )
    z = mann_kendall(losses)
    part = max(3, len(losses) // 10)
    start, end = statistics.median(losses[:part]), statistics.median(losses[-part:])
    fallen = (start - end) / abs(start) if start else 0.0
    numbers = {
        "start": start,
        "end": end,
        "fallen": fallen,
        "trend": z,
        "steps": len(losses),
    }
    message = f"from {start:.4g} to {end:.4g} ({-fallen:+.1%}) in {len(losses)} steps"
    if z >= config.rise:
        return failed(f"the loss rises: {message}", **numbers)
    long = len(losses) >= config.long
    if z <= -config.trend and (not long or fallen >= config.share):
        return passed(message, **numbers)
    if long and not _warming_up(case.now):
        return failed(
            f"the loss does not fall by {config.share:.1%}: {message}",
            share=config.share,
            **numbers,
        )
    why = "the learning rate is still rising" if _warming_up(case.now) else "no clear trend yet"
    return warned(f"{why}: {message}", **numbers)


def _warming_up(now: Measurement) -> bool:
    """Whether all steps were within the warm-up: the last rate is the highest one, and below the
    recipe's.
    """
    rates = now.values("lr")
    return (
        bool(rates)
        and rates[-1] >= max(rates)
        and rates[-1] < 0.99 * now.plan.config.recipe.learning_rate
    )


def mann_kendall(values: Sequence[float]) -> float:
    """z of Mann-Kendall's S: below 0 for a falling series; approximately normal from 8 values
    on.
    """
    n = len(values)
    s = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return 0.0 if s == 0 or spread == 0 else (s - math.copysign(1, s)) / spread


@gate(
    "first_dpo_loss",
    "Rafailov et al. 2023, equation 7: -log sigmoid(0), as the policy starts as the reference",
    kinds=_DPO,
)
def first_dpo_loss(case: GateCase) -> Finding | None:
    """At the first step the policy is the reference, so the sigmoid loss is ln 2; else the
    reference is another model, a stale cache, or gets other inputs.
    """
    step, loss = next(iter(case.now.series("loss")), (0, math.nan))
    compared = compare_first_loss(case.now.plan, step, loss, case.config.first_dpo_loss.tolerance)
    if compared is None:
        return None
    distance, tolerance = compared
    numbers = {"loss": loss, "away": distance, "tolerance": tolerance}
    if not distance <= tolerance:
        message = (
            f"the first loss is {loss:.4g}, not ln 2 ({math.log(2):.4g}): the reference is "
            "not this policy"
        )
        return failed(message, **numbers)
    return passed(f"{loss:.4f}, {distance:.1g} from ln 2", **numbers)


@gate(
    "reference_cached",
    "dpo_utils.py:437 and :515 log that the cache is read or written",
    kinds=_DPO,
)
def reference_cached(case: GateCase) -> Finding | None:
    """The reference's log-probs are computed once, which takes minutes without a logged loss, and
    are then cached.
    """
    now = case.now
    if now.plan.config.recipe.loss in _NO_REFERENCE:
        return None
    if now.plan.trainer == "trl_dpo":
        return passed("no cache: TRL computes its reference in every step")
    cache = next(
        (item for item in now.evidence if item.get("what") == "reference_logprobs_cache"), None
    )
    seconds = now.phases.get("reference_logprobs", 0.0)
    if cache is not None:
        return passed(
            f"cache {cache.get('found')}, {seconds:.0f} s",
            cache=cache.get("found"),
            seconds=seconds,
        )
    return failed(
        "the trainer reported no reference cache, neither read nor written", seconds=seconds
    )


@gate(
    "reward_accuracy",
    "rewards/accuracy: the fraction of pairs whose chosen answer has the higher reward",
    kinds=_DPO,
)
def reward_accuracy(case: GateCase) -> Finding:
    """Accuracy that never changes means that the policy does not change, or that both answers are
    the same.
    """
    config = case.config.loss_falls
    values = finite(case.now.values("rewards/accuracy"))
    if not values:
        return failed("no reward accuracy was logged")
    low, high = min(values), max(values)
    numbers = {"low": low, "high": high, "last": values[-1], "steps": len(values)}
    if low == high:
        message = f"the reward accuracy is {low:.3g} at each of {len(values)} steps"
        return (
            failed(message, **numbers)
            if len(values) >= config.short
            else warned(message, **numbers)
        )
    return passed(f"{low:.2f} to {high:.2f}, {values[-1]:.2f} at the end", **numbers)


@gate("chosen_above_rejected", "rewards/margin: chosen minus rejected reward", kinds=_DPO)
def chosen_above_rejected(case: GateCase) -> Finding | None:
    """The chosen answers must score above the rejected ones; else the two are swapped."""
    config = case.config.loss_falls
    margins = finite(case.now.values("rewards/margin"))
    if not margins:
        return None
    end = statistics.median(margins[-max(1, len(margins) // 3) :])
    numbers = {"margin": end, "steps": len(margins)}
    if end > 0:
        return passed(f"margin {end:.4g} at the end", **numbers)
    message = f"the margin is {end:.4g} at the end"
    if len(margins) < config.long:
        return warned(message, **numbers)
    return failed(f"{message}: rejected is above chosen", **numbers)


@gate(
    "margins_finite",
    "a log-prob of minus infinity: an empty or truncated answer",
    kinds=_DPO,
    early=True,
)
def margins_finite(case: GateCase) -> Finding | None:
    """A margin that is not finite comes from a sample without an answer."""
    series = case.now.series("rewards/margin")
    if not series:
        return warned("no margins were logged") if case.now.steps else None
    return _find_not_finite("margin", series) or passed(f"{len(series)} margins", steps=len(series))


@gate("throughput_steady", "tokens without padding over all ranks, by the trainer's own clock")
def throughput_steady(case: GateCase) -> Finding:
    """Speed that drops within the first steps (a slow data loader, a hot card) makes every
    projection wrong.
    """
    config = case.config.throughput_steady
    speed = compute_figures(case.now, config.skip)
    if speed is None:
        return warned("the trainer logs neither tokens nor seconds")
    if speed.per_second <= 0:
        return failed(f"{speed.per_second:g} {speed.unit}/s", per_second=speed.per_second)
    numbers = {
        "per_second": speed.per_second,
        "unit": speed.unit,
        "step_seconds": speed.step_seconds,
    }
    message = f"{speed.per_second:,.0f} {speed.unit}/s, {speed.step_seconds:.3g} s/step"
    ratio = (
        second_half_ratio(case.now, config.skip) if speed.counted_steps >= config.steps else None
    )
    if ratio is None:
        return passed(
            f"{message}; {speed.counted_steps} steps are too few to judge steadiness", **numbers
        )
    numbers["second_half"] = ratio
    if ratio >= config.slower:
        return passed(message, **numbers)
    judge = failed if ratio < config.collapsed else warned
    return judge(
        f"{message}; the second half ran at {ratio:.0%} of the first half's speed", **numbers
    )


@gate("padding", "all tokens of the batches against the tokens without padding")
def padding(case: GateCase) -> Finding | None:
    """Padding costs as much as any other token and trains nothing."""
    share = padding_share(case.now)
    if share is None:
        return warned("the trainer does not count padding")
    if share > case.config.padding.most:
        return failed(
            f"{share:.0%} of all tokens are padding: the data may be empty or truncated",
            share=share,
        )
    if share > case.config.padding.much:
        return warned(
            f"{share:.0%} of all tokens are padding; recipe.packing=flatten needs none", share=share
        )
    return passed(f"{share:.0%} of all tokens", share=share)
