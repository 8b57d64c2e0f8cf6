"""The record of a search: tune.json, rewritten after every probe, and the tables beside it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from launch.files import load_json
from launch.planning.plan import Plan
from launch.trials.record_file import TrialRecord, another_record, changed_versions, read_record, utc_now
from launch.trials.tune.predict import Prediction, Workload
from launch.trials.tune.probe import Probe
from launch.trials.tune.search import Estimate, Stop, TuneLimits, correct_predictions, find_fastest
from launch.trials.tune.space import LossWeighting, Space, compare_loss

SCHEMA_VERSION = 1
FILE = "tune.json"
_LISTED = 40  # predictions in the file


class TuneState(StrEnum):
    predicted = "predicted"  # dry_run=true, or one setting only
    running = "running"
    done = "done"
    failed = "failed"  # no probe measured anything
    interrupted = "interrupted"


@dataclass(frozen=True)
class LossChange:
    """The losses of the chosen setting against the recipe's own on the same samples."""

    weighting: LossWeighting  # whether tokens weigh as in the recipe, so that only rounding differs
    first: float | None  # relative difference at the first step, None unless both were measured
    median: float | None  # of the relative differences
    steps: int  # that were compared

    def as_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "kept": self.weighting.value,
            "first": self.first,
            "median": self.median,
            "steps": self.steps,
        }


@dataclass
class TuneRecord(TrialRecord):
    """A search, as far as it has come."""

    name: str
    folder: Path  # runs/<stage>/tune-<name>
    plan: Plan
    space: Space
    workload: Workload
    predictions: Sequence[Prediction]
    limits: TuneLimits
    card: str | None  # None on CPU
    versions: Mapping[str, str]  # of the trainer's packages
    probes: list[Probe] = field(default_factory=list)
    stop: Stop | None = None
    overlay: Path | None = None  # the file that was written
    dry_run: bool = False
    began: str = field(default_factory=utc_now)

    @property
    def path(self) -> Path:
        return self.folder / FILE

    @property
    def state(self) -> TuneState:
        if self.stop == Stop.interrupted:
            return TuneState.interrupted
        if self.dry_run or self.stop == Stop.one_setting:
            return TuneState.predicted
        if self.stop is None:
            return TuneState.running
        return TuneState.done if self.best is not None else TuneState.failed

    @property
    def estimates(self) -> list[Estimate]:
        """The predictions corrected by the probes, the fastest first."""
        return correct_predictions(self.predictions, self.probes, self.workload, self.limits)

    @property
    def best(self) -> Probe | None:
        return find_fastest(self.estimates, self.probes)

    @property
    def base(self) -> Probe | None:
        """The probe of the recipe's own setting."""
        return next((probe for probe in self.probes if probe.prediction.candidate == self.space.base), None)

    @property
    def base_estimate(self) -> Estimate:
        """The estimate of the recipe's own setting."""
        return next(estimate for estimate in self.estimates if estimate.prediction.candidate == self.space.base)

    @property
    def loss_change(self) -> LossChange | None:
        """How the best setting changes the loss; None without a best setting."""
        best, base = self.best, self.base
        if best is None:
            return None
        weighting = compare_loss(best.prediction.candidate, self.space.base, self.plan)
        pairs = list(zip(best.losses, base.losses, strict=False)) if base is not None else []
        differences = [abs(loss - own) / abs(own) for loss, own in pairs if own and math.isfinite(loss + own)]
        if not differences:
            return LossChange(weighting, None, None, 0)
        return LossChange(weighting, differences[0], statistics.median(differences), len(differences))

    def as_json(self) -> dict[str, Any]:
        best, change = self.best, self.loss_change
        lengths = self.workload.lengths
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "identity": self.plan.identity,
            "stage": self.plan.stage,
            "trainer": self.plan.trainer,
            "upstream": self.plan.upstream.description,
            "model": self.plan.inputs.model.reference,
            "width": str(self.plan.parallel.width),
            "card": self.card,
            "card_gib": round_figures(self.workload.card_gib),
            "card_measured": self.workload.card_rates.measured,
            "versions": dict(self.versions),
            "state": self.state.value,
            "stop": self.stop.value if self.stop else None,
            "steps": self.limits.steps,
            "probes_allowed": self.limits.probes,
            "minutes_allowed": round_figures(self.limits.seconds / 60),
            "minutes_used": round_figures(self.used / 60),
            "began": self.began,
            "updated": utc_now(),
            "global_batch": self.workload.global_batch,
            "data": {
                "measured": self.workload.measured_lengths,
                "samples": lengths.samples if self.workload.measured_lengths else None,
                "mean_tokens": round_figures(lengths.tokens.mean),
                "longest_tokens": lengths.tokens.longest,
            },
            "held": list(self.space.held),
            "left_out": list(self.space.left_out),
            "candidates": len(self.predictions),
            "predictions": [_estimate_as_json(estimate) for estimate in self.estimates[:_LISTED]],
            "probes": [self._probe_as_json(probe) for probe in self.probes],
            "best": None if best is None else best.prediction.label,
            "base": self.space.base.label(self.plan.batch.accumulation),
            "loss_change": None if change is None else change.as_json(),
            "overlay": None if self.overlay is None else str(self.overlay),
        }

    @property
    def used(self) -> float:
        """Seconds that the probes took, reused ones included, so that repeating a finished search changes nothing."""
        return sum(probe.wall for probe in self.probes)

    def _probe_as_json(self, probe: Probe) -> dict[str, Any]:
        candidate = probe.prediction.candidate
        return {
            "schema_version": SCHEMA_VERSION,
            "setting": probe.prediction.label,
            "keys": candidate.keys(),
            "verdict": probe.verdict.value,
            "why": probe.why,
            "reused": probe.reused,
            "folder": probe.folder,
            "steps": probe.steps,
            "predicted_seconds": round_figures(probe.prediction.seconds),
            "step_seconds": round_figures(probe.seconds),
            "per_second": round_figures(probe.per_second),
            "unit": probe.unit,
            "noise": round_figures(probe.noise),
            "predicted_gib": round_figures(probe.prediction.probe_gib),
            "reserved_gib": round_figures(probe.memory_gib),
            "padding_share": round_figures(probe.padding),
            "losses": [round_figures(loss) for loss in probe.losses],
            "loss_kept": compare_loss(candidate, self.space.base, self.plan).value,
            "wall_seconds": round_figures(probe.wall),
        }


def refuse_another(folder: Path, identity: str) -> None:
    """Raise UserError (other_tune) when the folder holds the search of another recipe, model, data or width."""
    earlier = read_record(folder / FILE, lambda record: str(record["identity"]), "other_tune")
    if earlier not in (None, identity):
        message = f"{folder} is the search of another recipe, data, model or width ({earlier})"
        raise another_record("other_tune", message)


def describe_changes(folder: Path, card: str | None, versions: Mapping[str, str]) -> str | None:
    """What has changed since the probes in the folder ran, so that they are not reused; None if nothing has, or there
    are none."""
    try:
        record = load_json(folder / FILE)
        before = {"card": record["card"], **record["versions"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ", ".join(changed_versions(before, {"card": card, **versions})) or None


def _estimate_as_json(estimate: Estimate) -> dict[str, Any]:
    step = estimate.prediction.step
    return {
        "schema_version": SCHEMA_VERSION,
        "setting": estimate.prediction.label,
        "keys": estimate.prediction.candidate.keys(),
        "predicted_seconds": round_figures(step.seconds),
        "step_seconds": round_figures(estimate.seconds),
        "low_seconds": round_figures(estimate.low),
        "high_seconds": round_figures(estimate.high),
        "per_second": round_figures(estimate.per_second),
        "parts_seconds": {name: round_figures(seconds) for name, seconds in step.parts.items()},
        "padding_share": round_figures(step.load.padding),
        "imbalance": round_figures(step.load.imbalance),
        "memory_gib": round_figures(estimate.memory_gib),
        "fit": estimate.feasibility.value,
    }


def round_figures(value: float | None) -> float | None:
    """Round to five significant digits; None for what is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
