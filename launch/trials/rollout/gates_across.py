"""The gates that compare a width with the one before it: data, schedule, losses, scaling; and the
list of all gates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from typing import Any

from launch.config.schema import Device, Kind, Precision
from launch.trials.measurement import Measurement, compute_figures, finite
from launch.trials.rollout import gates
from launch.trials.rollout.gates import LOSS_KINDS, Gate, GateCase, failed, gate, passed, warned
from launch.worker.finding import Finding


@gate(
    "same_data",
    "the tokens of every optimizer step, counted by the trainer over all ranks",
    kinds=LOSS_KINDS,
)
def same_data(case: GateCase) -> Finding | None:
    """Each step must consist of the same samples, in the same micro batches, however many ranks
    share them.
    """
    if case.before is None:
        return None
    pairs = [
        (step, name, before, now)
        for name in ("tokens", "label_tokens", "tokens_padded")
        for step, before, now in _paired(case.before, case.now, name)
    ]
    if not pairs:
        return warned("the trainer counts no tokens, so the data is not proven to be the same")
    differing = [(step, name, before, now) for step, name, before, now in pairs if before != now]
    steps = len({step for step, _, _, _ in pairs})
    if not differing:
        names = dict.fromkeys(name for _, name, _, _ in pairs)
        return passed(f"{' and '.join(names)} of {steps} steps are the same", steps=steps)
    wrong = {step for step, _, _, _ in differing}
    step, name, before, now = differing[0]
    example = f"step {step} has {name} {now:,.0f}, {case.before.width} had {before:,.0f}"
    message = f"{len(wrong)} of {steps} steps have different data: {example}"
    return failed(message, steps=steps, differ=len(wrong), first=step)


@gate(
    "same_schedule",
    "finetune.py:354 and dpo_tune_cache.py:454 count the schedule in steps x ranks, rounded",
)
def same_schedule(case: GateCase) -> Finding | None:
    """The learning rate of a step must not depend on the width."""
    if case.before is None:
        return None
    config = case.config.same_schedule
    largest = _largest_rate_difference(case)
    if largest is None:
        return warned("no learning rate was logged")
    most, step, before, now = largest
    numbers = {"most": most, "step": step}
    if most <= config.differs:
        return passed(f"the learning rates differ by at most {most:.2%} of the highest", **numbers)
    message = f"the learning rate at step {step} is {now:.4g}, {case.before.width} had {before:.4g}"
    return failed(message, **numbers) if most > config.wrong else warned(message, **numbers)


@gate(
    "loss_parity",
    "measured: the tolerances come from the table of differences in docs/explanation/gates.md",
    kinds=LOSS_KINDS,
)
def loss_parity(case: GateCase) -> Finding | None:
    """The same step on the same data must have the same loss but for rounding; else the widths
    train differently.
    """
    if case.before is None:
        return None
    config = case.config.loss_parity
    pairs = _paired(case.before, case.now, "loss")[: config.steps]
    if not pairs:
        return failed("there are no losses to compare")
    relative = [abs(before - now) / max(abs(before), 1e-12) for _, before, now in pairs]
    both_fp32 = {run.plan.parallel.precision for run in (case.now, case.before)} == {Precision.fp32}
    same_masters = case.now.has_masters == case.before.has_masters
    first_limit = config.first_fp32 if both_fp32 else config.first_bf16
    limit = config.fp32 if both_fp32 else config.bf16 if same_masters else config.masters
    first, median = relative[0], statistics.median(relative)
    numbers = {
        "first": first,
        "first_limit": first_limit,
        "median": median,
        "limit": limit,
        "most": max(relative),
        "steps": len(pairs),
    }
    step, before, now = pairs[0]
    if first > first_limit:
        losses = f"loss {now:.6g} at step {step}, {case.before.width} had {before:.6g}"
        return failed(
            f"{losses}: {first:.2g} apart, at most {first_limit:g} can be rounding", **numbers
        )
    if median > limit:
        message = (
            f"the losses of {len(pairs)} steps are {median:.2g} apart, at most {limit:g} "
            "can "
            "be rounding"
        )
        largest = _largest_rate_difference(case)
        if largest is not None and largest[0] > case.config.same_schedule.differs:
            message += "; the learning rates differ as well"
        return failed(message, **numbers)
    masters = "" if same_masters else "; one of the two has no fp32 master weights"
    return passed(
        f"{first:.1g} apart at step {step}, {median:.1g} over {len(pairs)} steps{masters}",
        **numbers,
    )


@gate("scaling", "tokens per second and rank, over those of the width before")
def scaling(case: GateCase) -> Finding | None:
    """Added GPUs cost the same whether they are used or not."""
    if case.before is None:
        return None
    skip = case.config.throughput_steady.skip
    now, before = compute_figures(case.now, skip), compute_figures(case.before, skip)
    if now is None or before is None or now.unit != before.unit or before.per_second <= 0:
        return warned("the two speeds cannot be compared")
    ranks = case.now.plan.batch.width / case.before.plan.batch.width
    faster = now.per_second / before.per_second
    efficiency = faster / ranks
    numbers = {"efficiency": efficiency, "faster": faster, "ranks": ranks}
    message = (
        f"{faster:.2f} x the speed of {case.before.width} on {ranks:g} x the ranks: "
        f"{efficiency:.0%}"
    )
    if case.now.width.device == Device.cpu:
        return passed(f"{message}; not judged, because CPU processes share their cores", **numbers)
    config = case.config.scaling
    judge = failed if efficiency < config.least else warned if efficiency < config.low else passed
    return judge(message, **numbers)


_SIGMAS = 4.0  # one in 16,000 by chance


@gate(
    "same_rewards",
    "the mean reward of all steps, and what sampling alone makes of it",
    kinds=(Kind.rlvr,),
)
def same_rewards(case: GateCase) -> Finding | None:
    """Each width samples answers of its own, from the same model to the same prompts: rewards agree
    in the mean.
    """
    if case.before is None:
        return None
    now, before = _mean_reward(case.now), _mean_reward(case.before)
    if now is None or before is None:
        return failed("no rewards were logged to compare")
    apart, noise = abs(now[0] - before[0]), math.hypot(now[1], before[1])
    judge = failed if apart > _SIGMAS * noise else passed
    message = (
        f"mean reward {now[0]:.3g}, {case.before.width} had {before[0]:.3g}: {apart:.2g} "
        "apart, and sampling alone "
    )
    return judge(f"{message}makes {_SIGMAS * noise:.2g} at most", apart=apart, noise=noise)


def _mean_reward(measured: Measurement) -> tuple[float, float] | None:
    """Return the mean reward of a width's steps and its standard error."""
    rewards, spreads = finite(measured.values("reward")), finite(measured.values("reward_std"))
    if not rewards or len(rewards) != len(spreads):
        return None
    count = len(rewards) * measured.plan.batch.global_
    return statistics.fmean(rewards), math.sqrt(
        statistics.fmean(spread**2 for spread in spreads) / count
    )


@gate(
    "generation_speed",
    "tokens of completions over the seconds of their generation, and of their training",
    kinds=(Kind.rlvr,),
)
def generation_speed(case: GateCase) -> Finding | None:
    """Generation and training scale each in its own way, and their sum hides which of them does
    not.
    """
    now = _speeds(case.now, case.config.throughput_steady.skip)
    if now is None:
        return None
    message = f"generation {now[0]:,.0f} tokens/s, training {now[1]:,.0f}"
    before = case.before and _speeds(case.before, case.config.throughput_steady.skip)
    if not case.before or not before:
        return passed(message, generation=now[0], training=now[1])
    ranks = case.now.plan.batch.width / case.before.plan.batch.width
    gains = [own / other / ranks for own, other in zip(now, before, strict=True)]
    message += f": {gains[0]:.0%} and {gains[1]:.0%} of {case.before.width}'s a rank"
    slow = case.now.width.device != Device.cpu and min(gains) < case.config.scaling.low
    return (warned if slow else passed)(message, generation=now[0], training=now[1])


def _speeds(measured: Measurement, skip: int) -> tuple[float, float] | None:
    """Return tokens of completions per second of generation and of training, without the first
    steps.
    """
    names = ("completions/mean_length", "generation_seconds", "training_seconds")
    lengths, *seconds = (finite(measured.values(name))[skip:] for name in names)
    if not lengths or min(map(sum, seconds), default=0.0) <= 0:
        return None
    tokens = sum(lengths) * measured.plan.batch.global_
    return tokens / sum(seconds[0]), tokens / sum(seconds[1])


def _largest_rate_difference(case: GateCase) -> tuple[float, int, float, float] | None:
    """The largest difference of the learning rates, relative to the highest one; its step; the
    rates before and now.
    """
    highest = case.now.plan.config.recipe.learning_rate
    if case.before is None or highest <= 0:
        return None
    pairs = _paired(case.before, case.now, "lr")
    return max(
        ((abs(before - now) / highest, step, before, now) for step, before, now in pairs),
        default=None,
    )


def _paired(before: Measurement, now: Measurement, name: str) -> list[tuple[int, float, float]]:
    """(step, number before, number now) of the steps that both have."""
    numbers_before = dict(before.series(name))
    return [
        (step, numbers_before[step], value)
        for step, value in now.series(name)
        if step in numbers_before
    ]


# All gates, in the order of the report. A new gate is added here.
GATES: tuple[Gate, ...] = (
    gates.finished_steps,
    gates.loss_finite,
    gates.memory_room,
    gates.evidence_complete,
    gates.all_ranks_step,
    gates.grad_norm_sane,
    gates.loss_falls,
    gates.first_dpo_loss,
    gates.reference_cached,
    gates.reward_accuracy,
    gates.chosen_above_rejected,
    gates.margins_finite,
    gates.throughput_steady,
    gates.padding,
    same_data,
    same_schedule,
    loss_parity,
    scaling,
    same_rewards,
    generation_speed,
)


def apply_gates(case: GateCase, allow: Collection[str] = ()) -> tuple[Finding, ...]:
    """Apply every gate to a width, in the order of GATES, without those that do not apply to it."""
    results = [gate.apply(case, allow) for gate in GATES]
    return tuple(result for result in results if result is not None)


def gate_json(result: Finding) -> dict[str, Any]:
    """The result of a gate, with the reason for the gate and the source of its limit."""
    gate = next(gate for gate in GATES if gate.id == result.id)
    return {
        "id": result.id,
        "verdict": result.severity,
        "message": result.message,
        "numbers": result.numbers,
        "allowed": result.allowed,
        "reason": gate.reason,
        "source": gate.source,
    }
