"""Decides, from predictions and probes, which setting a search probes next and when it stops."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from launch.config.schema import Mode
from launch.config.trials import TuneConfig
from launch.trials.measurement import HOST_MEMORY, LEAST_NOISE, OUT_OF_MEMORY
from launch.trials.record import State, seconds_left
from launch.trials.tune.predict import Prediction, Probe, Workload, nearest_error
from launch.trials.tune.space import Candidate, Trait

# Number of probes that fail with one cause, after which others like them are expected to fail too.
_SAME_FAILURES = 2
# The rank in a cause. Which rank reports a cause first is chance, so it is left out of comparisons.
_RANK = re.compile(r"\branks? [\d, ]+")


def find_failure_traits(
    probes: Sequence[Probe], space: Iterable[Candidate]
) -> list[frozenset[Trait]]:
    """Return, for each cause that made several probes fail, the traits that those probes share.

    Traits that the whole space has are left out, and so are those of a probe that ran, unless the
    failure needs several traits together. An empty set means that the setting is not the reason.
    """
    failed_by_cause: dict[str, list[Candidate]] = {}
    for probe in probes:
        if probe.failed:
            cause = _RANK.sub("rank", probe.message or "")
            failed_by_cause.setdefault(cause, []).append(probe.candidate)
    repeated = [failed for failed in failed_by_cause.values() if len(failed) >= _SAME_FAILURES]
    traits_of_space = shared_traits(space) if repeated else frozenset()
    ran = [probe.candidate.traits for probe in probes if probe.ran]
    failure_traits = []
    for failed in repeated:
        shared = shared_traits(failed) - traits_of_space
        in_no_run = shared.difference(*ran)
        is_combination = not any(shared <= traits for traits in ran)  # no run has all of them
        failure_traits.append(shared if is_combination and not in_no_run else in_no_run)
    return failure_traits


def shared_traits(candidates: Iterable[Candidate]) -> frozenset[Trait]:
    """Return the traits that all these settings have."""
    traits = [candidate.traits for candidate in candidates]
    return frozenset.intersection(*traits)


def count_shared_traits(
    candidate: Candidate, probes: Sequence[Probe], space: Iterable[Candidate]
) -> int:
    """Count the traits that a setting shares with all failed probes.

    The fewer they are, the more a probe of the setting reveals of the cause.
    """
    failed = [probe.candidate for probe in probes if probe.failed]
    if not failed:
        return 0
    return len(shared_traits([candidate, *failed]) - shared_traits(space))


# The standard deviation for a setting that is unlike all probes, as a multiple of the spread of the
# probes' errors.
_CAUTION = 2.0
_STARTUP = 60.0  # seconds before the first step of a run, until one was measured
_LEAST_COUNTED = 2  # minimum number of steps from which a rate is computed
MARGIN = 0.02  # fraction by which a prediction has to beat the best probe to be probed itself


class Feasibility(StrEnum):
    """Whether a whole run of a setting is expected to work."""

    fits = "fits"
    too_big = "too_big"  # it is predicted to exceed the GPU's memory
    # A setting that needs no more memory ran out of it, and none that needs as much was measured.
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
    seconds: float  # time of a step
    low: float  # `seconds` less one standard deviation
    high: float  # `seconds` and one standard deviation
    memory_gib: float | None  # memory of a whole run
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

    def json_fields(self) -> dict[str, Any]:
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

    An estimate is less certain if the setting is less like a probe, or if the errors of the probes
    differ more: a model that is wrong where it was measured is less certain elsewhere too.
    """
    rates = workload.card_rates.rates
    time_errors = _observe_times(probes)
    memory_errors = _observe_memory(probes, workload)
    if time_errors:
        spread = _CAUTION * max(rates.spread, statistics.pstdev(time_errors.values()))
    else:
        spread = math.hypot(rates.bias, rates.spread)
    space = [prediction.candidate for prediction in predictions]
    failure_traits = find_failure_traits(probes, space)
    estimates = []
    for prediction in predictions:
        candidate = prediction.candidate
        error, distance = nearest_error(candidate, time_errors)
        deviation = max(spread * distance, LEAST_NOISE)
        memory_gib = _correct_memory(prediction, memory_errors)
        if any(traits and traits <= candidate.traits for traits in failure_traits):
            feasibility = Feasibility.fails
        elif _is_ruled_out(prediction, probes):
            feasibility = Feasibility.ruled_out
        else:
            feasibility = _compare_memory(memory_gib, workload.card_gib, limits.room)
        estimates.append(
            Estimate(
                prediction,
                seconds=prediction.seconds * math.exp(error),
                low=prediction.seconds * math.exp(error - deviation),
                high=prediction.seconds * math.exp(error + deviation),
                memory_gib=memory_gib,
                feasibility=feasibility,
            )
        )
    # Among equally fast settings, the one with the largest micro batch comes first.
    estimates.sort(key=lambda estimate: (estimate.seconds, -estimate.candidate.per_device))
    return estimates


def _compare_memory(
    memory_gib: float | None, card_gib: float | None, free_share: float
) -> Feasibility:
    """Compare the memory of a whole run with a GPU of which the share `free_share` stays free."""
    if memory_gib is None or card_gib is None:
        return Feasibility.unknown
    has_room = memory_gib <= card_gib * (1 - free_share)
    return Feasibility.fits if has_room else Feasibility.too_big


def _correct_memory(prediction: Prediction, errors: Mapping[Candidate, float]) -> float | None:
    """Return the predicted memory, corrected by the error of the most similar probe.

    A setting unlike that probe gets half of its error, the part that all settings have.
    """
    if prediction.memory_gib is None:
        return None
    error, distance = nearest_error(prediction.candidate, errors)
    return prediction.memory_gib * math.exp(error / (1 + distance))


def next_probe(
    estimates: Sequence[Estimate], probes: Sequence[Probe], limits: TuneConfig
) -> Estimate | Stop:
    """Return the setting to probe, or why to stop.

    The most promising setting goes first: the one that is fastest if its error is one standard
    deviation in its favour. While all probes have failed, the setting least like them goes first, to
    show whether the settings are the reason.
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
        fewest = min(shared)
        waiting = [
            estimate for estimate, count in zip(waiting, shared, strict=True) if count == fewest
        ]
    most_promising = min(waiting, key=lambda estimate: estimate.low)
    if best is not None and best.step_seconds is not None:
        worth_probing = best.step_seconds * (1 - MARGIN)
        if most_promising.low > worth_probing:
            return Stop.best_beats_the_rest
    return exhausted_limit(most_promising.seconds, probes, limits) or most_promising


def exhausted_limit(seconds: float, probes: Sequence[Probe], limits: TuneConfig) -> Stop | None:
    """Return the limit that forbids a probe whose steps take `seconds`; None for the first probe,
    which no limit forbids.
    """
    if probes and len(probes) >= limits.probes:
        return Stop.probes_used
    return Stop.time_used if is_late(seconds, probes, limits) else None


def is_late(seconds: float, probes: Sequence[Probe], limits: TuneConfig) -> bool:
    """Whether a probe with steps of `seconds` would not end in time.

    The time of reused probes counts, so that a search that has ended runs nothing when it is called
    again.
    """
    left = seconds_left(probes, limits.minutes)
    if left is None:
        return False
    needed = _startup_seconds(probes) + limits.steps * seconds
    return needed > left


def affordable_steps(
    seconds: float, probes: Sequence[Probe], limits: TuneConfig, skip: int
) -> int | None:
    """Return how many steps of `seconds` a last probe has time for, at most those of any probe.

    The first `skip` steps do not count. None if fewer than two would count, or all probes are used.
    """
    left = seconds_left(probes, limits.minutes)
    if len(probes) >= limits.probes or left is None:
        return None
    seconds_for_steps = left - _startup_seconds(probes)
    steps = min(int(seconds_for_steps / seconds), limits.steps)
    least_steps = min(skip + _LEAST_COUNTED, limits.steps)
    return steps if steps >= least_steps else None


def find_fastest(estimates: Sequence[Estimate], probes: Sequence[Probe]) -> Probe | None:
    """Return the fastest probe whose whole run fits; None without one.

    If probes differ only by noise, the earliest is returned, which was predicted to be the fastest.
    """
    closed = {estimate.candidate for estimate in estimates if not estimate.is_open}
    fitting = []
    for probe in probes:
        seconds = probe.step_seconds
        if seconds is not None and probe.candidate not in closed:
            fitting.append((seconds, probe))
    least = min((seconds for seconds, _ in fitting), default=0.0)
    for seconds, probe in fitting:
        if seconds <= least * (1 + LEAST_NOISE):
            return probe
    return None


def needs_at_least(candidate: Candidate, other: Candidate) -> bool:
    """Whether `candidate` needs at least the memory of `other`.

    This is certain if it has everything in `other` that adds memory, and no further option that
    saves memory.
    """
    for name in ("mode", "packing", "attention"):
        if getattr(candidate, name) != getattr(other, name):
            return False
    for name in ("checkpointing", "liger", "balanced"):
        if getattr(candidate, name) and not getattr(other, name):
            return False
    return candidate.per_device >= other.per_device


def _startup_seconds(probes: Sequence[Probe]) -> float:
    """Return the seconds that a probe is expected to take besides its steps."""
    startups = []
    for probe in probes:
        if probe.measured and probe.figures and probe.state == State.done:
            seconds_of_steps = probe.measured.last_step * probe.figures.step_seconds
            startups.append((probe.seconds or 0.0) - seconds_of_steps)
    if not startups:
        return _STARTUP
    return max(statistics.median(startups), 0.0)


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
    exceeded_gib = [other.probe_gib for other in ran_out if other.probe_gib is not None]
    if prediction.probe_gib is None or not exceeded_gib:
        return False
    return prediction.probe_gib >= min(exceeded_gib)


def _observe_times(probes: Sequence[Probe]) -> dict[Candidate, float]:
    """Return the errors of the predicted times, by the setting that was probed."""
    errors = {}
    for probe in probes:
        error = probe.time_error
        if error is not None:
            errors[probe.candidate] = error
    return errors


def _observe_memory(probes: Sequence[Probe], workload: Workload) -> dict[Candidate, float]:
    """Return the errors of the predicted memory, by the setting that was probed.

    A probe that ran out of memory needed at least the GPU's memory.
    """
    errors = {}
    for probe in probes:
        error = probe.memory_error
        if probe.cause_id == OUT_OF_MEMORY and workload.card_gib and probe.prediction.probe_gib:
            error = max(math.log(workload.card_gib / probe.prediction.probe_gib), 0.0)
        if error is not None:
            errors[probe.candidate] = error
    return errors
