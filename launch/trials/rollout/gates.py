"""The gates of a rollout that judge one width alone."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from launch.config.schema import Device
from launch.config.trials import GradNormGate
from launch.execution.guards import describe_non_finite
from launch.trials.measurement import (
    HOST_MEMORY,
    OUT_OF_MEMORY,
    Measurement,
    compute_figures,
    finite,
    padding_share,
    second_half_ratio,
)
from launch.trials.rollout.gate import LOSS_KINDS, GateCase, failed, gate, passed, warned
from launch.worker.evidence import PROVEN, REFUTED, Evidence, unmet_evidence
from launch.worker.finding import Finding


def judge_finite(measured: Measurement, name: str, title: str) -> Finding | None:
    """Return a failure that names the first step whose number under `name` is NaN or infinite, in
    the words of the guard non_finite; None where all are finite.
    """
    non_finite = measured.non_finite(name)
    if not non_finite:
        return None
    step, value = non_finite[0]
    message = describe_non_finite(title, value, step)
    return failed(message, step=step, steps=len(non_finite))


@gate("finished_steps", "the trainer's exit code and the steps that it logged", early=True)
def finished_steps(case: GateCase) -> Finding:
    """A width that did not finish its steps has measured nothing to compare the next one with."""
    done = case.now.last_step
    wanted = case.now.expected_steps
    if case.now.finished:
        return passed(f"{done} of {wanted} steps", steps=done, wanted=wanted)
    outcome = case.now.outcome
    cause = outcome.cause or "the run ended early without an error"
    cure = f"; {outcome.cure}" if outcome.cure else ""
    message = f"it ended after {done} of {wanted} steps: {cause}{cure}"
    return failed(message, steps=done, wanted=wanted, exit_code=outcome.exit_code)


@gate("loss_finite", "a weight that has become NaN stays NaN", early=True)
def loss_finite(case: GateCase) -> Finding | None:
    """A loss that is not finite has already destroyed the weights.

    The guard non_finite ends a run at its first such loss. This gate judges the recorded steps, so
    that it holds without guards too, and fails where no loss was logged at all.
    """
    if not case.now.steps:
        return None
    series = case.now.series("loss")
    if not series:
        return failed("no loss was logged", steps=len(case.now.steps))
    failure = judge_finite(case.now, "loss", "loss")
    if failure is not None:
        return failure
    _, last = series[-1]
    return passed(f"{len(series)} losses, the last one {last:.4g}", steps=len(series), last=last)


@gate(
    "memory_room",
    "torch.cuda.max_memory_allocated of rank 0; the allocator reserves somewhat more",
    early=True,
)
def memory_room(case: GateCase) -> Finding | None:
    """The GPU has memory left at the peak, so that a longer sample fits, too.

    No guard compares the peak with the GPU's memory: memory_creep judges whether it keeps growing,
    which takes hundreds of steps.
    """
    now = case.now
    if now.outcome.cause_id in (OUT_OF_MEMORY, HOST_MEMORY):
        steps = now.outcome.steps
        cure = f"; {now.outcome.cure}" if now.outcome.cure else ""
        return failed(f"out of memory after {steps} steps{cure}", steps=steps)
    if now.width.device == Device.cpu:
        return passed("no GPU: host memory is not judged") if now.finished else None
    if not now.steps:
        return None
    peaks = now.values("memory_reserved_gib") or now.values("memory_gib")
    if not peaks:
        return warned("the trainer logs no memory")
    peak = max(peaks)
    if now.card_gib is None:
        return warned(f"{peak:.1f} GiB at the peak; the GPU's memory is unknown", peak_gib=peak)
    room = 1 - peak / now.card_gib
    numbers = {"peak_gib": peak, "card_gib": now.card_gib, "room": room}
    message = f"{peak:.1f} of {now.card_gib:.1f} GiB at the peak, {room:.0%} left"
    judge = passed if room >= case.config.memory_room.room else warned
    return judge(message, **numbers)


@gate(
    "evidence_complete",
    "evidence.json: what the worker found in the trainer's objects at the first step",
    early=True,
)
def evidence_complete(case: GateCase) -> Finding | None:
    """Upstream falls back silently: Liger, packing, ZeRO or a rank may be missing and the loss
    still falls.

    A run stops for the same evidence, but not for a setting that nothing checks in its trainer, and
    not before its end: a rollout also judges a width that ended early.
    """
    evidence = case.now.evidence
    unmet = unmet_evidence(evidence, case.now.plan.config.allow)
    refuted = [item for item in unmet if item.verdict == REFUTED]
    proven = [item for item in evidence if item.verdict == PROVEN]
    requested = len(proven) + len(unmet)
    numbers = {"asked": requested, "proven": len(proven)}
    if refuted:
        names = [item.what for item in refuted]
        return failed(_join_sentences(refuted), refuted=names, **numbers)
    if requested and not unmet:
        values = {item.what: item.value for item in evidence}
        names = [name for name in ("liger", "packing", "attention", "dtype") if values.get(name)]
        shown = ", ".join(f"{name} {values[name]}" for name in names)
        return passed(f"all {requested} proven; {shown}", **numbers)
    if not case.now.finished:
        return None  # the run ended before the inspection; another gate reports the cause
    if not requested:
        return failed("the run proved no setting of its plan", **numbers)
    return failed(_join_sentences(unmet), **numbers)


def _join_sentences(items: Sequence[Evidence]) -> str:
    return "; ".join(item.sentence for item in items)


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
    item = now.find_evidence("backend")
    backend = None if item is None else str(item.value)
    if now.width.device == Device.cuda and backend is not None and "nccl" not in backend:
        message = f"the ranks communicate through {backend}, not NCCL"
        return failed(message, ranks=size, backend=backend)
    through = f"through {backend}" if backend else "through an unknown backend"
    message = f"all {size} ranks took their first step and continued together, {through}"
    return passed(message, ranks=size)


@gate(
    "grad_norm_sane",
    "clipping hides an exploding norm from the loss, not from the optimizer's moments",
    early=True,
)
def grad_norm_sane(case: GateCase) -> Finding | None:
    """A gradient norm that is huge, or jumps, is the first sign of divergence.

    The guard grad_norm compares a norm with the median of earlier ones, and ends a run whose norms
    stay high. This gate also fails a width whose median itself is huge, and warns of a single spike.
    """
    if not case.now.steps:
        return None
    series = case.now.series("grad_norm")
    if not series:
        return warned("this trainer logs no gradient norm")
    failure = judge_finite(case.now, "grad_norm", "gradient norm")
    if failure is not None:
        return failure
    return _judge_gradient_norms(series, case.config.grad_norm_sane)


def _judge_gradient_norms(series: Sequence[tuple[int, float]], config: GradNormGate) -> Finding:
    """Judge the (step, norm) pairs, all of which are finite, by their median and their spikes."""
    norms = [norm for _, norm in series]
    median = statistics.median(norms)
    most = max(norms)
    spikes = [step for step, norm in series if norm > config.spike * median]
    numbers = {
        "median": median,
        "most": most,
        "limit": config.limit,
        "spikes": len(spikes),
        "steps": len(norms),
    }
    if median > config.limit:
        message = f"the median gradient norm is {median:.4g}, above {config.limit:.4g}"
        return failed(message, **numbers)
    if len(spikes) > max(1, config.spikes * len(norms)):
        message = (
            f"{len(spikes)} of {len(norms)} gradient norms are above {config.spike:g} x the "
            f"median ({median:.4g})"
        )
        return failed(message, **numbers)
    if spikes:
        message = f"a gradient norm of {most:.4g} at step {spikes[0]}; the median is {median:.4g}"
        return warned(message, **numbers)
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
    losses = finite(case.now.values("loss"))
    if not losses:
        return None
    if len(losses) < config.short:
        message = f"{len(losses)} steps are too few to show a trend"
        return warned(message, steps=len(losses), least=config.short)
    z = mann_kendall(losses)
    part = max(3, len(losses) // 10)  # losses that a median is taken of
    start = statistics.median(losses[:part])
    end = statistics.median(losses[-part:])
    fallen = (start - end) / abs(start) if start else 0.0
    numbers = {"start": start, "end": end, "fallen": fallen, "trend": z, "steps": len(losses)}
    message = f"from {start:.4g} to {end:.4g} ({-fallen:+.1%}) in {len(losses)} steps"
    if z >= config.rise:
        return failed(f"the loss rises: {message}", **numbers)
    is_long = len(losses) >= config.long
    has_fallen = not is_long or fallen >= config.share  # a short series only needs the trend
    if z <= -config.trend and has_fallen:
        return passed(message, **numbers)
    is_warming_up = _is_warming_up(case.now)
    if is_long and not is_warming_up:
        message = f"the loss does not fall by {config.share:.1%}: {message}"
        return failed(message, share=config.share, **numbers)
    reason = "the learning rate is still rising" if is_warming_up else "no clear trend yet"
    return warned(f"{reason}: {message}", **numbers)


def _is_warming_up(measured: Measurement) -> bool:
    """Whether all steps were within the warm-up.

    The last learning rate then is the highest one, and still below the recipe's.
    """
    rates = measured.values("lr")
    if not rates:
        return False
    last = rates[-1]
    return last >= max(rates) and last < 0.99 * measured.plan.config.recipe.learning_rate


def mann_kendall(values: Sequence[float]) -> float:
    """Return z of Mann-Kendall's S, below 0 for a falling series; approximately normal from 8
    values on.

    S counts +1 for each pair of values of which the later is higher, and -1 where it is lower.
    """
    n = len(values)
    s = 0
    for earlier, later in itertools.combinations(values, 2):
        if later > earlier:
            s += 1
        elif later < earlier:
            s -= 1
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    if s == 0 or deviation == 0:
        return 0.0
    return (s - math.copysign(1, s)) / deviation


@gate("throughput_steady", "tokens without padding over all ranks, by the trainer's own clock")
def throughput_steady(case: GateCase) -> Finding:
    """Speed that drops within the first steps (a slow data loader, a hot GPU) makes every
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
    ratio = None
    if speed.counted_steps >= config.steps:
        ratio = second_half_ratio(case.now, config.skip)
    if ratio is None:
        message += f"; {speed.counted_steps} steps are too few to judge steadiness"
        return passed(message, **numbers)
    numbers["second_half"] = ratio
    if ratio >= config.slower:
        return passed(message, **numbers)
    message += f"; the second half ran at {ratio:.0%} of the first half's speed"
    if ratio < config.collapsed:
        return failed(message, **numbers)
    return warned(message, **numbers)


@gate("padding", "all tokens of the batches against the tokens without padding")
def padding(case: GateCase) -> Finding | None:
    """Padding costs as much as any other token and trains nothing."""
    share = padding_share(case.now)
    if share is None:
        return warned("the trainer does not count padding")
    if share > case.config.padding.most:
        message = f"{share:.0%} of all tokens are padding: the data may be empty or truncated"
        return failed(message, share=share)
    if share > case.config.padding.much:
        message = f"{share:.0%} of all tokens are padding; recipe.packing=flatten needs none"
        return warned(message, share=share)
    return passed(f"{share:.0%} of all tokens", share=share)
