"""The gates of a rollout that judge a width by itself."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from launch.config.kinds import Kind
from launch.config.schema import Device
from launch.config.trials import GradNormGate
from launch.execution.completion import compare_first_loss
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
from launch.worker.evidence import PROVEN, REFUTED, TOO_SHORT, Evidence
from launch.worker.finding import Finding

_DPO = (Kind.dpo,)
_PREFERENCES = (Kind.dpo, Kind.kto)  # with rewards of good and of bad answers
_NO_REFERENCE = ("simpo",)  # the losses of DPO that need no reference model


def _judge_finite(measured: Measurement, name: str, title: str) -> Finding | None:
    """Return a failure that names the first step whose number under `name` is NaN or infinite; None
    where all are finite.
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
    """A loss that is not finite has already destroyed the weights."""
    if not case.now.steps:
        return None
    series = case.now.series("loss")
    if not series:
        return failed("no loss was logged", steps=len(case.now.steps))
    failure = _judge_finite(case.now, "loss", "loss")
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
    """The GPU has memory left at the peak, so that a longer sample fits, too."""
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
    """
    requested = _judged_evidence(case.now)
    unproven = [item for item in requested if item.verdict != PROVEN]
    refuted = [item for item in unproven if item.verdict == REFUTED]
    numbers = {"asked": len(requested), "proven": len(requested) - len(unproven)}
    if refuted:
        names = [item.what for item in refuted]
        sentences = [
            f"{item.what}={item.requested} was requested, but is {item.value}" for item in refuted
        ]
        return failed("; ".join(sentences), refuted=names, **numbers)
    if requested and not unproven:
        values = {item.what: item.value for item in case.now.evidence}
        names = [name for name in ("liger", "packing", "attention", "dtype") if values.get(name)]
        shown = ", ".join(f"{name} {values[name]}" for name in names)
        return passed(f"all {len(requested)} proven; {shown}", **numbers)
    if not case.now.finished:
        return None  # the run ended before the inspection; another gate reports the cause
    if not requested:
        return failed("the run proved no setting of its plan", **numbers)
    settings = ", ".join(f"{item.what}={item.requested}" for item in unproven)
    return failed(f"no proof of {settings}", **numbers)


def _judged_evidence(measured: Measurement) -> list[Evidence]:
    """Return the requested settings that this gate has to judge.

    Settings are left out that a short run cannot show, or that `allow` accepts as refuted or
    unproven, as it does at the end of a run.
    """
    allow = measured.plan.config.allow
    judged = []
    for item in measured.evidence:
        if item.requested is None or item.how == TOO_SHORT:
            continue
        finding = item.finding(allow)
        if finding is None or not finding.allowed:
            judged.append(item)
    return judged


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
    """A gradient norm that is huge, or jumps, is the first sign of divergence."""
    if not case.now.steps:
        return None
    series = case.now.series("grad_norm")
    if not series:
        return warned("this trainer logs no gradient norm")
    failure = _judge_finite(case.now, "grad_norm", "gradient norm")
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


@gate(
    "first_dpo_loss",
    "Rafailov et al. 2023, equation 7: -log sigmoid(0), as the policy starts as the reference; "
    "Ethayarajh et al. 2024, equation 7: 1 - sigmoid(0)",
    kinds=_PREFERENCES,
)
def first_dpo_loss(case: GateCase) -> Finding | None:
    """At the first step the policy is the reference, so DPO's sigmoid loss is ln 2, and KTO's 1/2;
    else the reference is another model, a stale cache, or gets other inputs.
    """
    step, loss = next(iter(case.now.series("loss")), (0, math.nan))
    compared = compare_first_loss(case.now.plan, step, loss, case.config.first_dpo_loss.tolerance)
    if compared is None:
        return None
    numbers = {"loss": loss, "away": compared.distance, "tolerance": compared.tolerance}
    if not compared.distance <= compared.tolerance:
        message = (
            f"the first loss is {loss:.4g}, not {compared.name} ({compared.due:.4g}): the "
            "reference is not this policy"
        )
        return failed(message, **numbers)
    return passed(f"{loss:.4f}, {compared.distance:.1g} from {compared.name}", **numbers)


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
    seconds = now.phases.get("reference_logprobs", 0.0)
    item = now.find_evidence("reference_logprobs_cache")
    if item is None:
        message = "the trainer reported no reference cache, neither read nor written"
        return failed(message, seconds=seconds)
    cache = item.value
    return passed(f"cache {cache}, {seconds:.0f} s", cache=cache, seconds=seconds)


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
    low = min(values)
    high = max(values)
    last = values[-1]
    numbers = {"low": low, "high": high, "last": last, "steps": len(values)}
    if low != high:
        return passed(f"{low:.2f} to {high:.2f}, {last:.2f} at the end", **numbers)
    message = f"the reward accuracy is {low:.3g} at each of {len(values)} steps"
    if len(values) < config.short:
        return warned(message, **numbers)
    return failed(message, **numbers)


@gate("chosen_above_rejected", "rewards/margin: chosen minus rejected reward", kinds=_PREFERENCES)
def chosen_above_rejected(case: GateCase) -> Finding | None:
    """The chosen answers must score above the rejected ones; else the two are swapped."""
    config = case.config.loss_falls
    margins = finite(case.now.values("rewards/margin"))
    if not margins:
        return None
    last_third = max(1, len(margins) // 3)
    end = statistics.median(margins[-last_third:])
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
    kinds=_PREFERENCES,
    early=True,
)
def margins_finite(case: GateCase) -> Finding | None:
    """A margin that is not finite comes from a sample without an answer."""
    if not case.now.steps:
        return None
    series = case.now.series("rewards/margin")
    if not series:
        return warned("no margins were logged")
    failure = _judge_finite(case.now, "rewards/margin", "margin")
    if failure is not None:
        return failure
    return passed(f"{len(series)} margins", steps=len(series))


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
