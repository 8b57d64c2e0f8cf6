"""The record of a bench: bench.json, and the sentences of its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from launch.config.trials import BenchConfig, Order
from launch.errors import Problem
from launch.planning.plan import Plan
from launch.trials.bench.verdict import (
    CONFIDENCE,
    RATE_PRECISION,
    BenchVerdict,
    count_steps_needed,
    judge_pairs,
    relative_change,
)
from launch.trials.card_rate import CardRate, parse_card_rate
from launch.trials.measurement import Figures, Operations, count_operations, median, step_rates
from launch.trials.record import State, TrialRecord, TrialRun
from launch.trials.view import COMPARED
from launch.worker.finding import REFUTED, UNPROVEN

Pair = tuple[int, Figures, Figures]  # repeat, A's, B's


@dataclass(frozen=True)
class Side:
    """One of the two settings."""

    label: str  # A or B
    overrides: tuple[str, ...]  # of this setting alone
    plan: Plan


@dataclass
class BenchRun(TrialRun):
    """One run of one setting."""

    repeat: int = field(kw_only=True)
    side: int = field(kw_only=True)  # 0 is A, 1 is B

    def as_json(self) -> dict[str, Any]:
        return {**super().as_json(), "repeat": self.repeat}


@dataclass
class BenchRecord(TrialRecord[BenchRun]):
    """A bench, as far as it has come."""

    sides: tuple[Side, Side]
    differences: tuple[tuple[str, str, str], ...]  # between the two plans: (what, A's, B's)
    planning_notes: tuple[Problem, ...] = ()
    rates: tuple[CardRate | None, CardRate | None] = (None, None)  # of A's and B's card and precision
    versions: tuple[Mapping[str, str], Mapping[str, str]] = field(default_factory=lambda: ({}, {}))  # package: version
    message: str | None = None  # why it ended early
    verb = "bench"
    started = True  # what rates the cards has just been on them

    def __post_init__(self) -> None:
        for repeat in range(1, self.config.repeats + 1):
            sides = (1, 0) if self.config.order == Order.abba and repeat % 2 == 0 else (0, 1)
            self.runs += [self._plan_run(repeat, side) for side in sides]

    def _plan_run(self, repeat: int, side: int) -> BenchRun:
        label, plan = self.sides[side].label, self.sides[side].plan
        name = f"{repeat}{label.lower()}-{plan.parallel.width}-{plan.identity}"
        return BenchRun(f"{label}{repeat}", plan.renamed(f"{self.folder.name}/{name}"), repeat=repeat, side=side)

    @property
    def config(self) -> BenchConfig:
        return self.plan.config.bench

    def is_inspected(self, run: BenchRun) -> bool:
        return any(other.measured and not other.reused for other in self.runs if other.side == run.side)

    def update(self, run: BenchRun) -> list[str]:
        pair_is_complete = any(repeat == run.repeat for repeat, _, _ in self.pairs)
        shows = run.state == State.done and run is not self.runs[-1] and pair_is_complete
        return [f"  so far: {self.summary[0]}"] if shows else []

    @property
    def same_setting(self) -> bool:
        """Whether A and B are the same, so that their difference is noise."""
        return self.sides[0].plan.identity == self.sides[1].plan.identity

    def rate(self, run: BenchRun) -> CardRate | None:
        return self.rates[run.side]

    def of_side(self, side: int) -> list[Figures]:
        """The figures of each finished run of A (0) or B (1)."""
        return [run.figures for run in self._done(side) if run.figures]

    def operations(self, side: int) -> Operations:
        """The operations that the utilisation of A (0) or B (1) counts."""
        figures = self.of_side(side)
        return count_operations(self.sides[side].plan, figures[0].tokens if figures else ())

    def not_proven(self, side: int) -> list[str]:
        """The requested settings of A (0) or B (1) that its runs refute or do not prove."""
        items = [item for run in self._done(side) if run.measured for item in run.measured.evidence]
        not_proven = [item for item in items if item.get("verdict") in (REFUTED, UNPROVEN)]
        return list(dict.fromkeys(f"{item.get('what')} is {item.get('verdict')}" for item in not_proven))

    def steps_needed(self, side: int) -> int | None:
        """How many counted steps the rate of A (0) or B (1) needs; None where too few were measured to tell."""
        done = [run.measured for run in self._done(side) if run.measured]
        return count_steps_needed([step_rates(measured, self.warmup)[1] for measured in done])

    def _done(self, side: int) -> list[BenchRun]:
        return [run for run in self.runs if run.side == side and run.state == State.done]

    @property
    def pairs(self) -> list[Pair]:
        """Each repeat whose two runs have finished."""
        a, b = ({run.repeat: run.figures for run in self._done(side) if run.figures} for side in (0, 1))
        return [(repeat, a[repeat], b[repeat]) for repeat in sorted(a.keys() & b.keys())]

    @property
    def verdict(self) -> BenchVerdict | None:
        pairs = [(a, b) for _, a, b in self.pairs]
        return judge_pairs(pairs, self.config.loss_tolerance, self.same_setting)

    @property
    def summary(self) -> list[str]:
        """The verdict so far; without one, why there is none."""
        verdict = self.verdict
        lines = ["no pair of runs is complete"] if verdict is None else [*verdict.sentences]
        counted = self.steps - self.warmup
        needed = max((self.steps_needed(side) or 0 for side in (0, 1)), default=0)
        if needed > counted:
            lines.append(f"the steps vary too much for a rate from {counted} of them: set steps={needed + self.warmup}")
        for index, side in enumerate(self.sides):
            if missing := self.not_proven(index):
                lines.append(f"not every setting of {side.label} is in effect: {', '.join(missing)} (evidence.json)")
        ended_early = [run for run in self.runs if run.state in (State.failed, State.interrupted)]
        lines += [f"{run.label} {run.state.value}" + (f": {run.message}" if run.message else "") for run in ended_early]
        if self.message:
            not_run = sum(run.state == State.not_run for run in self.runs)
            lines.append(f"{self.message}: {not_run} of {len(self.runs)} runs are missing")
        return lines

    @property
    def notes(self) -> list[str]:
        """The cards' rates, the operations that the utilisation counts, and how many steps a rate needs."""
        sides = [side for side in (0, 1) if self.of_side(side)]
        operations = {"AB"[side]: str(self.operations(side)) for side in sides}
        if len(operations) == 2 and len(set(operations.values())) == 1:
            counted = [operations["A"]]
        else:
            counted = [f"{title}: {text}" for title, text in operations.items()]
        needed = {"AB"[side]: count for side in (0, 1) if (count := self.steps_needed(side)) is not None}
        if needed:
            counts = " and ".join(f"{count} timed steps in {title}" for title, count in needed.items())
            timed = self.steps - self.warmup
            counted.append(f"a throughput within {RATE_PRECISION:.0%} needs {counts}; {timed} were timed")
        return [*self.rate_lines, *counted, *map(str, self.planning_notes)]

    @property
    def rate_lines(self) -> list[str]:
        return list(dict.fromkeys(str(rate) for rate in self.rates if rate is not None))

    def contents(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "message": self.message,
            "options": self.config,
            "identical_settings": self.same_setting,
            "settings": [self._setting(0), self._setting(1)],
            "differences": [{"what": what, "a": a, "b": b} for what, a, b in self.differences],
            "pairs": [_pair(*pair) for pair in self.pairs],
            "verdict": None if verdict is None else _verdict(verdict),
        }

    def _setting(self, index: int) -> dict[str, Any]:
        side, rate, figures = self.sides[index], self.rates[index], self.of_side(index)
        return {
            "label": side.label,
            "overrides": list(side.overrides),
            "trainer": side.plan.trainer,
            "upstream": side.plan.upstream.description,
            "identity": side.plan.identity,
            "versions": dict(self.versions[index]),
            "rate": rate,
            "operations": self.operations(index),
            "not_proven": self.not_proven(index),
            "steps_needed": self.steps_needed(index),
            "median": {name: median(getattr(run, name) for run in figures) for name in COMPARED} if figures else None,
        }


def _pair(repeat: int, a: Figures, b: Figures) -> dict[str, Any]:
    return {
        "repeat": repeat,
        "speed_ratio": b.per_second / a.per_second if a.unit == b.unit else None,
        "step_ratio": b.step_seconds / a.step_seconds,
        "loss_difference": relative_change(a.loss, b.loss),
        "memory_ratio": b.memory_gib / a.memory_gib if a.memory_gib and b.memory_gib else None,
    }


def _verdict(verdict: BenchVerdict) -> dict[str, Any]:
    fields = asdict(verdict)
    ratio, sentences = fields.pop("ratio"), fields.pop("sentences")
    return {**fields, "summary": sentences, "speed_ratio": {**ratio, "confidence": CONFIDENCE}}


def parse_rates(earlier: Mapping[str, Any] | None) -> list[CardRate]:
    """The cards' rates in an earlier record. Raises KeyError, TypeError or ValueError for anything else."""
    settings = earlier.get("settings", ()) if earlier else ()
    return [parse_card_rate(setting["rate"]) for setting in settings if setting.get("rate")]
