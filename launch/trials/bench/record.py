"""The record of a bench: bench.json, and the sentences of its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.planning.plan import Plan
from launch.trials.bench.settings import PlannedBench
from launch.trials.bench.verdict import (
    CONFIDENCE,
    RATE_PRECISION,
    BenchVerdict,
    count_steps_needed,
    judge_pairs,
    relative_change,
)
from launch.trials.card_rate import CardRate, parse_card_rate
from launch.trials.measurement import (
    Figures,
    Measurement,
    Operations,
    compute_figures,
    count_operations,
    measurement_json,
    median_figure,
    rates_of_steps,
)
from launch.trials.record import State, TrialRecord, TrialRun, combine_states, utc_now
from launch.worker.finding import REFUTED, UNPROVEN

_MEDIANS = (
    "per_second",
    "padded_per_second",
    "step_seconds",
    "padding",
    "mfu_measured",
    "mfu_datasheet",
    "memory_gib",
    "reserved_gib",
    "loss",
    "before",
)


@dataclass
class BenchRun(TrialRun):
    """One run of one setting."""

    repeat: int = field(kw_only=True)
    side: int = field(kw_only=True)  # 0 is A, 1 is B


def plan_runs(planned: PlannedBench) -> list[BenchRun]:
    """The runs in their order."""
    return [
        BenchRun(f"{'AB'[side]}{repeat}", planned.run_plan(side, repeat), repeat=repeat, side=side)
        for repeat, side in planned.turns
    ]


@dataclass
class BenchRecord(TrialRecord):
    """A bench, as far as it has come."""

    planned: PlannedBench
    runs: list[BenchRun]  # in the order in which they run
    rates: tuple[CardRate | None, CardRate | None] = (None, None)  # of A's and B's card and precision
    versions: tuple[Mapping[str, str], Mapping[str, str]] = field(default_factory=lambda: ({}, {}))  # package: version
    message: str | None = None  # why it ended early
    began: str = field(default_factory=utc_now)
    verb = "bench"

    @property
    def folder(self) -> Path:  # type: ignore[override]
        return self.planned.folder

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        return self.planned.sides[0].plan

    @property
    def steps(self) -> int:
        return self.planned.config.steps

    @property
    def state(self) -> State:
        return combine_states(run.state for run in self.runs)

    def figures(self, run: BenchRun) -> Figures | None:
        """The figures of a run; None unless it is done."""
        if run.measured is None or run.state != State.done:
            return None
        return compute_figures(run.measured, run.plan, self.planned.config.warmup, self.rates[run.side])

    def of_side(self, side: int) -> list[Figures]:
        """The figures of each finished run of A (0) or B (1)."""
        return [figures for run in self.runs if run.side == side and (figures := self.figures(run)) is not None]

    def operations(self, side: int) -> Operations:
        """The operations that the utilisation of A (0) or B (1) counts."""
        figures = self.of_side(side)
        return count_operations(self.planned.sides[side].plan, figures[0].tokens if figures else ())

    def not_proven(self, side: int) -> list[str]:
        """The requested settings of A (0) or B (1) that its runs refute or do not prove."""
        items = [item for measured in self._done(side) for item in measured.evidence]
        not_proven = [item for item in items if item.get("verdict") in (REFUTED, UNPROVEN)]
        return list(dict.fromkeys(f"{item.get('what')} is {item.get('verdict')}" for item in not_proven))

    def steps_needed(self, side: int) -> int | None:
        """How many counted steps the rate of A (0) or B (1) needs; None where too few were measured to tell."""
        return count_steps_needed([rates_of_steps(run, self.planned.config.warmup) for run in self._done(side)])

    def _done(self, side: int) -> list[Measurement]:
        done = [run.measured for run in self.runs if run.side == side and run.state == State.done]
        return [measured for measured in done if measured]

    @property
    def pairs(self) -> list[tuple[int, Figures, Figures]]:
        """(repeat, A's, B's) of each repeat whose two runs have finished."""
        finished = {(run.repeat, run.side): figures for run in self.runs if (figures := self.figures(run)) is not None}
        complete = sorted(repeat for repeat, side in finished if side == 0 and (repeat, 1) in finished)
        return [(repeat, finished[repeat, 0], finished[repeat, 1]) for repeat in complete]

    @property
    def verdict(self) -> BenchVerdict | None:
        return judge_pairs(
            [(a, b) for _, a, b in self.pairs], self.planned.config.loss_tolerance, self.planned.same_setting
        )

    @property
    def summary(self) -> list[str]:
        """The verdict so far; without one, why there is none."""
        verdict = self.verdict
        lines = ["no pair of runs is complete"] if verdict is None else [*verdict.sentences]
        counted, warmup = self.steps - self.planned.config.warmup, self.planned.config.warmup
        needed = max((self.steps_needed(side) or 0 for side in (0, 1)), default=0)
        if needed > counted:
            lines.append(f"the steps vary too much for a rate from {counted} of them: set steps={needed + warmup}")
        for index, side in enumerate(self.planned.sides):
            if missing := self.not_proven(index):
                lines.append(f"not every setting of {side.title} is in effect: {', '.join(missing)} (evidence.json)")
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
            timed = self.steps - self.planned.config.warmup
            counted.append(f"a throughput within {RATE_PRECISION:.0%} needs {counts}; {timed} were timed")
        return [*self.rate_lines, *counted, *map(str, self.planned.notes)]

    @property
    def rate_lines(self) -> list[str]:
        return list(dict.fromkeys(str(rate) for rate in self.rates if rate is not None))

    def contents(self) -> dict[str, Any]:
        planned, verdict = self.planned, self.verdict
        return {
            "message": self.message,
            "options": planned.config,
            "identical_settings": planned.same_setting,
            "settings": [self._setting(0), self._setting(1)],
            "differences": [{"what": what, "a": a, "b": b} for what, a, b in planned.differences],
            "runs": [self.run_json(run) for run in self.runs],
            "pairs": [_pair(*pair) for pair in self.pairs],
            "verdict": None if verdict is None else _verdict(verdict),
        }

    def _setting(self, side: int) -> dict[str, Any]:
        planned, rate = self.planned.sides[side], self.rates[side]
        plan, figures = planned.plan, self.of_side(side)
        return {
            "label": planned.title,
            "overrides": list(planned.overrides),
            "trainer": plan.trainer,
            "upstream": plan.upstream.description,
            "identity": plan.identity,
            "versions": dict(self.versions[side]),
            "rate": rate,
            "operations": self.operations(side),
            "not_proven": self.not_proven(side),
            "steps_needed": self.steps_needed(side),
            "median": {name: median_figure(figures, name) for name in _MEDIANS} if figures else None,
        }

    def run_json(self, run: BenchRun) -> dict[str, Any]:
        return {
            **run.as_json(),
            "measured": measurement_json(run.measured, self.planned.config.warmup, self.rates[run.side]),
            "repeat": run.repeat,
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
