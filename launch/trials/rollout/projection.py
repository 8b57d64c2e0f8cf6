"""Projects time, GPU hours and cost of the whole training at each width from the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launch.config.schema import Device
from launch.trials.measurement import Measurement, compute_speed

_STARTUP_PHASES = ("import", "tokenize", "load", "reference_logprobs")  # which a run goes through once


@dataclass(frozen=True)
class Projection:
    """What the whole training takes at one width."""

    total_steps: int
    hours: float  # without saving
    gpu_hours: float | None  # None on CPU
    cost: float | None  # None on CPU, or without a price
    basis: str  # `measured`, or the width from which it is scaled linearly


def project(
    ranks: int, width: str, measured: Sequence[Measurement], skip: int, price: float | None
) -> Projection | None:
    """Project a `width` of `ranks` from its own measurement, else from the widest one's at the same speed per rank.

    None before anything was measured, or while the number of steps is unknown.
    """
    usable = [run for run in measured if run.finished and run.total_steps and compute_speed(run, skip)]
    if not usable:
        return None
    source = next((run for run in usable if str(run.width) == width), usable[-1])
    speed = compute_speed(source, skip)
    assert speed is not None and source.total_steps is not None
    seconds = speed.step_seconds * source.plan.batch.width / ranks
    startup = sum(source.phases.get(phase, 0.0) for phase in _STARTUP_PHASES)
    hours = (startup + source.total_steps * seconds) / 3600
    on_gpus = source.width.device == Device.cuda
    gpu_hours = hours * ranks if on_gpus else None
    cost = gpu_hours * price if gpu_hours is not None and price is not None else None
    basis = "measured" if str(source.width) == width else f"as fast a rank as {source.width}"
    return Projection(source.total_steps, hours, gpu_hours, cost, basis)


def compute_efficiency(measured: Measurement, one_rank: Measurement | None, skip: int) -> float | None:
    """The speed per rank over that of one rank; None when one rank was not measured."""
    if one_rank is None or one_rank.plan.batch.width != 1:
        return None
    speed, single = compute_speed(measured, skip), compute_speed(one_rank, skip)
    if speed is None or single is None or speed.unit != single.unit or single.per_second <= 0:
        return None
    return speed.per_second / single.per_second / measured.plan.batch.width
