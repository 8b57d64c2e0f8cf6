"""The sentences and figures at the top of a run's page, and the rows of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.execution.display.progress import format_duration
from launch.execution.record.reader import mapping
from launch.execution.report.charts import format_value
from launch.execution.report.run import ReportedRun

_VERDICTS = {
    "done": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "interrupted": "ended by the user",
    "running": "still running: this page shows it so far, up to",
    "unfinished": "its launcher ended without recording an outcome,",
}


@dataclass(frozen=True)
class Figure:
    """A number with its unit."""

    label: str
    value: str
    note: str = ""


def verdict(run: ReportedRun) -> str:
    """Return how the run ended, in one sentence."""
    steps = run.outcome.steps if run.outcome else run.metrics.last_step
    planned = run.total_steps or (run.outcome.planned_steps if run.outcome else None)
    progress = f"{steps or 0:,}" + (f" of {planned:,}" if planned else "") + " steps"
    seconds = (
        f" in {format_duration(run.outcome.seconds)}" if run.outcome and math.isfinite(run.outcome.seconds) else ""
    )
    after = "" if run.state == "running" else "after "
    return f"{_VERDICTS[run.state]} {after}{progress}{seconds}"


def figures(run: ReportedRun) -> list[Figure]:
    """Return the numbers that sum up the run."""
    curves, shown = run.metrics.curves, list[Figure]()

    def add(label: str, value: float | None, unit: str, note: str = "") -> None:
        if value is not None:
            shown.append(Figure(label, f"{format_value(value)} {unit}".rstrip(), note))

    if (loss := curves.get("loss")) and loss.last:
        lowest = f"lowest {format_value(loss.low[1])} at step {loss.low[0]:,}" if loss.low else ""
        add(f"loss at step {loss.last[0]:,}", loss.last[1], "", lowest)
    for name, curve in curves.items():
        if name.startswith("eval") and name.endswith("loss") and curve.last:
            add(f"validation loss at step {curve.last[0]:,}", curve.last[1], "", name)
    tokens, padded, seconds = (_finite_total(run, name) for name in ("tokens", "tokens_padded", "seconds"))
    if tokens and seconds:
        add("mean throughput", tokens / seconds, "tokens/s", f"{format_value(tokens)} tokens without padding")
    if seconds and run.metrics.steps:
        add("mean step", seconds / run.metrics.curves["seconds"].count, "s", f"training {format_duration(seconds)}")
    if tokens is not None and padded:
        add("padding", 100 * (1 - tokens / padded), "%", "of all tokens")
    if (memory := curves.get("memory_gib")) and memory.high:
        add("peak memory", memory.high[1], "GiB", "of rank 0, used by tensors")
    for name, label in (("rewards/margin", "reward margin"), ("rewards/margins", "reward margin")):
        if (margin := curves.get(name)) and margin.last:
            add(f"{label} at step {margin.last[0]:,}", margin.last[1], "")
    return shown


def _finite_total(run: ReportedRun, name: str) -> float | None:
    """Return the sum of a metric; None where it was not logged, and where no float holds it."""
    total = run.metrics.total(name)
    return total if total is not None and math.isfinite(total) else None


def setup(run: ReportedRun) -> list[Figure]:
    """Return what was trained and how, from the plan."""
    plan, batch, parallel = run.plan, mapping(run.plan.get("batch")), mapping(run.plan.get("parallel"))
    flags = mapping(plan.get("flags"))
    rows = [Figure("stage", str(plan["stage"]))] if "stage" in plan else []
    if "trainer" in plan:
        rows.append(Figure("trainer", str(plan["trainer"])))
    if model := flag_value(flags, "model_name_or_path"):
        rows.append(Figure("model", model))
    if batch:
        ranks = "1 rank" if batch.get("width") == 1 else f"{batch.get('width')} ranks"
        terms = f"{ranks} x {batch.get('per_device')} per device x {batch.get('accumulation')} accumulation"
        rows.append(Figure("global batch", f"{batch.get('global')} samples", terms))
    if parallel:
        rows.append(
            Figure("parallel", f"{parallel.get('mode')}, {parallel.get('precision')}, {parallel.get('device')}")
        )
    if "identity" in plan:
        rows.append(Figure("plan identity", str(plan["identity"])))
    return rows


def flag_value(flags: Mapping[str, Any], name: str) -> str:
    """Return a flag's value as text; "" without it."""
    value = mapping(flags.get(name)).get("value")
    return "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def losses_that_are_not_finite(run: ReportedRun) -> list[str]:
    """Return a sentence for each metric that was NaN or infinite."""
    sentences = []
    for name, curve in run.metrics.curves.items():
        if curve.first_bad is not None:
            step, value = curve.first_bad
            more = f", {curve.bad_count:,} times in all" if curve.bad_count > 1 else ""
            sentences.append(f"{name} is {value} at step {step:,}{more}")
    return sentences


def comparison(runs: Mapping[str, ReportedRun]) -> list[list[str]]:
    """Return the head and a row for each run."""
    heads = ["run", "state", "steps"]
    columns = {label: {f.label.partition(" at step")[0]: f.value for f in figures(run)} for label, run in runs.items()}
    heads += list(dict.fromkeys(head for cells in columns.values() for head in cells))
    rows = [heads]
    for label, run in runs.items():
        steps = run.outcome.steps if run.outcome else run.metrics.last_step
        cells = columns[label]
        rows.append([label, run.state, f"{steps or 0:,}", *(cells.get(head, "-") for head in heads[3:])])
    return rows


def labels(runs: Sequence[ReportedRun]) -> dict[str, ReportedRun]:
    """Name each run as shortly as is unique: its folder's name, else stage/name, else its path."""
    for name in (lambda run: run.folder.name, lambda run: run.name, lambda run: str(run.folder)):
        named = {name(run): run for run in runs}
        if len(named) == len(runs):
            return named
    return {f"{run.folder} ({index})": run for index, run in enumerate(runs, 1)}
