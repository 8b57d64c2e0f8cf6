"""The gates that compare a width of a rollout with the previous one, and the list of all gates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from typing import Any

from launch.config.kinds import Kind
from launch.config.recipe_keys import Precision
from launch.config.schema import Device
from launch.trials.measurement import (
    Measurement,
    compute_figures,
    finite,
    relative_difference,
)
from launch.trials.rollout import gates, gates_preferences
from launch.trials.rollout.gate import (
    LOSS_KINDS,
    Gate,
    GateCase,
    failed,
    gate,
    passed,
    warned,
)
from launch.worker.finding import Finding
from launch.worker.json_codec import to_json


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
    counted_names = []
    compared_steps = set()
    differing_steps = set()
    differing = []
    for name in ("tokens", "label_tokens", "tokens_padded"):
        pairs = _pair_steps(case.before, case.now, name)
        if pairs:
            counted_names.append(name)
        for step, before, now in pairs:
            compared_steps.add(step)
            if before != now:
                differing_steps.add(step)
                differing.append((step, name, before, now))
    if not counted_names:
        return warned("the trainer counts no tokens, so the data is not proven to be the same")
    steps = len(compared_steps)
    if not differing:
        return passed(f"{' and '.join(counted_names)} of {steps} steps are the same", steps=steps)
    step, name, before, now = differing[0]
    example = f"step {step} has {name} {now:,.0f}, {case.before.width} had {before:,.0f}"
    message = f"{len(differing_steps)} of {steps} steps have different data: {example}"
    return failed(message, steps=steps, differ=len(differing_steps), first=step)


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
    pairs = _pair_steps(case.before, case.now, "loss")[: config.steps]
    if not pairs:
        return failed("there are no losses to compare")
    relative = [relative_difference(before, now) for _, before, now in pairs]
    precisions = {case.now.plan.parallel.precision, case.before.plan.parallel.precision}
    same_masters = case.now.has_masters == case.before.has_masters
    if precisions == {Precision.fp32}:
        first_limit = config.first_fp32
        limit = config.fp32
    else:
        first_limit = config.first_bf16
        limit = config.bf16 if same_masters else config.masters
    first = relative[0]
    median = statistics.median(relative)
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
            f"the losses of {len(pairs)} steps are {median:.2g} apart, "
            f"at most {limit:g} can be rounding"
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
    """The speed grows with the GPUs: the share of the added ones that is used."""
    if case.before is None:
        return None
    skip = case.config.throughput_steady.skip
    now = compute_figures(case.now, skip)
    before = compute_figures(case.before, skip)
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
    if efficiency < config.least:
        return failed(message, **numbers)
    if efficiency < config.low:
        return warned(message, **numbers)
    return passed(message, **numbers)


# Standard errors by which two mean rewards may differ; one pair in 16,000 exceeds it by chance.
_SIGMAS = 4.0


@gate(
    "same_rewards",
    "the mean reward of all steps, against the noise of sampling alone",
    kinds=(Kind.rlvr,),
)
def same_rewards(case: GateCase) -> Finding | None:
    """Each width samples answers of its own, from the same model to the same prompts: rewards agree
    on average.
    """
    if case.before is None:
        return None
    reward_now = _mean_reward(case.now)
    reward_before = _mean_reward(case.before)
    if reward_now is None or reward_before is None:
        return failed("no rewards were logged to compare")
    mean_now, error_now = reward_now
    mean_before, error_before = reward_before
    apart = abs(mean_now - mean_before)
    noise = math.hypot(error_now, error_before)
    limit = _SIGMAS * noise
    message = (
        f"mean reward {mean_now:.3g}, {case.before.width} had {mean_before:.3g}: "
        f"{apart:.2g} apart, and sampling alone makes {limit:.2g} at most"
    )
    if apart > limit:
        return failed(message, apart=apart, noise=noise)
    return passed(message, apart=apart, noise=noise)


def _mean_reward(measured: Measurement) -> tuple[float, float] | None:
    """Return the mean reward of a width's steps and its standard error."""
    rewards = finite(measured.values("reward"))
    deviations = finite(measured.values("reward_std"))
    if not rewards or len(rewards) != len(deviations):
        return None
    samples = len(rewards) * measured.plan.batch.global_
    variance = statistics.fmean(deviation**2 for deviation in deviations)
    return statistics.fmean(rewards), math.sqrt(variance / samples)


@gate(
    "generation_speed",
    "tokens of completions over the seconds of their generation, and of their training",
    kinds=(Kind.rlvr,),
)
def generation_speed(case: GateCase) -> Finding | None:
    """Generation and training scale each in its own way, and their sum hides which of them does
    not.
    """
    skip = case.config.throughput_steady.skip
    speeds = _completion_speeds(case.now, skip)
    if speeds is None:
        return None
    generation, training = speeds
    numbers = {"generation": generation, "training": training}
    message = f"generation {generation:,.0f} tokens/s, training {training:,.0f}"
    if case.before is None:
        return passed(message, **numbers)
    speeds_before = _completion_speeds(case.before, skip)
    if speeds_before is None:
        return passed(message, **numbers)
    generation_before, training_before = speeds_before
    ranks = case.now.plan.batch.width / case.before.plan.batch.width
    generation_efficiency = generation / generation_before / ranks
    training_efficiency = training / training_before / ranks
    message += (
        f": {generation_efficiency:.0%} and {training_efficiency:.0%} "
        f"of {case.before.width}'s a rank"
    )
    lowest = min(generation_efficiency, training_efficiency)
    # CPU processes share their cores, so their scaling is not judged.
    if case.now.width.device != Device.cpu and lowest < case.config.scaling.low:
        return warned(message, **numbers)
    return passed(message, **numbers)


def _completion_speeds(measured: Measurement, skip: int) -> tuple[float, float] | None:
    """Return the completions' tokens per second of generation, and per second of training.

    The first `skip` steps do not count. None where lengths or times were not logged.
    """
    lengths = finite(measured.values("completions/mean_length"))[skip:]
    generation_seconds = sum(finite(measured.values("generation_seconds"))[skip:])
    training_seconds = sum(finite(measured.values("training_seconds"))[skip:])
    if not lengths or generation_seconds <= 0 or training_seconds <= 0:
        return None
    tokens = sum(lengths) * measured.plan.batch.global_
    return tokens / generation_seconds, tokens / training_seconds


def _largest_rate_difference(case: GateCase) -> tuple[float, int, float, float] | None:
    """Return the largest difference of the learning rates, its step, and the rates before and now.

    The difference is relative to the recipe's learning rate, which is the highest.
    """
    highest = case.now.plan.config.recipe.learning_rate
    if case.before is None or highest <= 0:
        return None
    differences = [
        (abs(before - now) / highest, step, before, now)
        for step, before, now in _pair_steps(case.before, case.now, "lr")
    ]
    return max(differences, default=None)


def _pair_steps(before: Measurement, now: Measurement, name: str) -> list[tuple[int, float, float]]:
    """Return (step, number before, number now) of each step for which both have the number."""
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
    gates_preferences.first_dpo_loss,
    gates_preferences.reference_cached,
    gates_preferences.reward_accuracy,
    gates_preferences.chosen_above_rejected,
    gates_preferences.margins_finite,
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
    """Return the result of every gate that applies to a width, in the order of GATES."""
    results = [gate.apply(case, allow) for gate in GATES]
    return tuple(result for result in results if result is not None)


def gate_json(result: Finding) -> dict[str, Any]:
    """Return a gate's result for the record, with the gate's reason and the source of its limit."""
    gate = next(gate for gate in GATES if gate.id == result.id)
    return {
        **to_json(result),
        "verdict": result.severity,
        "reason": gate.summary,
        "source": gate.source,
    }
