"""The sentences, figures and tables of a run's page: how it ended, its plan, its versions.

A page of several runs has a table that compares their figures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.display import format_duration
from launch.execution.record.run import Run, mapping, objects
from launch.execution.report.charts import Chart, format_value
from launch.planning.flags import FLAG_COLUMNS, format_flag_value
from launch.table import Table

_STATES = {EXIT_DONE: "done", EXIT_STOPPED: "stopped", EXIT_INTERRUPTED: "interrupted"}
_VERDICTS = {
    "done": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "interrupted": "ended by the user",
    "running": "still running: this page shows it so far, up to",
    "unfinished": "its launcher ended without recording an outcome,",
}
_MARGIN_NAMES = ("rewards/margin", "rewards/margins")
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
    return _STATES.get(run.outcome.exit_code, "failed")


def count_steps(run: Run) -> str:
    """Return the number of optimizer steps that the run has done, for a label."""
    steps = run.outcome.steps if run.outcome else run.metrics.last_step
    return f"{steps or 0:,}"


def describe_ending(run: Run) -> str:
    """Return how the run ended, in one sentence."""
    state = find_state(run)
    sentence = f"{_VERDICTS[state]} "
    if state != "running":
        sentence += "after "
    sentence += count_steps(run)
    planned = run.total_steps
    if not planned and run.outcome:
        planned = run.outcome.planned_steps
    if planned:
        sentence += f" of {planned:,}"
    sentence += " steps"
    if run.outcome and math.isfinite(run.outcome.seconds):
        sentence += f" in {format_duration(run.outcome.seconds)}"
    return sentence


def collect_figures(run: Run) -> list[Figure]:
    """Return the numbers that sum up the run."""
    return [
        *_loss_figures(run),
        *_throughput_figures(run),
        *_memory_figures(run),
        *_margin_figures(run),
    ]


def _figure(label: str, value: float, unit: str = "", note: str = "") -> Figure:
    return Figure(label, f"{format_value(value)} {unit}".rstrip(), note)


def _loss_figures(run: Run) -> Iterator[Figure]:
    """Yield the last training loss, and the last validation losses."""
    curves = run.metrics.curves
    loss = curves.get("loss")
    if loss and loss.last:
        step, value = loss.last
        note = ""
        if loss.low:
            lowest_step, lowest = loss.low
            note = f"lowest {format_value(lowest)} at step {lowest_step:,}"
        yield _figure(f"loss at step {step:,}", value, note=note)
    for name, curve in curves.items():
        if name.startswith("eval") and name.endswith("loss") and curve.last:
            step, value = curve.last
            yield _figure(f"validation loss at step {step:,}", value, note=name)


def _throughput_figures(run: Run) -> Iterator[Figure]:
    """Yield the mean throughput and step time, and the share of padding."""
    tokens = run.metrics.total("tokens")
    padded = run.metrics.total("tokens_padded")
    seconds = run.metrics.total("seconds")
    if tokens and seconds:
        note = f"{format_value(tokens)} tokens without padding"
        yield _figure("mean throughput", tokens / seconds, "tokens/s", note)
    if seconds and run.metrics.steps:
        mean = seconds / run.metrics.curves["seconds"].count
        yield _figure("mean step", mean, "s", f"training {format_duration(seconds)}")
    if tokens is not None and padded:
        yield _figure("padding", 100 * (1 - tokens / padded), "%", "of all tokens")


def _memory_figures(run: Run) -> Iterator[Figure]:
    memory = run.metrics.curves.get("memory_gib")
    if memory and memory.high:
        yield _figure("peak memory", memory.high[1], "GiB", "of rank 0, used by tensors")


def _margin_figures(run: Run) -> Iterator[Figure]:
    """Yield the last reward margin of a preference training."""
    for name in _MARGIN_NAMES:
        margin = run.metrics.curves.get(name)
        if margin and margin.last:
            step, value = margin.last
            yield _figure(f"reward margin at step {step:,}", value)


def single_value_figures(chart: Chart) -> Iterator[Figure]:
    """Yield the curves of a chart that have one value."""
    for line in chart.lines:
        label = chart.title
        if len(chart.lines) > 1:
            label = f"{chart.title}, {line.label}"
        for step, value in line.points:
            yield _figure(label, value, chart.unit, f"at step {step:,}")


def describe_setup(run: Run) -> list[Figure]:
    """Return what was trained and how, from the plan."""
    plan = run.plan
    shown = []
    if "stage" in plan:
        shown.append(Figure("stage", str(plan["stage"])))
    if "trainer" in plan:
        shown.append(Figure("trainer", str(plan["trainer"])))
    model = format_flag_value(run.flags.get("model_name_or_path"))
    if model:
        shown.append(Figure("model", model))
    batch = mapping(plan.get("batch"))
    if batch:
        shown.append(_batch_figure(batch))
    parallel = mapping(plan.get("parallel"))
    if parallel:
        settings = [str(parallel.get(key)) for key in ("mode", "precision", "device")]
        shown.append(Figure("parallel", ", ".join(settings)))
    if "identity" in plan:
        shown.append(Figure("plan identity", str(plan["identity"])))
    return shown


def _batch_figure(batch: Mapping[str, Any]) -> Figure:
    """Return the global batch with its factors: ranks, samples a device, accumulation."""
    width = batch.get("width")
    ranks = "1 rank" if width == 1 else f"{width} ranks"
    per_device = f"{batch.get('per_device')} per device"
    accumulation = f"{batch.get('accumulation')} accumulation"
    factors = f"{ranks} x {per_device} x {accumulation}"
    return Figure("global batch", f"{batch.get('global')} samples", factors)


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


def compare_runs(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return a table of the runs by label, whose first row is the head.

    A figure's step differs between runs, so the head has its label without the step.
    """
    values_by_run: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for label, run in runs.items():
        values = {}
        for figure in collect_figures(run):
            head = figure.label.partition(" at step")[0]
            values[head] = figure.value
            if head not in heads:
                heads.append(head)
        values_by_run[label] = values
    rows = [["run", "state", "steps", *heads]]
    for label, run in runs.items():
        values = values_by_run[label]
        cells = [values.get(head, "-") for head in heads]
        rows.append([label, find_state(run), count_steps(run), *cells])
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
