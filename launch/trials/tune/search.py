"""Decides which setting to probe next and when to stop, from the predictions and the probes so
far.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from launch.config.schema import Mode
from launch.config.trials import TuneConfig
from launch.trials.measurement import LEAST_NOISE
from launch.trials.record import State, seconds_left
from launch.trials.tune.predict import (
    HOST_MEMORY,
    OUT_OF_MEMORY,
    Prediction,
    Probe,
    Workload,
    nearest_error,
)
from launch.trials.tune.space import Candidate, Trait

_SAME_FAILURES = 2  # probes with the same cause: the next one like them is expected to fail, too
_RANK = re.compile(r"\branks? [\d, ]+")  # which rank reports the cause first is chance


def find_failure_traits(
    probes: Sequence[Probe], space: Iterable[Candidate]
) -> list[frozenset[Trait]]:
    """For each cause that made several probes fail, the traits that those probes share.

    Traits that the whole space has are left out, and so are those of a probe that ran, unless the
    failure needs several traits together. An empty set means that the setting is not the reason.
    """
    failures_by_cause: dict[str, list[frozenset[Trait]]] = {}
    for probe in probes:
        if probe.failed:
            failures_by_cause.setdefault(_RANK.sub("rank", probe.message or ""), []).append(
                probe.candidate.traits
            )
    repeated = [
        failures for failures in failures_by_cause.values() if len(failures) >= _SAME_FAILURES
    ]
    common = shared_traits(space) if repeated else frozenset()
    ran = [probe.candidate.traits for probe in probes if probe.ran]
    found = []
    for failures in repeated:
        shared = frozenset.intersection(*failures) - common
        cleared = shared.difference(*ran)
        # no probe that ran has all of them
        is_combination = not any(shared <= traits for traits in ran)
        found.append(shared if is_combination and not cleared else cleared)
    return found


def shared_traits(candidates: Iterable[Candidate]) -> frozenset[Trait]:
    """The traits that all these settings have."""
    return frozenset.intersection(*(candidate.traits for candidate in candidates))


def count_shared_traits(
    candidate: Candidate, probes: Sequence[Probe], space: Iterable[Candidate]
) -> int:
    """How many traits a setting shares with all failed probes: the fewer, the more its probe
    reveals of the cause.
    """
    failed = [probe.candidate for probe in probes if probe.failed]
    return len(shared_traits([candidate, *failed]) - shared_traits(space)) if failed else 0


_CAUTION = 2.0  # x the spread of the errors: how uncertain a setting is that is not like any probe
_STARTUP = 60.0  # seconds before the first step of a run, until one was measured
_LEAST_COUNTED = 2  # steps that a rate is taken from
MARGIN = 0.02  # by which a prediction has to beat the best probe to be worth one


class Feasibility(StrEnum):
    """Whether a whole run of a setting is expected to work."""

    fits = "fits"
    too_big = "too_big"  # for the card's memory, as predicted
    # a setting that needs no more ran out of memory, and none that needs as much was measured
    ruled_out = "ruled_out"
    fails = "fails"  # it has all traits that probes which failed with one cause share
    unknown = "unknown"  # memory is not predicted


class Stop(StrEnum):
    """Why a search ended."""

    best_beats_the_rest = "best_beats_the_rest"
    all_tried = "all_tried"
    probes_used = "probes_used"
    time_used = "time_used"
    nothing_fits = "nothing_fits"
    all_failed = "all_failed"
    interrupted = "interrupted"
    one_setting = "one_setting"


@dataclass(frozen=True)
class Estimate:
    """A prediction corrected by the probes."""

    prediction: Prediction
    seconds: float  # of a step
    low: float  # `seconds`, one standard deviation below and above
    high: float
    memory_gib: float | None  # of a whole run
    feasibility: Feasibility

    @property
    def candidate(self) -> Candidate:
        return self.prediction.candidate

    @property
    def is_open(self) -> bool:
        """Whether the setting may be probed and chosen."""
        return self.feasibility in (Feasibility.fits, Feasibility.unknown)

    @property
    def per_second(self) -> float:
        return self.prediction.step.load.tokens / self.seconds

    def as_json(self) -> dict[str, Any]:
        step = self.prediction.step
        return {
            "label": self.prediction.label,
            "overrides": self.candidate.overrides(),
            "predicted_seconds": step.seconds,
            "step_seconds": self.seconds,
            "low_seconds": self.low,
            "high_seconds": self.high,
            "per_second": self.per_second,
            "parts_seconds": step.parts,
            "padding": step.load.padding,
            "imbalance": step.load.imbalance,
            "memory_gib": self.memory_gib,
            "fit": self.feasibility,
        }


def correct_predictions(
    predictions: Sequence[Prediction],
    probes: Sequence[Probe],
    workload: Workload,
    limits: TuneConfig,
) -> list[Estimate]:
    """Correct every prediction by the error of the probe most like it; the fastest comes first.

    A setting is the less certain the less it is like a probe, and the more the errors of the probes
    differ: a model that is wrong where it was measured is less certain elsewhere, too.
    """
    rates = workload.card_rates.rates
    time_errors = {
        probe.candidate: error for probe in probes if (error := probe.time_error) is not None
    }
    memory_errors = _observe_memory(probes, workload)
    if time_errors:
        spread = _CAUTION * max(rates.spread, statistics.pstdev(time_errors.values()))
    else:
        spread = math.hypot(rates.bias, rates.spread)
    failure_traits = find_failure_traits(
        probes, [prediction.candidate for prediction in predictions]
    )
    estimates = []
    for prediction in predictions:
        candidate = prediction.candidate
        error, distance = nearest_error(candidate, time_errors)
        deviation = max(spread * distance, LEAST_NOISE)
        errors = error, error - deviation, error + deviation
        seconds, low, high = (prediction.seconds * math.exp(error) for error in errors)
        memory_error, distance = nearest_error(candidate, memory_errors)
        memory_error /= 1 + distance  # half of it is that of all settings
        memory_gib = (
            None
            if prediction.memory_gib is None
            else prediction.memory_gib * math.exp(memory_error)
        )
        if any(traits and traits <= candidate.traits for traits in failure_traits):
            feasibility = Feasibility.fails
        elif _is_ruled_out(prediction, probes):
            feasibility = Feasibility.ruled_out
        elif memory_gib is None or workload.card_gib is None:
            feasibility = Feasibility.unknown
        else:
            has_room = memory_gib <= workload.card_gib * (1 - limits.room)
            feasibility = Feasibility.fits if has_room else Feasibility.too_big
        estimates.append(Estimate(prediction, seconds, low, high, memory_gib, feasibility))
    return sorted(
        estimates, key=lambda estimate: (estimate.seconds, -estimate.candidate.per_device)
    )


def next_probe(
    estimates: Sequence[Estimate], probes: Sequence[Probe], limits: TuneConfig
) -> Estimate | Stop:
    """The setting to probe, or why to stop.

    The most promising setting goes first: the one that is fastest if its error is one standard
    deviation in its favour. While all probes have failed, it is the setting least like them, which
    shows whether the settings are the reason.
    """
    probed = {probe.candidate for probe in probes}
    waiting = [
        estimate for estimate in estimates if estimate.is_open and estimate.candidate not in probed
    ]
    space = [estimate.candidate for estimate in estimates]
    failure_traits = find_failure_traits(probes, space)
    none_ran = not any(probe.ran for probe in probes)
    if none_ran and failure_traits and not (waiting and all(failure_traits)):
        return Stop.all_failed
    best = find_fastest(estimates, probes)
    if not waiting:
        return Stop.all_tried if probes else Stop.nothing_fits
    if none_ran:
        shared = [count_shared_traits(estimate.candidate, probes, space) for estimate in waiting]
        waiting = [
            estimate
            for estimate, count in zip(waiting, shared, strict=True)
            if count == min(shared)
        ]
    most_promising = min(waiting, key=lambda estimate: estimate.low)
    if (
        best is not None
        and best.step_seconds is not None
        and most_promising.low > best.step_seconds * (1 - MARGIN)
    ):
        return Stop.best_beats_the_rest
    return exhausted_limit(most_promising.seconds, probes, limits) or most_promising


def exhausted_limit(seconds: float, probes: Sequence[Probe], limits: TuneConfig) -> Stop | None:
    """Which limit forbids a probe whose steps take `seconds`; none forbids the first probe."""
    if probes and len(probes) >= limits.probes:
        return Stop.probes_used
    return Stop.time_used if is_late(seconds, probes, limits) else None


def is_late(seconds: float, probes: Sequence[Probe], limits: TuneConfig) -> bool:
    """Whether a probe with steps of `seconds` would not end in time. Reused probes count, so that a
    search that has ended and is called again does nothing more.
    """
    left = seconds_left(probes, limits.minutes)
    return left is not None and _startup_seconds(probes) + limits.steps * seconds > left


def affordable_steps(
    seconds: float, probes: Sequence[Probe], limits: TuneConfig, skip: int
) -> int | None:
    """How many steps of `seconds` a last probe has time for, at most those of any probe; None if
    not even two of them would count, or all probes are used. The first `skip` steps do not count.
    """
    left = seconds_left(probes, limits.minutes)
    if len(probes) >= limits.probes or left is None:
        return None
    steps = min(int((left - _startup_seconds(probes)) / seconds), limits.steps)
    return steps if steps >= min(skip + _LEAST_COUNTED, limits.steps) else None


def find_fastest(estimates: Sequence[Estimate], probes: Sequence[Probe]) -> Probe | None:
    """The fastest probe whose whole run fits; of those that differ only by noise the earliest,
    which was predicted to be the fastest.
    """
    closed = {estimate.candidate for estimate in estimates if not estimate.is_open}
    measured = ((probe.step_seconds, probe) for probe in probes if probe.candidate not in closed)
    fitting = [(seconds, probe) for seconds, probe in measured if seconds is not None]
    least = min((seconds for seconds, _ in fitting), default=0.0)
    return next((probe for seconds, probe in fitting if seconds <= least * (1 + LEAST_NOISE)), None)


def needs_at_least(candidate: Candidate, other: Candidate) -> bool:
    """Whether `candidate` needs at least the memory of `other`: the two differ only in what adds
    memory.
    """
    same = all(
        getattr(candidate, name) == getattr(other, name)
        for name in ("mode", "packing", "attention")
    )
    saves_no_more = (not candidate.checkpointing or other.checkpointing) and (
        not candidate.liger or other.liger
    )
    balances_no_more = not candidate.balanced or other.balanced
    return same and saves_no_more and balances_no_more and candidate.per_device >= other.per_device


def _startup_seconds(probes: Sequence[Probe]) -> float:
    """What a probe is expected to take besides its steps."""
    startups = [
        (probe.seconds or 0.0) - probe.measured.last_step * probe.figures.step_seconds
        for probe in probes
        if probe.measured and probe.figures and probe.state == State.done
    ]
    return max(statistics.median(startups), 0.0) if startups else _STARTUP


def _is_ruled_out(prediction: Prediction, probes: Sequence[Probe]) -> bool:
    """Whether a probe that ran out of memory rules the setting out.

    A measurement refutes a prediction: neither the measured setting nor one that needs no more is
    ruled out by another probe. A host that ran out of memory rules out its own offload mode only.
    """
    candidate = prediction.candidate
    ran_out = [probe.prediction for probe in probes if probe.cause_id == OUT_OF_MEMORY]
    if any(other.candidate == candidate for other in ran_out):
        return True
    measured = [probe.candidate for probe in probes if probe.state == State.done]
    if any(needs_at_least(other, candidate) for other in measured):
        return False
    host_ran_out = {probe.candidate.mode for probe in probes if probe.cause_id == HOST_MEMORY}
    if candidate.mode == Mode.zero3_offload and Mode.zero3_offload in host_ran_out:
        return True
    if any(needs_at_least(candidate, other.candidate) for other in ran_out):
        return True
    least = min(
        (other.probe_gib for other in ran_out if other.probe_gib is not None), default=math.inf
    )
    return prediction.probe_gib is not None and prediction.probe_gib >= least


def _observe_memory(probes: Sequence[Probe], workload: Workload) -> dict[Candidate, float]:
    """The errors of the memory predictions. A probe that ran out of memory needed at least the
    card's.
    """
    errors = {}
    for probe in probes:
        error = probe.memory_error
        if probe.cause_id == OUT_OF_MEMORY and workload.card_gib and probe.prediction.probe_gib:
            error = max(math.log(workload.card_gib / probe.prediction.probe_gib), 0.0)
        if error is not None:
            errors[probe.candidate] = error
    return errors
