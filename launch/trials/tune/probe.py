"""A probe, one short run of a setting: how far its prediction was off, or why it measured nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from launch.config.schema import Device
from launch.errors import EXIT_DONE
from launch.trials.measurement import TIME_USED, Measurement, timed_steps
from launch.trials.record import State, TrialRun
from launch.trials.tune.predict import Prediction

_WORTH_REPEATING = 1.25  # a run that was cut short is repeated if it gets so many times its seconds
# ids of launch.execution.diagnosis.advice; a run on GPUs exceeds its host's memory independently of the card
OUT_OF_MEMORY, HOST_MEMORY = "out_of_memory", "host_memory"


@dataclass
class Probe(TrialRun):
    """The short run of one setting."""

    prediction: Prediction = field(kw_only=True)

    @property
    def ran(self) -> bool:
        """Whether it shows that the setting works, or that it needs more memory than its device has."""
        return self.state == State.done or self.cause_id == OUT_OF_MEMORY

    @property
    def failed(self) -> bool:
        """Whether it failed, or could not be started, for another reason than its device's memory."""
        return self.state == State.failed and not self.ran

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step with the predicted number of tokens; measured steps differ in their tokens."""
        if self.figures is None or self.state != State.done:
            return None
        if self.figures.unit != "tokens":
            return self.figures.step_seconds
        return self.prediction.step.load.tokens / self.figures.per_second

    @property
    def time_error(self) -> float | None:
        """The logarithm of measured over predicted seconds."""
        return None if not self.step_seconds else math.log(self.step_seconds / self.prediction.seconds)

    @property
    def memory_gib(self) -> float | None:
        """Peak that torch reserved."""
        return None if self.figures is None else self.figures.reserved_gib or self.figures.memory_gib

    @property
    def memory_error(self) -> float | None:
        """The logarithm of measured over predicted memory; None when it was not measured, or not predicted."""
        if self.memory_gib is None or not self.prediction.probe_gib:
            return None
        return math.log(self.memory_gib / self.prediction.probe_gib)


def judge_probe(probe: Probe) -> None:
    """Decide whether a probe that has ended has measured something: it may have been cut short, or logged no number."""
    measured = probe.measured
    if measured is None or probe.state == State.interrupted:
        return
    if probe.cause_id == HOST_MEMORY and measured.width.device == Device.cpu:
        probe.cause_id = OUT_OF_MEMORY
    if measured.outcome.exit_code == EXIT_DONE or probe.cause_id == TIME_USED:
        finite = all(map(math.isfinite, measured.values("loss")))
        fault = None if finite else "a loss is not finite"
        if probe.figures is None or probe.figures.per_second <= 0:
            fault = fault or "it logged no step with a time"
        probe.state, probe.message = State.failed if fault else State.done, probe.message or fault


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
