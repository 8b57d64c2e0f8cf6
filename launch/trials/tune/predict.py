"""Predicts time and memory of every candidate before anything runs, and learns the errors from the probes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from launch.config.schema import Packing
from launch.planning.estimate.cards import CardRates
from launch.planning.estimate.forecast import TAIL, longest_micro_batch
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.setting import Attention, MemorySetting
from launch.planning.estimate.speed import StepTime, predict_step
from launch.planning.lengths import Lengths
from launch.trials.measurement import LEAST_NOISE
from launch.trials.tune.space import Candidate

_ATTENTION = {"flash_2": Attention.flash, "sdpa": Attention.sdpa, "eager": Attention.eager}


@dataclass(frozen=True)
class Workload:
    """What all settings of a search have in common."""

    base: MemorySetting  # the recipe's own setting
    global_batch: int
    lengths: Lengths  # of the data
    measured_lengths: bool  # whether `lengths` are the data's, or the limit in their place
    card_rates: CardRates  # how fast the card is
    fuses: bool = True  # Liger fuses the loss with the output matrix
    flash: bool = False  # flash attention is the default
    card_gib: float | None = None  # None where memory is not predicted


@dataclass(frozen=True)
class Prediction:
    """One candidate's predicted step time and memory; the memory is None where it is not predicted."""

    candidate: Candidate
    accumulation: int
    step: StepTime = field(repr=False)
    memory_gib: float | None = None  # that the card must have for the longest micro batch of a whole run
    probe_gib: float | None = None  # that torch reserves in a few steps

    @property
    def seconds(self) -> float:
        return self.step.seconds

    @property
    def label(self) -> str:
        return self.candidate.label(self.accumulation)


def predict(candidate: Candidate, workload: Workload) -> Prediction:
    """Predict the step time and the memory of one candidate."""
    setting = memory_setting(candidate, workload)
    step = predict_step(setting, workload.lengths.tokens, workload.card_rates.rates, balanced=candidate.balanced)
    if workload.card_gib is None:
        return Prediction(candidate, setting.accumulation, step)
    whole = estimate_memory(replace(setting, tokens=longest_tokens(candidate, setting, workload)))
    probe = estimate_memory(replace(setting, tokens=max(1, step.load.largest)))
    return Prediction(candidate, setting.accumulation, step, whole.total, probe.reserved)


def memory_setting(candidate: Candidate, workload: Workload) -> MemorySetting:
    """The candidate as the input of the memory and time models, without its tokens."""
    base = workload.base
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
        attention=_ATTENTION.get(candidate.attention, Attention.flash if workload.flash else Attention.sdpa),
    )


def longest_tokens(candidate: Candidate, setting: MemorySetting, workload: Workload) -> int:
    """An upper bound of the tokens, padding included, of the longest micro batch of a whole run.

    Balanced by length, the sums of packed micro batches vary as the sum of the global batch does; but the longest
    sample always has to be in one of them.
    """
    dealt_as_they_come = longest_micro_batch(workload.lengths, setting)
    if not candidate.balanced or not setting.packing:
        return dealt_as_they_come
    tokens, size = workload.lengths.tokens, candidate.per_device
    variance = sum(count * (length - tokens.mean) ** 2 for length, count in tokens.counts) / tokens.samples
    even = size * (tokens.mean + TAIL * math.sqrt(variance / workload.global_batch))
    shortest = tokens.counts[0][0]
    return min(dealt_as_they_come, math.ceil(max(even, tokens.longest + (size - 1) * shortest)))


@dataclass(frozen=True)
class LogError:
    """The logarithm of measured over predicted at one setting."""

    mean: float
    deviation: float  # standard deviation

    def between(self, predicted: float) -> tuple[float, float]:
        """A predicted number, corrected, one standard deviation below and above."""
        return predicted * math.exp(self.mean - self.deviation), predicted * math.exp(self.mean + self.deviation)


@dataclass(frozen=True)
class Observation:
    """The prediction error at one probed setting."""

    candidate: Candidate
    error: float  # logarithm of measured over predicted
    noise: float = LEAST_NOISE  # standard error of `error`


@dataclass(frozen=True)
class ErrorModel:
    """A Gaussian process over the prediction errors, conditioned on `observations`."""

    bias: float  # prior standard deviation of the shared offset
    spread: float  # prior standard deviation of the rest
    observations: tuple[Observation, ...] = ()

    def at(self, candidate: Candidate) -> LogError:
        """The error to expect at a setting."""
        prior = self.bias**2 + self.spread**2
        if not self.observations:
            return LogError(0.0, math.sqrt(prior))
        covariances = [self._covariance(candidate, observation.candidate) for observation in self.observations]
        weights = solve(self._covariance_matrix, covariances)
        errors = [observation.error for observation in self.observations]
        mean = sum(weight * error for weight, error in zip(weights, errors, strict=True))
        explained = sum(weight * covariance for weight, covariance in zip(weights, covariances, strict=True))
        return LogError(mean, max(self._scale * math.sqrt(max(prior - explained, 0.0)), LEAST_NOISE))

    @cached_property
    def _covariance_matrix(self) -> list[list[float]]:
        """The covariances of the observations, noise included."""
        candidates = [observation.candidate for observation in self.observations]
        matrix = [[self._covariance(row, column) for column in candidates] for row in candidates]
        for index, observation in enumerate(self.observations):
            matrix[index][index] += observation.noise**2
        return matrix

    @cached_property
    def _scale(self) -> float:
        """How many times larger the observed errors are than the prior expects, at least 1: a prediction that is wrong
        where it was measured is less certain elsewhere, too."""
        errors = [observation.error for observation in self.observations]
        fitted = solve(self._covariance_matrix, errors)
        return max(1.0, math.sqrt(sum(a * b for a, b in zip(errors, fitted, strict=True)) / len(errors)))

    def _covariance(self, candidate: Candidate, other: Candidate) -> float:
        return self.bias**2 + self.spread**2 * math.exp(-candidate.distance(other))


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solve a linear system by Gaussian elimination. Raises ZeroDivisionError for a singular one."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [value - factor * above for value, above in zip(rows[row], rows[column], strict=True)]
    solution = [0.0] * size
    for row in range(size - 1, -1, -1):
        rest = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - rest) / rows[row][row]
    return solution
