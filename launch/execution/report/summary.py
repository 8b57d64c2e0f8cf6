"""The sentences, figures and tables of a run's page: how it ended, its plan, its versions.

A page of several runs has a table that compares their figures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.execution.record.run import Run, mapping, objects
from launch.execution.report.charts import Chart
from launch.execution.run_facts import View, facts_in
from launch.planning.flags import FLAG_COLUMNS
from launch.table import Table, format_duration, format_measurement

_VERDICTS = {
    "done": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "interrupted": "ended by the user",
    "running": "still running: this page shows it so far, up to",
    "unfinished": "its launcher ended without recording an outcome,",
}
_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "deepspeed",
    "trl",
    "peft",
    "liger-kernel",
    "flash-attn",
)


@dataclass(frozen=True)
class Figure:
    """A number with its unit."""

    label: str
    value: str
    note: str = ""


def find_state(run: Run) -> str:
    """Return how the run ended: done, stopped (by a guard), failed, interrupted, running or
    unfinished.
    """
    if run.outcome is None:
        return "running" if run.holder else "unfinished"
    return run.outcome.state


def format_step_count(run: Run) -> str:
    """Return the number of optimizer steps that the run has done, for a label."""
    steps = run.outcome.steps if run.outcome else run.metrics.last_step
    return f"{steps or 0:,}"


def describe_ending(run: Run) -> str:
    """Return how the run ended, in one sentence."""
    state = find_state(run)
    sentence = f"{_VERDICTS[state]} "
    if state != "running":
        sentence += "after "
    counted = format_step_count(run)
    planned = run.total_steps
    if not planned and run.outcome:
        planned = run.outcome.planned_steps
    if planned:
        counted += f" of {planned:,}"
    sentence += f"{counted} step" if counted.split()[-1] == "1" else f"{counted} steps"
    if run.outcome and math.isfinite(run.outcome.seconds):
        attempts = len(run.attempts)
        last = f", the last of {attempts} attempts" if attempts > 1 else ""
        sentence += f"{last} in {format_duration(run.outcome.seconds)}"
    return sentence


def collect_figures(run: Run, view: View = "report") -> list[Figure]:
    """Return the facts of the run that its page shows in a view."""
    figures = []
    for fact in facts_in(view):
        for reading in fact.read(run):
            label = fact.heading
            if reading.step is not None:
                label += f" at step {reading.step:,}"
            figures.append(Figure(label, reading.value, reading.note))
    return figures


def single_value_figures(chart: Chart) -> Iterator[Figure]:
    """Yield the curves of a chart that have one value."""
    for line in chart.lines:
        label = chart.title
        if len(chart.lines) > 1:
            label = f"{chart.title}, {line.label}"
        for step, value in line.points:
            text = f"{format_measurement(value)} {chart.unit}".rstrip()
            yield Figure(label, text, f"at step {step:,}")


def describe_non_finite_metrics(run: Run) -> list[str]:
    """Return a sentence for each metric that was NaN or infinite."""
    sentences = []
    for name, curve in run.metrics.curves.items():
        if curve.first_bad is None:
            continue
        step, value = curve.first_bad
        sentence = f"{name} is {value} at step {step:,}"
        if curve.bad_count > 1:
            sentence += f", {curve.bad_count:,} times in all"
        sentences.append(sentence)
    return sentences


def tabulate_runs(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return a table of the runs by label, whose first row is the head.

    It has the facts that any of the runs has.
    """
    heads: list[str] = []
    columns: list[list[str | None]] = []
    for fact in facts_in("report"):
        values = [fact.describe(run) for run in runs.values()]
        if any(values):
            heads.append(fact.heading)
            columns.append(values)
    rows = [["run", "state", "steps", *heads]]
    for index, (label, run) in enumerate(runs.items()):
        cells = [column[index] or "-" for column in columns]
        rows.append([label, find_state(run), format_step_count(run), *cells])
    return rows


def label_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Label each run as shortly as is unique: its folder's name, else stage/name, else its path."""
    choices = (
        [run.folder.name for run in runs],
        [run.name for run in runs],
        [str(run.folder) for run in runs],
    )
    for labels in choices:
        if len(set(labels)) == len(runs):
            return dict(zip(labels, runs, strict=True))
    return {f"{run.folder} ({index})": run for index, run in enumerate(runs, 1)}


def flag_rows(plan: Mapping[str, Any]) -> Sequence[Sequence[str] | None]:
    """Return every flag of the trainer, its value and where the value is set."""
    flags = mapping(plan.get("flags"))
    rows = ((name, mapping(flag)) for name, flag in flags.items())
    return Table.of("Flags", FLAG_COLUMNS, rows).rows


def guard_rows(settings: Mapping[str, Any]) -> list[list[str]]:
    """Return the guards of a configuration with their limits; [] where there are none."""
    rows = []
    for name, limits in mapping(settings.get("guards")).items():
        text = "off"
        if isinstance(limits, dict):
            text = ", ".join(f"{key} {value}" for key, value in limits.items())
        rows.append([str(name), text])
    return [["guard", "limits"], *rows] if rows else []


def version_figures(versions: Mapping[str, Any]) -> list[Figure]:
    """Return the versions that matter for a result: Python, the trainer's packages, the platform,
    the GPUs.
    """
    shown = []
    if "python" in versions:
        shown.append(Figure("Python", str(versions["python"])))
    packages = mapping(versions.get("packages"))
    shown += [Figure(name, str(packages[name])) for name in _PACKAGES if name in packages]
    machine_keys = [key for key in ("platform", "driver") if versions.get(key)]
    shown += [Figure(key, str(versions[key])) for key in machine_keys]
    gpus: Counter[tuple[str, str]] = Counter()
    for gpu in objects(versions.get("gpus")):
        gpus[str(gpu.get("name")), str(gpu.get("memory"))] += 1
    for (name, memory), count in gpus.items():
        shown.append(Figure("GPUs", f"{count} x {name}", memory))
    return shown


def git_rows(git: Mapping[str, Any]) -> list[list[str]]:
    """Return the commit of each repository, and whether it had uncommitted changes."""
    rows = []
    for name, state in git.items():
        if not isinstance(state, dict):
            continue
        commit = str(state.get("commit") or f"unknown: {state.get('why')}")
        dirty = state.get("dirty")
        changes = "yes" if dirty else "none"
        if dirty is None:
            changes = "unknown"
        rows.append([name, commit, changes])
    return [["repository", "commit", "uncommitted changes"], *rows] if rows else []
