"""The record of a search: tune.json, and the sentences of its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.config.kinds import KINDS, Kind
from launch.config.line import format_value
from launch.config.trials import TuneConfig
from launch.trials.measurement import Measurement, finite, median, relative_difference
from launch.trials.record import State, TrialRecord, seconds_left
from launch.trials.tune.predict import Prediction, Probe, Workload, is_final, judge_probe
from launch.trials.tune.search import Estimate, Stop, correct_predictions, find_fastest
from launch.trials.tune.space import (
    SEARCHED_KEYS,
    Space,
    SplitWeighting,
    compare_loss,
)
from launch.worker.json_codec import to_json

_LISTED = 40  # predictions in the file
_REASONS = {
    Stop.best_beats_the_rest: "no other setting is predicted to be faster than the best one "
    "measured",
    Stop.all_tried: "every setting that fits was probed",
    Stop.probes_used: "the probes are used up",
    Stop.time_used: "the time is used up: another probe would exceed it",
    Stop.nothing_fits: "no remaining setting fits",
    Stop.all_failed: "the probes fail with one cause at every setting",
    Stop.interrupted: "interrupted; the same command continues with what was measured",
    Stop.one_setting: "there is only one setting at this width",
}


@dataclass(frozen=True)
class LossChange:
    """The losses of the chosen setting against the recipe's own on the same samples."""

    # The weights of tokens compared with the recipe's; if they are equal, only rounding differs.
    loss_weighting: SplitWeighting
    first: float | None  # relative difference at the first step; None unless both were measured
    median: float | None  # median of the relative differences
    steps: int  # number of steps that were compared


@dataclass
class TuneRecord(TrialRecord[Probe]):
    """A search and its probes so far."""

    space: Space
    workload: Workload
    predictions: Sequence[Prediction]
    limits: TuneConfig
    card: str | None  # None on CPU
    stop: Stop | None = None
    overlay: Path | None = None  # file of the best setting, once it was written
    full: Probe | None = None  # full fine-tuning, beside the settings of the adapter
    full_note: str | None = None  # why it was not probed
    verb = "tune"
    typical = True

    def accepts(self, run: Probe, measured: Measurement) -> bool:
        return is_final(measured, self.warmup, seconds_left(self.runs, self.limits.minutes))

    def judge(self, run: Probe) -> None:
        judge_probe(run)

    def is_inspected(self, run: Probe) -> bool:
        if run is self.full:
            return False
        return any(other.state == State.done and not other.reused for other in self.runs)

    @property
    def rows(self) -> Sequence[Probe]:
        return [*self.runs, self.full] if self.full else self.runs

    @property
    def state(self) -> State:
        if self.stop == Stop.interrupted:
            return State.interrupted
        if self.limits.dry_run or self.stop == Stop.one_setting:
            return State.planned
        if self.stop is None:
            return State.running
        return State.done if self.best is not None else State.failed

    @property
    def estimates(self) -> list[Estimate]:
        """The predictions corrected by the probes, the fastest first."""
        return correct_predictions(self.predictions, self.runs, self.workload, self.limits)

    @property
    def best(self) -> Probe | None:
        """The probe of the fastest setting; None before any setting was measured."""
        return find_fastest(self.estimates, self.runs)

    @property
    def base(self) -> Probe | None:
        """The probe of the recipe's own setting."""
        for probe in self.runs:
            if probe.candidate == self.space.base:
                return probe
        return None

    @property
    def base_estimate(self) -> Estimate:
        """The estimate of the recipe's own setting."""
        base = self.space.base
        return next(estimate for estimate in self.estimates if estimate.candidate == base)

    @property
    def loss_change(self) -> LossChange | None:
        """How the best setting changes the loss; None without a best setting."""
        best = self.best
        base = self.base
        if best is None:
            return None
        losses_of_best = best.figures.losses if best.figures else ()
        losses_of_base = base.figures.losses if base and base.figures else ()
        differences = finite(
            relative_difference(loss_of_base, loss)
            for loss, loss_of_base in zip(losses_of_best, losses_of_base, strict=False)
        )
        return LossChange(
            loss_weighting=compare_loss(best.candidate, self.space.base, self.plan),
            first=differences[0] if differences else None,
            median=median(differences),
            steps=len(differences),
        )

    @property
    def summary(self) -> list[str]:
        applied = [f"+tuned={self.id} applies it ({self.overlay})"] if self.overlay else []
        return [self.verdict, self.loss_sentence, *applied, self.full_sentence]

    @property
    def full_sentence(self) -> str:
        """How fast full fine-tuning is against the adapter."""
        full = self.full
        best = self.best
        if self.full_note:
            return f"Full fine-tuning was not probed: {self.full_note}"
        if full is None:
            return ""
        if full.figures is None or full.step_seconds is None:
            return f"Full fine-tuning was not measured: {full.message}"
        speed = f"{full.figures.per_second:,.0f} {full.figures.unit} per second"
        if best and best.step_seconds:
            speed += f", {best.step_seconds / full.step_seconds:.2f} times the adapter"
        memory = f" in {full.memory_gib:.1f} GiB" if full.memory_gib else ""
        return f"Full fine-tuning runs at {speed}{memory}; its losses need its own learning rate."

    @property
    def verdict(self) -> str:
        """The sentence with the best setting found, and why the search stopped."""
        reason = _REASONS[self.stop] if self.stop else "running"
        if self.state == State.failed:
            causes = [probe.message for probe in self.runs if probe.message]
            last = f": {causes[-1]}" if causes else ""
            return f"nothing was measured in {len(self.runs)} probes ({reason}){last}"
        if self.best is None or self.state == State.planned:
            return reason if self.stop else "predicted; nothing was run"
        return (
            f"the fastest setting measured is {self.best.prediction.label}: {self.gain} "
            f"Stopped: {reason}"
        )

    @property
    def gain(self) -> str:
        """The sentence about how much faster the best setting is than the recipe's own."""
        best = self.best
        base = self.base
        if best is None or best.step_seconds is None or best.figures is None:
            return ""
        rate = f"{best.figures.per_second:,.0f} {best.figures.unit} per second"
        if best is base:
            return f"{rate}: the recipe's own setting is the fastest."
        if base is not None and base.step_seconds is not None:
            speedup = base.step_seconds / best.step_seconds
            return f"{rate}, {speedup:.2f} times the recipe's own setting, measured."
        speedup = self.base_estimate.seconds / best.step_seconds
        return (
            f"{rate}, about {speedup:.1f} times the recipe's own setting, which was predicted "
            "but not probed."
        )

    @property
    def loss_sentence(self) -> str:
        """The sentence about how the best setting changes the loss."""
        change = self.loss_change
        unit = self._loss_unit
        if change is None or self.best is self.base:
            return ""
        measured = ""
        if change.median is not None and change.first is not None:
            first = f"{change.first:.2%} apart at the first step"
            measured = f" ({first}, a median of {change.median:.2%} over {change.steps})"
        if change.loss_weighting == SplitWeighting.same:
            return f"The loss is the recipe's own: every {unit} weighs as before{measured}."
        amount = measured or "; by how much was not measured"
        if change.loss_weighting == SplitWeighting.token_weighted:
            return (
                "It changes the loss: every token has the same weight, independent of its "
                f"micro batch{amount}."
            )
        return (
            "It changes the loss: a different micro-batch split changes the weight of each "
            f"{unit}{amount}."
        )

    @property
    def notes(self) -> list[str]:
        """The facts on which the predictions are based."""
        workload = self.workload
        space = self.space
        lines = [f"data: {self._describe_data()}"]
        if workload.card_rates.why:
            lines.append(f"uncertain: {workload.card_rates.why}")
        if workload.card_gib is None:
            lines.append(
                "memory: not predicted; a probe that runs out of memory rules out the settings "
                "that need more"
            )
        if space.held:
            lines.append(f"not searched, as you set them: {', '.join(space.held)}")
        lines += [f"left out: {reason}" for reason in space.left_out]
        overrides = self._loss_preserving_overrides()
        if overrides:
            split = f"a different micro-batch split changes the weight of each {self._loss_unit}"
            keep = "keeps" if len(overrides) == 1 else "keep"
            lines.append(f"loss: {split}, and so the loss; {' '.join(overrides)} {keep} it")
        return lines

    def _describe_data(self) -> str:
        """Return the number of samples and their tokens, or what is assumed in their place."""
        tokens = self.workload.lengths.tokens
        if self.workload.measured_lengths:
            samples = f"{tokens.samples:,} samples of {tokens.mean:,.0f} tokens on average"
            return f"{samples}, {tokens.longest:,} at most"
        assumed = f"every sample is assumed to have {tokens.longest:,} tokens, the limit"
        return f"lengths are unknown, so {assumed}"

    def _loss_preserving_overrides(self) -> list[str]:
        """Return the overrides that exclude the settings whose micro batches change the loss."""
        base = self.space.base
        values = {}
        for candidate in self.space.candidates:
            names = ("per_device", "balanced", "packing")
            differing = [name for name in names if getattr(candidate, name) != getattr(base, name)]
            if len(differing) != 1:
                continue
            if compare_loss(candidate, base, self.plan) == SplitWeighting.micro_batches:
                name = differing[0]
                values[name] = getattr(base, name)
        return [f"{SEARCHED_KEYS[name]}={format_value(value)}" for name, value in values.items()]

    @property
    def _loss_unit(self) -> str:
        """The unit that the loss is the mean of."""
        if self.plan.config.stage.kind == Kind.sft:
            return "token"
        return KINDS[self.plan.config.stage.kind].unit

    def json_fields(self) -> dict[str, Any]:
        best = self.best
        lengths = self.workload.lengths
        seconds_used = sum(probe.seconds or 0.0 for probe in self.runs)  # reused probes count too
        return {
            **super().json_fields(),
            "identity": self.plan.identity,
            "width": str(self.plan.parallel.width),
            "card": self.card,
            "card_gib": self.workload.card_gib,
            "card_measured": self.workload.card_rates.measured,
            "versions": self.plan.machine.versions,
            "stop": self.stop,
            "options": self.limits,
            "minutes_used": seconds_used / 60,
            "data": {
                "measured": self.workload.measured_lengths,
                "samples": lengths.samples if self.workload.measured_lengths else None,
                "mean_tokens": lengths.tokens.mean,
                "longest_tokens": lengths.tokens.longest,
            },
            "held": self.space.held,
            "left_out": self.space.left_out,
            "candidates": len(self.predictions),
            "predictions": self.estimates[:_LISTED],
            "best": None if best is None else best.prediction.label,
            "base": self.space.base.label(self.plan.batch.accumulation),
            "full": None if self.full is None else self.full.label,
            "loss_change": self.loss_change,
            "overlay": self.overlay,
        }

    def run_json(self, run: Probe) -> dict[str, Any]:
        return {
            **to_json(run),
            "overrides": run.candidate.overrides(),
            "predicted_seconds": run.prediction.seconds,
            "predicted_gib": run.prediction.probe_gib,
            "loss_weighting": compare_loss(run.candidate, self.space.base, self.plan),
        }
