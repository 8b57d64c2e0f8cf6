"""Compares runs: their settings, losses at equal tokens, speed and memory; and as a table."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.evaluation.compared_run import Compared, ComparedBase, compared_run
from launch.execution.record.format import format_problem
from launch.execution.record.progress import Progress
from launch.execution.run_facts import SPEED, RunFact, facts_in
from launch.execution.setting_differences import SettingDifference, find_setting_differences
from launch.files import load_json
from launch.table import Table, format_number
from launch.trials.measurement import relative_difference

SECTIONS = ("settings", "data", "versions", "patches")
_POINTS = (0.25, 0.5, 0.75, 1.0)  # shares of the training that all runs have in common
_WIDTH = 40  # characters of a value in the table
_WINDOW = 0.05  # share of that training over which the losses are averaged at each point


@dataclass(frozen=True)
class LossPoint:
    """The losses of all runs after the same training."""

    at: float  # number of tokens, or of optimizer steps
    losses: tuple[float | None, ...]


@dataclass(frozen=True)
class Noise:
    """The largest relative differences between repeats of a setting, in the benches of a stage."""

    loss: float | None = None
    speed: float | None = None
    repeats: int = 0


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side; the others are compared with the first."""

    runs: tuple[Compared, ...]
    differences: Mapping[str, Sequence[SettingDifference]]  # by section
    unit: str  # unit of the points: tokens or steps
    points: tuple[LossPoint, ...]  # empty if the losses cannot be compared
    why_no_losses: str | None
    noise: Noise

    def loss_verdict(self, index: int) -> str:
        """`lower` or `higher` than the first run's loss, `same` within the noise, or `unknown`."""
        if not self.points:
            return "unknown"
        losses = self.points[-1].losses
        return _judge(losses[0], losses[index], self.noise.loss, ("lower", "higher"))

    def speed_verdict(self, index: int) -> str:
        """`slower` or `faster` than the first run, `same` within the noise, or `unknown`."""
        speeds = [run.progress.speed for run in self.runs]
        return _judge(speeds[0], speeds[index], self.noise.speed, ("slower", "faster"))

    def json_fields(self) -> dict[str, Any]:
        losses = {"unit": self.unit, "why_not": self.why_no_losses, "points": self.points}
        differs: list[dict[str, Any]] = []
        for section, differences in self.differences.items():
            differs += [
                {"section": section, "key": item.name, "values": item.values}
                for item in differences
            ]
        return {
            "runs": [self._run_fields(index) for index in range(len(self.runs))],
            "differs": differs,
            "losses": losses,
            "noise": self.noise,
        }

    def _run_fields(self, index: int) -> dict[str, Any]:
        run = self.runs[index]
        return {
            "run": run.name,
            "folder": str(run.folder),
            "state": run.state,
            "kind": run.kind,
            "steps": run.progress.last_step,
            "tokens": run.progress.tokens,
            "speed": run.progress.speed,
            "speed_unit": run.progress.speed_unit,
            "memory_gib": run.progress.memory_gib,
            "evaluation": dict(run.scores),
            "loss_verdict": None if index == 0 else self.loss_verdict(index),
            "speed_verdict": None if index == 0 else self.speed_verdict(index),
        }


def compare_runs(runs: Sequence[Compared], noise: Noise) -> Comparison:
    """Compare the runs with the first of them."""
    progress = [run.progress for run in runs]
    unit = "tokens" if all(run.tokens for run in progress) else "steps"
    why = _why_not_comparable(runs)
    points = () if why else _points_of_equal_progress(progress, unit)
    differences = {section: _find_differences(runs, section) for section in SECTIONS}
    return Comparison(tuple(runs), differences, unit, points, why, noise)


def read_noise(runs: Path, stages: Sequence[str]) -> Noise:
    """Return how much repeats of a setting differ, from each bench.json of the stages in `runs`."""
    losses: list[float] = []
    speeds: list[float] = []
    repeats = 0
    for stage in dict.fromkeys(stages):
        for path in sorted((runs / stage).glob("*/bench.json")):
            for measurements in _read_repeats(path):
                if len(measurements) > 1:
                    repeats += len(measurements)
                losses += _differences([figures.get("loss") for figures in measurements])
                speeds += _differences([figures.get("per_second") for figures in measurements])
    return Noise(max(losses, default=None), max(speeds, default=None), repeats)


def _find_differences(runs: Sequence[Compared], section: str) -> list[SettingDifference]:
    """Return what differs in a section, by name; a base model is not compared."""
    sides = [None if run.is_base else getattr(run, section) for run in runs]
    differences = find_setting_differences(sides)
    return sorted(differences, key=lambda difference: difference.name)


def _why_not_comparable(runs: Sequence[Compared]) -> str | None:
    """Return why the losses of the runs cannot be compared, None if they can."""
    for run in runs:
        if run.is_base:
            return f"{run.name} is a model without the record of a run"
    kinds = {run.kind for run in runs}
    if len(kinds) > 1:
        names = " and ".join(sorted(str(kind) for kind in kinds))
        return f"the losses of {names} are different quantities"
    for run in runs:
        if not run.progress.losses:
            return f"{run.name} has logged no loss"
    return None


def _points_of_equal_progress(progress: Sequence[Progress], unit: str) -> tuple[LossPoint, ...]:
    """Return the losses at parts of the training that all runs have in common."""
    in_tokens = unit == "tokens"
    common = min((run.tokens or 0.0) if in_tokens else float(run.last_step) for run in progress)
    window = _WINDOW * common
    points = []
    for share in _POINTS:
        amount = share * common
        losses = []
        for run in progress:
            axis = run.at_tokens if in_tokens else run.at_steps
            losses.append(_mean_loss(axis, run.losses, amount, window))
        points.append(LossPoint(amount, tuple(losses)))
    return tuple(points)


def _mean_loss(
    axis: Sequence[float], losses: Sequence[float], amount: float, window: float
) -> float | None:
    """Return the mean loss of the steps within `window` of `amount`, else that of the nearest step.

    None is returned if a loss is not finite.
    """
    total = 0.0
    count = 0
    nearest = losses[0]
    nearest_distance = math.inf
    for at, loss in zip(axis, losses, strict=True):
        distance = abs(at - amount)
        if distance <= window:
            total += loss
            count += 1
        elif distance < nearest_distance:
            nearest = loss
            nearest_distance = distance
    mean = total / count if count else nearest
    return mean if math.isfinite(mean) else None


def _judge(
    first: float | None, other: float | None, noise: float | None, names: tuple[str, str]
) -> str:
    """Compare a number with the first run's; `names` are the verdicts for less and for more."""
    if first is None or other is None or noise is None:
        return "unknown"
    if relative_difference(first, other) <= noise:
        return "same"
    return names[0] if other < first else names[1]


def _read_repeats(path: Path) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the measurements of the finished runs of A, and those of B.

    Those of both are yielded together if A and B are the same setting.
    """
    by_variant: dict[str, list[Mapping[str, Any]]] = {"A": [], "B": []}
    try:
        record = load_json(path)
        if format_problem(path, record, "bench"):
            return
        is_same = bool(record["identical_settings"])
        for run in record["runs"]:
            if run["state"] == "done":
                variant = run["label"][0]
                by_variant.setdefault(variant, []).append(run["measured"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    if is_same:
        yield by_variant["A"] + by_variant["B"]
    else:
        yield by_variant["A"]
        yield by_variant["B"]


def _differences(values: Sequence[Any]) -> list[float]:
    """Return the relative differences of each two values that are finite numbers."""
    numbers = [
        float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)
    ]
    return [relative_difference(a, b) for a, b in itertools.combinations(numbers, 2)]


def tabulate(comparison: Comparison) -> Table:
    """Return a table with a column for each run: what differs by section, and the results."""
    rows: list[tuple[str, ...] | None] = [
        ("", *(run.name for run in comparison.runs)),
        ("state", *(run.state for run in comparison.runs)),
    ]
    for section in SECTIONS:
        differences = comparison.differences[section]
        rows.append(None)
        rows.append((section if differences else f"{section}: the same",))
        rows += [(f"  {item.name}", *map(format_difference, item.values)) for item in differences]
    rows += [None, *_loss_rows(comparison)]
    rows += [None, *_fact_rows(comparison)]
    rows += _score_rows(comparison)
    return Table("Differences between the runs, and their results", rows)


def _loss_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    if not comparison.points:
        yield (f"loss: not compared, {comparison.why_no_losses}",)
        return
    yield (f"loss at equal {comparison.unit}",)
    for point in comparison.points:
        yield f"  {point.at:,.0f}", *(format_number(loss, ".4f") for loss in point.losses)
    yield from _verdict_row(comparison, comparison.loss_verdict)


def _fact_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield a row for each fact of the runs; the row of the speed has its verdicts below it."""
    for fact in facts_in("compare"):
        values = [_describe_fact(fact, run) for run in comparison.runs]
        if any(values) or not fact.optional:
            yield fact.heading, *(value or "-" for value in values)
        if fact is SPEED:
            yield from _verdict_row(comparison, comparison.speed_verdict)


def _describe_fact(fact: RunFact, run: Compared) -> str | None:
    return None if isinstance(run, ComparedBase) else fact.describe(run.run)


def _verdict_row(comparison: Comparison, judge: Callable[[int], str]) -> Iterator[tuple[str, ...]]:
    """Yield the verdicts on all runs but the first; no row where none is known."""
    verdicts = [judge(index).replace("unknown", "-") for index in range(1, len(comparison.runs))]
    if any(verdict != "-" for verdict in verdicts):
        yield "  against the first", "", *verdicts


def _score_rows(comparison: Comparison) -> Iterator[tuple[str, ...] | None]:
    tasks: dict[str, None] = {}  # a dictionary keeps the order, without duplicates
    for run in comparison.runs:
        tasks.update(dict.fromkeys(run.scores))
    if tasks:
        yield None
        yield ("evaluation",)
    for task in tasks:
        yield f"  {task}", *(format_number(run.scores.get(task), ".4f") for run in comparison.runs)


def describe_comparison(comparison: Comparison) -> Iterator[str]:
    """Yield the sentences below the table: what could not be read, and the noise."""
    for run in comparison.runs:
        yield from run.notes
    yield from _describe_noise(comparison)


def _describe_noise(comparison: Comparison) -> Iterator[str]:
    noise = comparison.noise
    yield ""
    if noise.loss is None and noise.speed is None:
        yield (
            "the noise is unknown: no bench of this stage has repeats (`launch bench` measures it)"
        )
        return
    known = []
    for name, difference in (("losses", noise.loss), ("speeds", noise.speed)):
        if difference is not None:
            known.append(f"{name} up to {difference:.2%}")
    repeats = f"{noise.repeats} repeats of one setting in bench"
    yield f"noise: {repeats} differ in {' and '.join(known)}; `same` is within it"
    if comparison.differences["data"]:
        yield "the runs have different data, so their losses are means over different samples"


def format_difference(value: Any) -> str:
    """Return a value as text, cut at its beginning."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _WIDTH else f"...{text[3 - _WIDTH :]}"


def comparison_tables(folders: Sequence[Path], runs: Path) -> tuple[list[Table], list[str]]:
    """Compare the runs in `folders`, with the noise of the benches below `runs`.

    Returns the table that `compare` prints, and sentences about it.
    """
    noise = read_noise(runs, [folder.parent.name for folder in folders])
    comparison = compare_runs([compared_run(folder) for folder in folders], noise)
    sentences = [text for text in describe_comparison(comparison) if text]
    return [tabulate(comparison)], sentences
