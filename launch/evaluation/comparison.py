"""Compare runs: what differs in how they trained, their losses at equal tokens, speed and memory;
and as a table.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.evaluation.compared_run import Compared, Progress, compared_run
from launch.execution.record.format import format_problem
from launch.files import load_json
from launch.table import Table, format_number
from launch.trials.bench.verdict import relative_difference
from launch.worker.json_codec import versioned

SECTIONS = ("settings", "data", "versions", "patches")
_POINTS = (0.25, 0.5, 0.75, 1.0)  # of the training that all runs have in common
_WIDTH = 40  # characters of a value in the table
_WINDOW = 0.05  # of that training, whose losses are averaged at each point


@dataclass(frozen=True)
class RunDifference:
    """One key that is not the same in all runs."""

    section: str
    key: str
    values: tuple[Any, ...]  # of each run; None where it has none


@dataclass(frozen=True)
class LossPoint:
    """The losses of all runs after the same training."""

    at: float  # tokens, or optimizer steps
    losses: tuple[float | None, ...]


@dataclass(frozen=True)
class Noise:
    """The largest relative differences between repeats of one setting, over the benches of a
    stage.
    """

    loss: float | None = None
    speed: float | None = None
    repeats: int = 0


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side; the first is what the others are compared with."""

    runs: tuple[Compared, ...]
    differences: tuple[RunDifference, ...]
    unit: str  # of the points: tokens or steps
    points: tuple[LossPoint, ...]  # empty if the losses cannot be compared
    why_no_losses: str | None
    noise: Noise

    def loss_verdict(self, index: int) -> str:
        """`lower` or `higher` than the first run's loss, `same` within the noise, or `unknown`."""
        if not self.points:
            return "unknown"
        first, other = self.points[-1].losses[0], self.points[-1].losses[index]
        return _judge(first, other, self.noise.loss, ("lower", "higher"))

    def speed_verdict(self, index: int) -> str:
        """`slower` or `faster` than the first run, `same` within the noise, or `unknown`."""
        speeds = [run.progress.speed for run in self.runs]
        return _judge(speeds[0], speeds[index], self.noise.speed, ("slower", "faster"))

    def as_json(self) -> dict[str, Any]:
        return versioned(
            {
                "runs": [self._run(index) for index in range(len(self.runs))],
                "differs": self.differences,
                "losses": {
                    "unit": self.unit,
                    "why_not": self.why_no_losses,
                    "points": self.points,
                },
                "noise": self.noise,
            }
        )

    def _run(self, index: int) -> dict[str, Any]:
        run = self.runs[index]
        return {
            "run": run.name,
            "folder": str(run.folder),
            "state": run.state,
            "kind": run.kind,
            "steps": run.progress.last_step,
            "tokens": run.progress.tokens,
            "speed": run.progress.speed,
            "speed_unit": "tokens/s" if run.progress.tokens else "steps/s",
            "memory_gib": run.progress.memory_gib,
            "evaluation": dict(run.scores),
            "loss_verdict": None if index == 0 else self.loss_verdict(index),
            "speed_verdict": None if index == 0 else self.speed_verdict(index),
        }


def compare_runs(runs: Sequence[Compared], noise: Noise) -> Comparison:
    """Compare the runs with the first of them."""
    progress = [run.progress for run in runs]
    unit = "tokens" if all(run.tokens for run in progress) else "steps"
    why = _why_no_losses(runs)
    points = () if why else _equal_points(progress, unit)
    return Comparison(tuple(runs), tuple(_find_differences(runs)), unit, points, why, noise)


def read_noise(runs: Path, stages: Sequence[str]) -> Noise:
    """Return how far repeats of one setting differ, from every bench.json of the stages below
    `runs`.
    """
    losses: list[float] = []
    speeds: list[float] = []
    repeats = 0
    for stage in dict.fromkeys(stages):
        for path in sorted((runs / stage).glob("*/bench.json")):
            for side in _read_sides(path):
                repeats += len(side) if len(side) > 1 else 0
                losses += _spread([figures.get("loss") for figures in side])
                speeds += _spread([figures.get("per_second") for figures in side])
    return Noise(max(losses, default=None), max(speeds, default=None), repeats)


def _find_differences(runs: Sequence[Compared]) -> Iterator[RunDifference]:
    for section in SECTIONS:
        of_runs: list[Mapping[str, Any]] = [getattr(run, section) for run in runs]
        for key in sorted(set().union(*of_runs)):
            values = tuple(of_run.get(key) for of_run in of_runs)
            compared = [value for value, run in zip(values, runs, strict=True) if not run.is_base]
            if any(value != compared[0] for value in compared):
                yield RunDifference(section, key, values)


def _why_no_losses(runs: Sequence[Compared]) -> str | None:
    if bases := [run.name for run in runs if run.is_base]:
        return f"{bases[0]} is a model without the record of a run"
    kinds = {run.kind for run in runs}
    if len(kinds) > 1:
        return (
            f"the losses of {' and '.join(sorted(str(kind) for kind in kinds))} are different "
            "quantities"
        )
    without = [run.name for run in runs if not run.progress.losses]
    return f"{without[0]} has logged no loss" if without else None


def _equal_points(progress: Sequence[Progress], unit: str) -> tuple[LossPoint, ...]:
    """Return the losses at parts of the training that all runs have in common."""
    in_tokens = unit == "tokens"
    common = min((run.tokens or 0.0) if in_tokens else float(run.last_step) for run in progress)
    window = _WINDOW * common
    points = []
    for part in _POINTS:
        amount = part * common
        losses = (
            _mean_loss(run.at_tokens if in_tokens else run.at_steps, run.losses, amount, window)
            for run in progress
        )
        points.append(LossPoint(amount, tuple(losses)))
    return tuple(points)


def _mean_loss(
    axis: Sequence[float], losses: Sequence[float], amount: float, window: float
) -> float | None:
    """Return the mean loss of the steps within `window` of `amount`, else the loss of the step
    nearest to it; None where a loss is not finite.
    """
    total, count = 0.0, 0
    nearest, least = losses[0], math.inf
    for at, loss in zip(axis, losses, strict=True):
        distance = abs(at - amount)
        if distance <= window:
            total, count = total + loss, count + 1
        elif distance < least:
            nearest, least = loss, distance
    mean = total / count if count else nearest
    return mean if math.isfinite(mean) else None


def _judge(
    first: float | None, other: float | None, noise: float | None, names: tuple[str, str]
) -> str:
    if first is None or other is None or noise is None:
        return "unknown"
    if relative_difference(first, other) <= noise:
        return "same"
    return names[0] if other < first else names[1]


def _read_sides(path: Path) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the figures of the finished runs of A, and of B; those of both where A and B are the
    same setting.
    """
    try:
        record = load_json(path)
        if format_problem(path, record, "bench"):
            return
        finished = [
            (run["label"][0], run["measured"]) for run in record["runs"] if run["state"] == "done"
        ]
        is_same = bool(record["identical_settings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    for sides in [("A", "B")] if is_same else [("A",), ("B",)]:
        yield [figures for side, figures in finished if side in sides]


def _spread(values: Sequence[Any]) -> list[float]:
    """Return the relative differences of each two values."""
    numbers = [
        float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)
    ]
    return [relative_difference(a, b) for a, b in itertools.combinations(numbers, 2)]


def tabulate(comparison: Comparison) -> Table:
    """Return a table with a column for each run: what differs, section by section, and what came of
    it.
    """
    runs = comparison.runs
    rows: list[tuple[str, ...] | None] = [("", *(run.name for run in runs))]
    rows += [("state", *(run.state for run in runs))]
    for section in SECTIONS:
        differences = [
            difference for difference in comparison.differences if difference.section == section
        ]
        rows += [None, (section if differences else f"{section}: the same",)]
        rows += [(f"  {item.key}", *map(format_difference, item.values)) for item in differences]
    rows += [None, *_loss_rows(comparison), None, *_speed_rows(comparison)]
    return Table(
        "What differs between the runs, and what came of it", [*rows, *_score_rows(comparison)]
    )


def _loss_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    if not comparison.points:
        yield (f"loss: not compared, {comparison.why_no_losses}",)
        return
    yield (f"loss at equal {comparison.unit}",)
    for point in comparison.points:
        yield f"  {point.at:,.0f}", *(format_number(loss, ".4f") for loss in point.losses)
    yield from _verdict_row(comparison, comparison.loss_verdict)


def _speed_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    progress = [run.progress for run in comparison.runs]
    units = ["tokens/s" if run.tokens else "steps/s" for run in progress]
    yield (
        "speed",
        *(
            format_number(run.speed, ",.4g", f" {unit}")
            for run, unit in zip(progress, units, strict=True)
        ),
    )
    yield from _verdict_row(comparison, comparison.speed_verdict)
    if any(run.memory_gib is not None for run in progress):
        yield "memory", *(format_number(run.memory_gib, ".2f", " GiB") for run in progress)


def _verdict_row(comparison: Comparison, judge: Callable[[int], str]) -> Iterator[tuple[str, ...]]:
    """Yield the verdicts on all runs but the first; no row where none is known."""
    verdicts = [judge(index).replace("unknown", "-") for index in range(1, len(comparison.runs))]
    if {*verdicts} != {"-"}:
        yield "  against the first", "", *verdicts


def _score_rows(comparison: Comparison) -> Iterator[tuple[str, ...] | None]:
    tasks = list(dict.fromkeys(task for run in comparison.runs for task in run.scores))
    if tasks:
        yield None
        yield ("evaluation",)
    for task in tasks:
        yield f"  {task}", *(format_number(run.scores.get(task), ".4f") for run in comparison.runs)


def describe_comparison(comparison: Comparison) -> Iterator[str]:
    """Yield the sentences below the table: what could not be read, and how far repeats of one
    setting differ.
    """
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
    shares = [("losses", noise.loss), ("speeds", noise.speed)]
    known = " and ".join(f"{name} up to {share:.2%}" for name, share in shares if share is not None)
    yield (
        f"noise: {noise.repeats} repeats of one setting in bench differ in {known}; `same` is "
        "within it"
    )
    if any(difference.section == "data" for difference in comparison.differences):
        yield "the runs have different data, so their losses are means over different samples"


def format_difference(value: Any) -> str:
    """Return a value as text, cut at its beginning."""
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _WIDTH else f"...{text[3 - _WIDTH :]}"


def comparison_tables(folders: Sequence[Path], runs: Path) -> tuple[list[Table], list[str]]:
    """Compare the runs in `folders`, the noise being that of the benches below `runs`.

    Returns the table that `compare` prints, and sentences about it.
    """
    noise = read_noise(runs, [folder.parent.name for folder in folders])
    comparison = compare_runs([compared_run(folder) for folder in folders], noise)
    return [tabulate(comparison)], list(filter(None, describe_comparison(comparison)))
