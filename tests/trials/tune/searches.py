"""A search over the 8b shape on H200s that are made up, and probes that say what they are told
to.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.config.kinds import Kind
from launch.config.trials import TuneConfig
from launch.execution.record.outcome import Outcome
from launch.planning.build import build_plan
from launch.planning.estimate.cards import rates_for_card
from launch.planning.estimate.planned_setting import planned_setting
from launch.planning.lengths import Histogram, Lengths
from launch.trials.measurement import (
    HOST_MEMORY,
    OUT_OF_MEMORY,
    Measurement,
    compute_figures,
)
from launch.trials.record import State
from launch.trials.tune.predict import (
    Prediction,
    Probe,
    Workload,
    predict,
)
from launch.trials.tune.record import TuneRecord
from launch.trials.tune.space import Space, build_space
from tests.conftest import composed, fixed_machine

INSTALLED = ("torch", "deepspeed", "liger-kernel")
CARD = "NVIDIA H200"
# composing is most of a test's time, and nothing changes what it gives
composed_once = functools.cache(composed)


@functools.cache
def chats() -> Lengths:
    chance = random.Random(7)
    return Lengths(
        Kind.sft,
        Histogram.of(int(min(3200, max(12, chance.lognormvariate(6.1, 1)))) for _ in range(3000)),
        None,
    )


@functools.cache
def _predicted(
    words: tuple[str, ...], card: str, gib: float | None, lengths: Lengths | None
) -> tuple[Space, Workload, list[Prediction]]:
    """What does not depend on the folder: predicting is most of a test's time, and nothing changes
    it.
    """
    composed = composed_once(*words)
    plan = build_plan(composed, fixed_machine())
    workload = Workload(
        planned_setting(plan, {}, flash=False),
        plan.batch.global_,
        lengths or chats(),
        measured_lengths=lengths is None,
        card_rates=rates_for_card(card),
        card_gib=gib,
    )
    space = build_space(plan, INSTALLED)
    return space, workload, [predict(candidate, workload) for candidate in space.candidates]


def record_in(
    home: Path,
    *words: str,
    card: str = CARD,
    gib: float | None = 139.8,
    lengths: Lengths | None = None,
    limits: TuneConfig | None = None,
) -> TuneRecord:
    """A search before its first probe. Narrow by default: fewer predictions, faster tests."""
    overrides = words or (
        "stage=sft",
        "gpus=8",
        "recipe.liger=true",
        "recipe.gradient_checkpointing=false",
    )
    space, workload, predictions = _predicted(overrides, card, gib, lengths)
    machine = replace(fixed_machine(home), versions={"torch": "2.11.0"})
    plan = build_plan(composed_once(*overrides), machine)
    folder = plan.runs / plan.stage / "tune-it"
    limits = limits or TuneConfig()
    return TuneRecord(folder, plan, limits.steps, 2, space, workload, predictions, limits, card)


def measured(
    prediction: Prediction,
    seconds: float,
    *,
    gib: float | None = None,
    wall: float = 40.0,
    loss: float = 2.0,
) -> Probe:
    """A probe of eight steps of `seconds`, and `wall` before them."""
    reserved = prediction.probe_gib if gib is None else gib
    row = {
        "tokens": prediction.step.load.tokens,
        "seconds": seconds,
        "memory_reserved_gib": reserved,
    }
    losses = ({"loss": loss}, {"loss": loss - 0.1}, *[{}] * 6)
    steps = [{"step": number, **row, **losses} for number, losses in enumerate(losses, 1)]
    return ended(prediction, State.done, wall + 8 * seconds, steps=steps)


def ended(
    prediction: Prediction,
    state: State,
    seconds: float = 40.0,
    steps: Sequence[Any] = (),
    **why: Any,
) -> Probe:
    """A probe that has ended, made up step by step."""
    plan = build_plan(composed_once("stage=sft", "gpus=8"), fixed_machine())
    run = Measurement(plan, 8, Outcome(0, seconds, len(steps), None), tuple(steps))
    facts = {"seconds": seconds, "measured": run, "figures": compute_figures(run, 2, typical=True)}
    return Probe(prediction.label, plan, state, prediction=prediction, **facts, **why)


def out_of_memory(prediction: Prediction) -> Probe:
    return ended(
        prediction,
        State.failed,
        cause_id=OUT_OF_MEMORY,
        message="OutOfMemoryError: CUDA out of memory",
    )


def host_memory(prediction: Prediction) -> Probe:
    return ended(
        prediction, State.failed, cause_id=HOST_MEMORY, message="DefaultCPUAllocator: no memory"
    )


def failed(prediction: Prediction, why: str = "no luck") -> Probe:
    return ended(prediction, State.failed, 10.0, message=why)
