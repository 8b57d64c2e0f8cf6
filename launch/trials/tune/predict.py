"""Predicts the step time and memory of every candidate, and compares them with its probe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from launch.config.recipe_keys import Packing
from launch.config.schema import Device
from launch.errors import EXIT_DONE
from launch.planning.estimate.cards import CardRates
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.planned_setting import ATTENTION
from launch.planning.estimate.setting import TAIL, Attention, MemorySetting, longest_micro_batch
from launch.planning.estimate.speed import StepTime, predict_step
from launch.planning.lengths import Lengths
from launch.trials.measurement import (
    HOST_MEMORY,
    OUT_OF_MEMORY,
    TIME_USED,
    Measurement,
    timed_steps,
)
from launch.trials.record import State, TrialRun
from launch.trials.tune.space import Candidate


@dataclass(frozen=True)
class Workload:
    """The facts that all settings of a search share."""

    base: MemorySetting  # the recipe's own setting
    global_batch: int
    lengths: Lengths  # the lengths of the data's samples
    measured_lengths: bool  # False if `lengths` assume that every sample has the limit's length
    card_rates: CardRates  # the speed of the GPU
    fuses: bool = True  # Liger fuses the loss with the output matrix
    flash: bool = False  # flash attention is the default
    card_gib: float | None = None  # None where memory is not predicted


@dataclass(frozen=True)
class Prediction:
    """One candidate's predicted step time and memory; the memory is None where it is not
    predicted.
    """

    candidate: Candidate
    accumulation: int
    step: StepTime = field(repr=False)
    # Memory that the GPU must have for the longest micro batch of a whole run.
    memory_gib: float | None = None
    probe_gib: float | None = None  # memory that torch reserves in the few steps of a probe

    @property
    def seconds(self) -> float:
        return self.step.seconds

    @property
    def label(self) -> str:
        return self.candidate.label(self.accumulation)


def predict(candidate: Candidate, workload: Workload) -> Prediction:
    """Predict the step time and the memory of one candidate."""
    setting = memory_setting(candidate, workload)
    step = predict_step(
        setting, workload.lengths.tokens, workload.card_rates.rates, balanced=candidate.balanced
    )
    if workload.card_gib is None:
        return Prediction(candidate, setting.accumulation, step)
    tokens_of_run = longest_tokens(candidate, setting, workload)
    tokens_of_probe = max(1, step.load.largest)
    whole = estimate_memory(replace(setting, tokens=tokens_of_run))
    probe = estimate_memory(replace(setting, tokens=tokens_of_probe))
    return Prediction(candidate, setting.accumulation, step, whole.total, probe.reserved)


def memory_setting(candidate: Candidate, workload: Workload) -> MemorySetting:
    """Return the candidate as the input of the memory and time models, without its tokens."""
    base = workload.base
    default_attention = Attention.flash if workload.flash else Attention.sdpa
    return replace(
        base,
        mode=candidate.mode,
        micro_batch=candidate.per_device,
        tokens=1,
        accumulation=workload.global_batch // (base.ranks * candidate.per_device),
        packing=candidate.packing != Packing.none,
        liger=candidate.liger,
        fused_loss=candidate.liger and workload.fuses,
        checkpointing=candidate.checkpointing,
        attention=ATTENTION.get(candidate.attention, default_attention),
    )


def longest_tokens(candidate: Candidate, setting: MemorySetting, workload: Workload) -> int:
    """Return an upper bound of the tokens of the longest micro batch of a whole run.

    Padding is included. If samples are balanced by length, the sums of packed micro batches vary
    like the sum of the global batch, but one of them has the longest sample.
    """
    unbalanced = longest_micro_batch(workload.lengths, setting)
    if not candidate.balanced or not setting.packing:
        return unbalanced
    tokens = workload.lengths.tokens
    size = candidate.per_device
    standard_error = tokens.deviation / math.sqrt(workload.global_batch)
    even_share = size * (tokens.mean + TAIL * standard_error)
    shortest, _ = tokens.counts[0]
    with_longest_sample = tokens.longest + (size - 1) * shortest
    balanced = math.ceil(max(even_share, with_longest_sample))
    return min(unbalanced, balanced)


def nearest_error(candidate: Candidate, errors: Mapping[Candidate, float]) -> tuple[float, float]:
    """Return the error of the most similar setting in `errors`, and its distance, at most 1.

    An error is the logarithm of measured over predicted. Without any error, (0, 1) is returned.
    """
    nearest = min(errors, key=candidate.distance, default=None)
    if nearest is None:
        return 0.0, 1.0
    return errors[nearest], min(candidate.distance(nearest), 1.0)


# A run that was cut short is repeated if it would get more than this many times its seconds.
_WORTH_REPEATING = 1.25


@dataclass
class Probe(TrialRun):
    """The short run of one setting."""

    prediction: Prediction = field(kw_only=True)

    @property
    def candidate(self) -> Candidate:
        return self.prediction.candidate

    @property
    def ran(self) -> bool:
        """Whether the probe shows that the setting works, or that it exceeds its device's memory."""
        return self.state == State.done or self.cause_id == OUT_OF_MEMORY

    @property
    def failed(self) -> bool:
        """Whether the probe failed, or could not be started, for another reason than memory."""
        return self.state == State.failed and not self.ran

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step with the predicted number of tokens; measured steps differ in their
        tokens.
        """
        if self.figures is None or self.state != State.done:
            return None
        if self.figures.unit != "tokens":
            return self.figures.step_seconds
        return self.prediction.step.load.tokens / self.figures.per_second

    @property
    def time_error(self) -> float | None:
        """The logarithm of measured over predicted seconds."""
        if not self.step_seconds:
            return None
        return math.log(self.step_seconds / self.prediction.seconds)

    @property
    def memory_gib(self) -> float | None:
        """Peak that torch reserved; the allocated one where only that is known."""
        if self.figures is None:
            return None
        return self.figures.reserved_gib or self.figures.memory_gib

    @property
    def memory_error(self) -> float | None:
        """The logarithm of measured over predicted memory; None when it was not measured, or not
        predicted.
        """
        if self.memory_gib is None or not self.prediction.probe_gib:
            return None
        return math.log(self.memory_gib / self.prediction.probe_gib)


def judge_probe(probe: Probe) -> None:
    """Set the state of a probe that has ended, depending on whether it has measured something.

    A probe that was cut short may have, while one that ended well may have logged no number.
    """
    measured = probe.measured
    if measured is None or probe.state == State.interrupted:
        return
    if probe.cause_id == HOST_MEMORY and measured.width.device == Device.cpu:
        probe.cause_id = OUT_OF_MEMORY
    if measured.outcome.exit_code != EXIT_DONE and probe.cause_id != TIME_USED:
        return
    fault = None
    if measured.non_finite("loss"):
        fault = "a loss is not finite"
    elif probe.figures is None or probe.figures.per_second <= 0:
        fault = "it logged no step with a time"
    probe.state = State.failed if fault else State.done
    probe.message = probe.message or fault


def is_final(measured: Measurement, skip: int, seconds: float | None) -> bool:
    """Whether another run of the same plan would measure nothing new.

    It would not if the run finished, exceeded its GPU's memory, ran out of time after the first
    `skip` steps, or had hardly less time than the `seconds` that it would get now (None: no limit).
    Running out of host memory is not final: the next job may get more.
    """
    outcome = measured.outcome
    if measured.finished or outcome.cause_id == OUT_OF_MEMORY:
        return True
    if outcome.cause_id != TIME_USED:
        return False
    if len(timed_steps(measured)) > skip:
        return True
    return seconds is not None and seconds <= outcome.seconds * _WORTH_REPEATING
