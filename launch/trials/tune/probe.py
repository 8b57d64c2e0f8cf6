"""A probe, one short run of a setting: what it measured, or why it measured nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from launch.config.schema import Device
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED
from launch.trials.measurement import TIME_USED, Measurement, padding_share, timed_steps
from launch.trials.tune.predict import NOISE, Prediction

_MIN_STEPS = 2  # from which a spread can be computed
_ONE_STEP_NOISE = 0.2  # the noise of a single step
_WORTH_REPEATING = 1.25  # a run that was cut short is repeated if it gets so many times its seconds
OUT_OF_MEMORY, HOST_MEMORY = "out_of_memory", "host_memory"  # ids of launch.execution.diagnosis.advice


class ProbeVerdict(StrEnum):
    """How a probe ended."""

    measured = "measured"
    out_of_memory = "out_of_memory"  # of its device
    host_memory = "host_memory"  # a run on GPUs exceeded the memory of the job, which is independent of the card
    failed = "failed"
    refused = "refused"  # it could not be started
    interrupted = "interrupted"


@dataclass(frozen=True)
class Probe:
    """What one probe measured. Times and rates are medians: early steps still allocate memory and compile."""

    prediction: Prediction
    verdict: ProbeVerdict
    folder: str
    steps: int = 0
    seconds: float | None = None  # of a step
    per_second: float | None = None  # in `unit`
    unit: str = "tokens"  # or samples
    noise: float = NOISE  # standard error of the rate's logarithm
    memory_gib: float | None = None  # peak that torch reserved
    padding: float | None = None  # fraction of all tokens
    losses: tuple[float, ...] = ()  # step by step
    wall: float = 0.0  # seconds of the whole run
    reused: bool = False  # it ran in an earlier call
    why: str | None = None  # why it measured nothing, or ended early

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step with the predicted number of tokens; measured steps differ in their tokens."""
        if self.seconds is None or self.per_second is None:
            return None
        if self.unit != "tokens":
            return self.seconds
        return self.prediction.step.load.tokens / self.per_second

    @property
    def time_error(self) -> float | None:
        """The logarithm of measured over predicted seconds."""
        measured = self.step_seconds
        return None if not measured else math.log(measured / self.prediction.seconds)

    @property
    def memory_error(self) -> float | None:
        """The logarithm of measured over predicted memory; None when it was not measured, or not predicted."""
        if self.memory_gib is None or not self.prediction.probe_gib:
            return None
        return math.log(self.memory_gib / self.prediction.probe_gib)


def summarize_probe(
    prediction: Prediction, measured: Measurement, folder: str, skip: int, *, reused: bool = False
) -> Probe:
    """Summarise a probe's measurement; the first `skip` steps do not count for its speed."""
    outcome, timed = measured.outcome, timed_steps(measured, skip)
    unit = "tokens" if all(tokens for _, tokens in timed) else "samples"
    counts = [tokens if unit == "tokens" and tokens else measured.plan.batch.global_ for _, tokens in timed]
    rates = [count / seconds for count, (seconds, _) in zip(counts, timed, strict=True)]
    memory = measured.values("memory_reserved_gib") or measured.values("memory_gib")
    verdict, losses = _judge_outcome(measured), tuple(measured.values("loss"))
    loss_fault = "a loss is not finite" if not all(map(math.isfinite, losses)) else None
    is_valid = verdict == ProbeVerdict.measured and loss_fault is None and len(rates) > 0
    return Probe(
        prediction=prediction,
        verdict=verdict if is_valid or verdict != ProbeVerdict.measured else ProbeVerdict.failed,
        folder=folder,
        steps=measured.last_step,
        seconds=statistics.median(seconds for seconds, _ in timed) if is_valid else None,
        per_second=statistics.median(rates) if is_valid else None,
        unit=unit,
        noise=_estimate_noise(rates),
        memory_gib=max(memory, default=None),
        padding=padding_share(measured),
        losses=losses,
        wall=outcome.seconds,
        reused=reused,
        why=outcome.cause or loss_fault or (None if is_valid else "it logged no step with a time"),
    )


def _estimate_noise(rates: Sequence[float]) -> float:
    """The standard error of the rates' logarithm."""
    if len(rates) < _MIN_STEPS:
        return _ONE_STEP_NOISE
    spread = statistics.stdev(math.log(rate) for rate in rates)
    return max(NOISE, spread / math.sqrt(len(rates)))


def is_final(measured: Measurement, skip: int, seconds: float | None) -> bool:
    """Whether another run of the same plan would measure nothing new: it finished, exceeded its card's memory, ran out
    of time after the first `skip` steps, or had hardly less time than the `seconds` that it would get now (None: no
    limit). Running out of host memory is not final: the next job may get more."""
    outcome = measured.outcome
    if measured.finished or outcome.cause_id == OUT_OF_MEMORY:
        return True
    if outcome.cause_id != TIME_USED:
        return False
    return len(timed_steps(measured)) > skip or (seconds is not None and seconds <= outcome.seconds * _WORTH_REPEATING)


def _judge_outcome(measured: Measurement) -> ProbeVerdict:
    outcome = measured.outcome
    if outcome.exit_code == EXIT_INTERRUPTED:
        return ProbeVerdict.interrupted
    if outcome.exit_code == EXIT_DONE or outcome.cause_id == TIME_USED:
        return ProbeVerdict.measured  # of fewer steps, if it was cut short
    if outcome.cause_id == HOST_MEMORY:
        return ProbeVerdict.out_of_memory if measured.width.device == Device.cpu else ProbeVerdict.host_memory
    return ProbeVerdict.out_of_memory if outcome.cause_id == OUT_OF_MEMORY else ProbeVerdict.failed
