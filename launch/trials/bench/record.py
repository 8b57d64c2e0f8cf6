"""The record of a bench: bench.json, and the sentences of its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.config.trials import BenchConfig, Order
from launch.execution.setting_differences import SettingDifference
from launch.planning.plan import Plan
from launch.trials.bench.verdict import (
    RATE_PRECISION,
    BenchVerdict,
    count_steps_needed,
    judge_pairs,
    relative_change,
)
from launch.trials.card_rate import CardRate
from launch.trials.measurement import Figures, median, step_rates
from launch.trials.operations import Operations, count_operations
from launch.trials.record import State, TrialRecord, TrialRun
from launch.trials.view import COMPARED
from launch.worker.evidence import REFUTED, UNPROVEN
from launch.worker.finding import Finding

RepeatPair = tuple[int, Figures, Figures]  # number of the repeat, A's figures, B's figures


@dataclass
class BenchSide:
    """One of the two settings, and what its runs measured."""

    label: str  # A or B
    overrides: tuple[str, ...]  # those of this setting alone
    plan: Plan
    rate: CardRate | None = None  # peak rate of its GPU in its precision
    runs: list[BenchRun] = field(default_factory=list, repr=False)

    @property
    def done(self) -> list[BenchRun]:
        return [run for run in self.runs if run.state == State.done]

    @property
    def figures(self) -> list[Figures]:
        """The figures of each finished run."""
        return [run.figures for run in self.done if run.figures]

    @property
    def figures_by_repeat(self) -> dict[int, Figures]:
        """The figures of each finished run, by the number of its repeat."""
        return {run.repeat: run.figures for run in self.done if run.figures}

    @property
    def operations(self) -> Operations:
        """The operations that the utilisation counts."""
        figures = self.figures
        tokens = figures[0].tokens if figures else ()
        return count_operations(self.plan, tokens)

    @property
    def not_proven(self) -> list[str]:
        """The requested settings that the runs refute or do not prove."""
        sentences = []
        for run in self.done:
            evidence = run.measured.evidence if run.measured else ()
            sentences += [
                f"{item.what} is {item.verdict}"
                for item in evidence
                if item.verdict in (REFUTED, UNPROVEN)
            ]
        return list(dict.fromkeys(sentences))

    @property
    def steps_needed(self) -> int | None:
        """How many timed steps the rate needs; None if too few were measured to estimate this."""
        warmup = self.plan.config.bench.warmup
        rates_of_runs = []
        for run in self.done:
            if run.measured:
                _, rates = step_rates(run.measured, warmup)
                rates_of_runs.append(rates)
        return count_steps_needed(rates_of_runs)

    def _medians(self) -> dict[str, float | None] | None:
        """Return the medians of the compared figures over the finished runs; None before any."""
        figures = self.figures
        if not figures:
            return None
        medians = {}
        for name in COMPARED:
            values = [getattr(run_figures, name) for run_figures in figures]
            medians[name] = median(values)
        return medians

    def json_fields(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "overrides": self.overrides,
            "trainer": self.plan.trainer,
            "upstream": self.plan.upstream.description,
            "identity": self.plan.identity,
            "versions": self.plan.machine.versions,
            "rate": self.rate,
            "operations": self.operations,
            "not_proven": self.not_proven,
            "steps_needed": self.steps_needed,
            "median": self._medians(),
        }


@dataclass
class BenchRun(TrialRun):
    """One run of one setting."""

    repeat: int = field(kw_only=True)  # 1 and more
    side: BenchSide = field(kw_only=True)

    def json_fields(self) -> dict[str, Any]:
        return {**super().json_fields(), "repeat": self.repeat}


@dataclass
class BenchRecord(TrialRecord[BenchRun]):
    """A bench and its runs so far."""

    sides: tuple[BenchSide, BenchSide]
    differences: Sequence[SettingDifference]
    planning_notes: Sequence[Finding] = ()
    message: str | None = None  # why it ended early
    verb = "bench"
    started = True  # the measurement of the peak rates has just used the GPUs

    def __post_init__(self) -> None:
        for repeat in range(1, self.config.repeats + 1):
            b_is_first = self.config.order == Order.abba and repeat % 2 == 0
            sides = reversed(self.sides) if b_is_first else self.sides
            for side in sides:
                label = f"{side.label}{repeat}"
                prefix = f"{repeat}{side.label.lower()}"
                name = f"{prefix}-{side.plan.parallel.width}-{side.plan.identity}"
                plan = side.plan.renamed(f"{self.folder.name}/{name}")
                run = BenchRun(label, plan, repeat=repeat, side=side)
                side.runs.append(run)
                self.runs.append(run)

    @property
    def config(self) -> BenchConfig:
        return self.plan.config.bench

    def is_inspected(self, run: BenchRun) -> bool:
        return any(other.measured and not other.reused for other in run.side.runs)

    def update(self, run: BenchRun) -> list[str]:
        completes_pair = any(repeat == run.repeat for repeat, _, _ in self.pairs)
        is_last = run is self.runs[-1]
        if is_last or not completes_pair:
            return []
        return [f"  so far: {self.summary[0]}"]

    @property
    def same_setting(self) -> bool:
        """Whether A and B are the same, so that their difference is noise."""
        return self.sides[0].plan.identity == self.sides[1].plan.identity

    def rate(self, run: BenchRun) -> CardRate | None:
        return run.side.rate

    @property
    def pairs(self) -> list[RepeatPair]:
        """Each repeat whose two runs have finished."""
        side_a, side_b = self.sides
        figures_of_a = side_a.figures_by_repeat
        figures_of_b = side_b.figures_by_repeat
        repeats = sorted(figures_of_a.keys() & figures_of_b.keys())
        return [(repeat, figures_of_a[repeat], figures_of_b[repeat]) for repeat in repeats]

    @property
    def verdict(self) -> BenchVerdict | None:
        pairs = [(a, b) for _, a, b in self.pairs]
        return judge_pairs(pairs, self.config.loss_tolerance, self.same_setting)

    @property
    def summary(self) -> list[str]:
        """The verdict so far; without one, why there is none."""
        verdict = self.verdict
        lines = ["no pair of runs is complete"] if verdict is None else list(verdict.summary)
        counted = self.steps - self.warmup
        needed = max(side.steps_needed or 0 for side in self.sides)
        if needed > counted:
            lines.append(
                f"the steps vary too much for a rate from {counted} of them: set "
                f"steps={needed + self.warmup}"
            )
        for side in self.sides:
            if side.not_proven:
                settings = ", ".join(side.not_proven)
                lines.append(
                    f"not every setting of {side.label} is in effect: {settings} (evidence.json)"
                )
        for run in self.runs:
            if run.state in (State.failed, State.interrupted):
                reason = f": {run.message}" if run.message else ""
                lines.append(f"{run.label} {run.state.value}{reason}")
        if self.message:
            not_run = sum(run.state == State.not_run for run in self.runs)
            lines.append(f"{self.message}: {not_run} of {len(self.runs)} runs are missing")
        return lines

    @property
    def notes(self) -> list[str]:
        """Sentences about the peak rates of the GPUs, the operations that the utilisation counts,
        and the number of steps that a rate needs.
        """
        lines = [*self.rate_lines, *self._operations_lines()]
        needed = [
            f"{side.steps_needed} timed steps in {side.label}"
            for side in self.sides
            if side.steps_needed is not None
        ]
        if needed:
            counts = " and ".join(needed)
            timed = self.steps - self.warmup
            lines.append(
                f"a throughput within {RATE_PRECISION:.0%} needs {counts}; {timed} were timed"
            )
        return lines + [str(note) for note in self.planning_notes]

    def _operations_lines(self) -> list[str]:
        """Describe what the utilisation counts, in one line if both settings have the same."""
        operations = {side.label: str(side.operations) for side in self.sides if side.figures}
        texts = list(operations.values())
        if len(texts) == 2 and texts[0] == texts[1]:
            return texts[:1]
        return [f"{label}: {text}" for label, text in operations.items()]

    @property
    def rate_lines(self) -> list[str]:
        """The peak rates of the GPUs, each once."""
        lines = [str(side.rate) for side in self.sides if side.rate]
        return list(dict.fromkeys(lines))

    def json_fields(self) -> dict[str, Any]:
        return {
            **super().json_fields(),
            "message": self.message,
            "options": self.config,
            "identical_settings": self.same_setting,
            "settings": self.sides,
            "differences": [_difference_json(difference) for difference in self.differences],
            "pairs": [_pair_json(*pair) for pair in self.pairs],
            "verdict": self.verdict,
        }


def _difference_json(difference: SettingDifference) -> dict[str, str]:
    in_a, in_b = difference.values
    return {"what": difference.name, "a": in_a or "-", "b": in_b or "-"}


def _pair_json(repeat: int, a: Figures, b: Figures) -> dict[str, Any]:
    """Return a pair of runs for the record, as ratios of B over A."""
    speed_ratio = b.per_second / a.per_second if a.unit == b.unit else None
    memory_ratio = b.memory_gib / a.memory_gib if a.memory_gib and b.memory_gib else None
    return {
        "repeat": repeat,
        "speed_ratio": speed_ratio,
        "step_ratio": b.step_seconds / a.step_seconds,
        "loss_difference": relative_change(a.loss, b.loss),
        "memory_ratio": memory_ratio,
    }
