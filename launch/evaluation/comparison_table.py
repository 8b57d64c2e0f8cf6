"""Render a comparison of runs: as text, and as the tables of the page of several runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launch.evaluation.comparison import SECTIONS, Comparison, compare_runs, read_noise
from launch.evaluation.run_facts import read_run_facts
from launch.table import Table, format_number

_WIDTH = 40  # characters of a value


def tabulate(comparison: Comparison) -> Table:
    """Return a table with a column for each run: what differs, section by section, and what came of it."""
    runs = comparison.runs
    rows: list[tuple[str, ...] | None] = [("", *(run.name for run in runs))]
    rows += [("state", *(run.status.state for run in runs))]
    for section in SECTIONS:
        differences = [difference for difference in comparison.differences if difference.section == section]
        rows += [None, (section if differences else f"{section}: the same",)]
        rows += [(f"  {item.key}", *map(format_difference, item.values)) for item in differences]
    rows += [None, *_loss_rows(comparison), None, *_speed_rows(comparison)]
    return Table("What differs between the runs, and what came of it", [*rows, *_score_rows(comparison)])


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
    yield "speed", *(format_number(run.speed, ",.4g", f" {unit}") for run, unit in zip(progress, units, strict=True))
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


def describe_noise(comparison: Comparison) -> Iterator[str]:
    """Yield the sentences below the table: how far repeats of one setting differ."""
    noise = comparison.noise
    yield ""
    if noise.loss is None and noise.speed is None:
        yield "the noise is unknown: no bench of this stage has repeats (`launch bench` measures it)"
        return
    shares = [("losses", noise.loss), ("speeds", noise.speed)]
    known = " and ".join(f"{name} up to {share:.2%}" for name, share in shares if share is not None)
    yield f"noise: {noise.repeats} repeats of one setting in bench differ in {known}; `same` is within it"
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
    try:
        comparison = compare_runs([read_run_facts(folder) for folder in folders], noise)
    except (AttributeError, KeyError, TypeError, ValueError):  # a file of a record has another form
        return [], ["the runs are not compared: the record of one of them is damaged"]
    return [tabulate(comparison)], list(filter(None, describe_noise(comparison)))
