"""The record of a bench: bench.json, and the sentences of its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.config.trials import BenchConfig, Order
from launch.planning.plan import Plan
from launch.trials.bench.verdict import (
    RATE_PRECISION,
    BenchVerdict,
    count_steps_needed,
    judge_pairs,
    relative_change,
)
from launch.trials.card_rate import CardRate
from launch.trials.measurement import Figures, Operations, count_operations, median, step_rates
from launch.trials.record import State, TrialRecord, TrialRun
from launch.trials.view import COMPARED
from launch.worker.finding import REFUTED, UNPROVEN, Finding

Pair = tuple[int, Figures, Figures]  # repeat, A's, B's


@dataclass(frozen=True)
class SettingDifference:
    """A difference between the two plans."""

    what: str
    a: str
    b: str


@dataclass
class BenchSide:
    """One of the two settings, and what its runs measured."""

    label: str  # A or B
    overrides: tuple[str, ...]  # of this setting alone
    plan: Plan
    rate: CardRate | None = None  # of its card and precision
    runs: list[BenchRun] = field(default_factory=list, repr=False)

    @property
    def done(self) -> list[BenchRun]:
        return [run for run in self.runs if run.state == State.done]

    @property
    def figures(self) -> list[Figures]:
        """The figures of each finished run."""
        return [run.figures for run in self.done if run.figures]

    @property
    def operations(self) -> Operations:
        """The operations that the utilisation counts."""
        return count_operations(self.plan, self.figures[0].tokens if self.figures else ())

    @property
    def not_proven(self) -> list[str]:
        """The requested settings that the runs refute or do not prove."""
        items = [item for run in self.done if run.measured for item in run.measured.evidence]
        not_proven = (item for item in items if item.get("verdict") in (REFUTED, UNPROVEN))
        return list(
            dict.fromkeys(f"{item.get('what')} is {item['verdict']}" for item in not_proven)
        )

    @property
    def steps_needed(self) -> int | None:
        """How many counted steps the rate needs; None where too few were measured to tell."""
        warmup = self.plan.config.bench.warmup
        return count_steps_needed(
            [step_rates(run.measured, warmup)[1] for run in self.done if run.measured]
        )

    def as_json(self) -> dict[str, Any]:
        figures = self.figures
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
            "median": {name: median(getattr(run, name) for run in figures) for name in COMPARED}
            if figures
            else None,
        }


@dataclass
class BenchRun(TrialRun):
    """One run of one setting."""

    repeat: int = field(kw_only=True)
    side: BenchSide = field(kw_only=True)

    def as_json(self) -> dict[str, Any]:
        return {**super().as_json(), "repeat": self.repeat}


@dataclass
class BenchRecord(TrialRecord[BenchRun]):
    """A bench, as far as it has come."""

    sides: tuple[BenchSide, BenchSide]
    differences: Sequence[SettingDifference]
    planning_notes: Sequence[Finding] = ()
    message: str | None = None  # why it ended early
    verb = "bench"
    started = True  # what rates the cards has just been on them

    def __post_init__(self) -> None:
        for repeat in range(1, self.config.repeats + 1):
            turns = -1 if self.config.order == Order.abba and repeat % 2 == 0 else 1
            for side in self.sides[::turns]:
                name = (
                    f"{repeat}{side.label.lower()}-{side.plan.parallel.width}-{side.plan.identity}"
                )
                plan = side.plan.renamed(f"{self.folder.name}/{name}")
                side.runs.append(BenchRun(f"{side.label}{repeat}", plan, repeat=repeat, side=side))
                self.runs.append(side.runs[-1])

    @property
    def config(self) -> BenchConfig:
        return self.plan.config.bench

    def is_inspected(self, run: BenchRun) -> bool:
        return any(other.measured and not other.reused for other in run.side.runs)

    def update(self, run: BenchRun) -> list[str]:
        completes_pair = any(repeat == run.repeat for repeat, _, _ in self.pairs)
        return (
            [f"  so far: {self.summary[0]}"] if completes_pair and run is not self.runs[-1] else []
        )

    @property
    def same_setting(self) -> bool:
        """Whether A and B are the same, so that their difference is noise."""
        return self.sides[0].plan.identity == self.sides[1].plan.identity

    def rate(self, run: BenchRun) -> CardRate | None:
        return run.side.rate

    @property
    def pairs(self) -> list[Pair]:
        """Each repeat whose two runs have finished."""
        a, b = (
            {run.repeat: run.figures for run in side.done if run.figures} for side in self.sides
        )
        return [(repeat, a[repeat], b[repeat]) for repeat in sorted(a.keys() & b.keys())]

    @property
    def verdict(self) -> BenchVerdict | None:
        pairs = [(a, b) for _, a, b in self.pairs]
        return judge_pairs(pairs, self.config.loss_tolerance, self.same_setting)

    @property
    def summary(self) -> list[str]:
        """The verdict so far; without one, why there is none."""
        verdict = self.verdict
        lines = ["no pair of runs is complete"] if verdict is None else [*verdict.summary]
        counted = self.steps - self.warmup
        needed = max(side.steps_needed or 0 for side in self.sides)
        if needed > counted:
            lines.append(
                f"the steps vary too much for a rate from {counted} of them: set "
                f"steps={needed + self.warmup}"
            )
        lines += [
            f"not every setting of {side.label} is in effect: {', '.join(side.not_proven)} "
            "(evidence.json)"
            for side in self.sides
            if side.not_proven
        ]
        ended_early = [run for run in self.runs if run.state in (State.failed, State.interrupted)]
        lines += [
            f"{run.label} {run.state.value}" + (f": {run.message}" if run.message else "")
            for run in ended_early
        ]
        if self.message:
            not_run = sum(run.state == State.not_run for run in self.runs)
            lines.append(f"{self.message}: {not_run} of {len(self.runs)} runs are missing")
        return lines

    @property
    def notes(self) -> list[str]:
        """The cards' rates, the operations that the utilisation counts, and how many steps a rate
        needs.
        """
        operations = {side.label: str(side.operations) for side in self.sides if side.figures}
        shared = set(operations.values()) if len(operations) > 1 else ()
        counted = (
            [f"{label}: {text}" for label, text in operations.items()]
            if len(shared) != 1
            else [*shared]
        )
        needed = {
            side.label: count for side in self.sides if (count := side.steps_needed) is not None
        }
        if needed:
            counts = " and ".join(
                f"{count} timed steps in {title}" for title, count in needed.items()
            )
            timed = self.steps - self.warmup
            counted.append(
                f"a throughput within {RATE_PRECISION:.0%} needs {counts}; {timed} were timed"
            )
        return [*self.rate_lines, *counted, *map(str, self.planning_notes)]

    @property
    def rate_lines(self) -> list[str]:
        return list(dict.fromkeys(str(rate) for side in self.sides if (rate := side.rate)))

    def contents(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "options": self.config,
            "identical_settings": self.same_setting,
            "settings": self.sides,
            "differences": self.differences,
            "pairs": [_pair(*pair) for pair in self.pairs],
            "verdict": self.verdict,
        }


def _pair(repeat: int, a: Figures, b: Figures) -> dict[str, Any]:
    return {
        "repeat": repeat,
        "speed_ratio": b.per_second / a.per_second if a.unit == b.unit else None,
        "step_ratio": b.step_seconds / a.step_seconds,
        "loss_difference": relative_change(a.loss, b.loss),
        "memory_ratio": b.memory_gib / a.memory_gib if a.memory_gib and b.memory_gib else None,
    }
