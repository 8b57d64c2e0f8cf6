"""The record of a bench: bench.json, rewritten after every change, and the tables beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from launch.planning.plan import Plan
from launch.trials.bench.figures import (
    Figures,
    Operations,
    compute_figures,
    count_operations,
    median_figure,
    rates_of_steps,
)
from launch.trials.bench.settings import PlannedBench
from launch.trials.bench.statistics import CONFIDENCE, count_steps_needed
from launch.trials.bench.verdict import BenchVerdict, judge_pairs, relative_change
from launch.trials.card_rate import CardRate, parse_card_rate
from launch.trials.measurement import Measurement
from launch.trials.record_file import TrialRecord, another_record, changed_versions, read_record, utc_now
from launch.worker.finding import REFUTED, UNPROVEN
from launch.worker.json_codec import to_json

SCHEMA_VERSION = 1
FILE = "bench.json"


class BenchState(StrEnum):
    """The state of one run, and of a bench as a whole."""

    planned = "planned"
    running = "running"
    done = "done"
    failed = "failed"
    not_run = "not_run"  # there was no time left for the run; of a bench: for some of its runs
    interrupted = "interrupted"


@dataclass
class RunRecord:
    """One run of one setting."""

    repeat: int  # from 1
    side: int  # 0 is A, 1 is B
    plan: Plan
    state: BenchState = BenchState.planned
    why: str | None = None  # why it failed, or did not run
    reused: bool = False  # an earlier call measured it
    measured: Measurement | None = None

    @property
    def label(self) -> str:
        return f"{'AB'[self.side]}{self.repeat}"


@dataclass
class BenchRecord(TrialRecord):
    """A bench, as far as it has come."""

    planned: PlannedBench
    runs: list[RunRecord]  # in the order in which they run
    rates: tuple[CardRate | None, CardRate | None] = (None, None)  # of A's and B's card and precision
    versions: tuple[Mapping[str, str], Mapping[str, str]] = field(default_factory=lambda: ({}, {}))  # package: version
    why: str | None = None  # why it ended early
    began: str = field(default_factory=utc_now)

    @property
    def steps(self) -> int:
        return self.planned.config.steps

    @property
    def state(self) -> BenchState:
        states = [run.state for run in self.runs]
        order = (BenchState.interrupted, BenchState.failed, BenchState.running, BenchState.not_run, BenchState.planned)
        return next((state for state in order if state in states), BenchState.done)

    def figures(self, run: RunRecord) -> Figures | None:
        """The figures of a run; None unless it is done."""
        if run.measured is None or run.state != BenchState.done:
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
        done = [run.measured for run in self.runs if run.side == side and run.state == BenchState.done]
        return [measured for measured in done if measured]

    @property
    def pairs(self) -> list[tuple[int, Figures, Figures]]:
        """(repeat, A's, B's) of each repeat whose two runs have finished."""
        finished = {(run.repeat, run.side): figures for run in self.runs if (figures := self.figures(run)) is not None}
        complete = sorted(repeat for repeat, side in finished if side == 0 and (repeat, 1) in finished)
        return [(repeat, finished[repeat, 0], finished[repeat, 1]) for repeat in complete]

    @property
    def path(self) -> Path:
        return self.planned.folder / FILE

    @property
    def verdict(self) -> BenchVerdict | None:
        return judge_pairs(
            [(a, b) for _, a, b in self.pairs], self.planned.config.loss_tolerance, self.planned.same_setting
        )

    def as_json(self) -> dict[str, Any]:
        planned, plan = self.planned, self.planned.sides[0].plan
        verdict = self.verdict
        return {
            "schema_version": SCHEMA_VERSION,
            "id": planned.id,
            "stage": plan.stage,
            "kind": plan.config.stage.kind.value,
            "state": self.state.value,
            "why": self.why,
            **asdict(planned.config),
            "global_batch": plan.batch.global_,
            "alike": planned.same_setting,
            "began": self.began,
            "updated": utc_now(),
            "a": self._side(0),
            "b": self._side(1),
            "differs": [
                {"schema_version": SCHEMA_VERSION, "what": what, "a": a, "b": b} for what, a, b in planned.differences
            ],
            "notes": [_versioned(to_json(note)) for note in planned.notes],
            "runs": [self._run(run) for run in self.runs],
            "pairs": [_pair(*pair) for pair in self.pairs],
            "verdict": None if verdict is None else _verdict(verdict),
        }

    def _side(self, side: int) -> dict[str, Any]:
        planned, rate = self.planned.sides[side], self.rates[side]
        plan, figures = planned.plan, self.of_side(side)
        return {
            "schema_version": SCHEMA_VERSION,
            "words": list(planned.overrides),
            "trainer": plan.trainer,
            "upstream": plan.upstream.description,
            "identity": plan.identity,
            "width": str(plan.parallel.width),
            "ranks": plan.batch.width,
            "parallel": plan.parallel.mode.value,
            "precision": plan.parallel.precision.value,
            "batch": to_json(plan.batch),
            "versions": dict(self.versions[side]),
            "rate": None if rate is None else rate.as_json(),
            "operations": _versioned(self.operations(side).as_json()),
            "not_proven": self.not_proven(side),
            "steps_needed": self.steps_needed(side),
            "median": _rounded({name: median_figure(figures, name) for name in _MEDIANS}) if figures else None,
        }

    def _run(self, run: RunRecord) -> dict[str, Any]:
        figures, measured = self.figures(run), run.measured
        return {
            "schema_version": SCHEMA_VERSION,
            "run": run.label,
            "repeat": run.repeat,
            "side": "ab"[run.side],
            "state": run.state.value,
            "why": run.why,
            "reused": run.reused,
            "folder": str(run.plan.folder),
            "seconds": None if measured is None else round(measured.outcome.seconds, 3),
            "figures": None if figures is None else _rounded(asdict(figures)),
        }


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


def _pair(repeat: int, a: Figures, b: Figures) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "repeat": repeat,
        "speed_ratio": b.per_second / a.per_second if a.unit == b.unit else None,
        "step_ratio": b.step_seconds / a.step_seconds,
        "loss_apart": relative_change(a.loss, b.loss),
        "memory_ratio": b.memory_gib / a.memory_gib if a.memory_gib and b.memory_gib else None,
    }


def _verdict(verdict: BenchVerdict) -> dict[str, Any]:
    fields = asdict(verdict)
    ratio, sentences = fields.pop("ratio"), fields.pop("sentences")
    return {
        "schema_version": SCHEMA_VERSION,
        **fields,
        "said": sentences,
        "speed_ratio": _versioned({**ratio, "confidence": CONFIDENCE}),
    }


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}
    return _versioned(rounded)


def _versioned(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, **values}


@dataclass(frozen=True)
class EarlierBench:
    """What an earlier call of the same bench recorded."""

    rates: tuple[CardRate, ...] = ()
    versions: tuple[Mapping[str, str], ...] = ()  # of the packages of A's and B's interpreter

    def version_changes(self, versions: Sequence[Mapping[str, str]]) -> str | None:
        """The packages that have changed since, as "torch was 2.11.0, is 2.13.0"; None when none has."""
        pairs = zip(self.versions, versions, strict=False)
        changes = [change for before, after in pairs for change in changed_versions(before, after)]
        return ", ".join(dict.fromkeys(changes)) or None


def read_earlier(planned: PlannedBench) -> EarlierBench:
    """Read what an earlier call recorded; empty when there was none.

    Raises UserError: other_bench, when the folder holds a bench of another stage or an unreadable one.
    """

    def parse(record: Mapping[str, Any]) -> tuple[str, EarlierBench]:
        rates = tuple(parse_card_rate(record[side]["rate"]) for side in ("a", "b") if record[side]["rate"])
        return str(record["stage"]), EarlierBench(rates, tuple(dict(record[side]["versions"]) for side in ("a", "b")))

    earlier = read_record(planned.folder / FILE, parse, "other_bench")
    if earlier is None:
        return EarlierBench()
    stage = planned.sides[0].plan.stage
    if earlier[0] != stage:
        raise another_record("other_bench", f"{planned.folder} is a bench of {earlier[0]}, not of {stage}")
    return earlier[1]
