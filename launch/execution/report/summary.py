"""The sentences, figures and tables of a run's page: verdict, plan, evaluation, and a comparison of
runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.display import format_duration
from launch.execution.record.run import Run, mapping, number, objects
from launch.execution.report.charts import Chart, format_value
from launch.files import iterate_json_lines, read_json_object
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


@dataclass(frozen=True)
class Figure:
    """A number with its unit."""

    label: str
    value: str
    note: str = ""


def ending(run: Run) -> str:
    """Return how the run ended: done, stopped (by a guard), failed, interrupted, running or
    unfinished.
    """
    if run.outcome is None:
        return "running" if run.holder else "unfinished"
    return _STATES.get(run.outcome.exit_code, "failed")


def verdict(run: Run) -> str:
    """Return how the run ended, in one sentence."""
    steps = run.outcome.steps if run.outcome else run.metrics.last_step
    planned = run.total_steps or (run.outcome.planned_steps if run.outcome else None)
    progress = f"{steps or 0:,}" + (f" of {planned:,}" if planned else "") + " steps"
    taken = run.outcome.seconds if run.outcome else math.inf
    seconds = f" in {format_duration(taken)}" if math.isfinite(taken) else ""
    state = ending(run)
    after = "" if state == "running" else "after "
    return f"{_VERDICTS[state]} {after}{progress}{seconds}"


def figures(run: Run) -> list[Figure]:
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
    tokens, padded, seconds = (
        run.metrics.total(name) for name in ("tokens", "tokens_padded", "seconds")
    )
    if tokens and seconds:
        add(
            "mean throughput",
            tokens / seconds,
            "tokens/s",
            f"{format_value(tokens)} tokens without padding",
        )
    if seconds and run.metrics.steps:
        add(
            "mean step",
            seconds / run.metrics.curves["seconds"].count,
            "s",
            f"training {format_duration(seconds)}",
        )
    if tokens is not None and padded:
        add("padding", 100 * (1 - tokens / padded), "%", "of all tokens")
    if (memory := curves.get("memory_gib")) and memory.high:
        add("peak memory", memory.high[1], "GiB", "of rank 0, used by tensors")
    for name in ("rewards/margin", "rewards/margins"):
        if (margin := curves.get(name)) and margin.last:
            add(f"reward margin at step {margin.last[0]:,}", margin.last[1], "")
    return shown


def single_values(chart: Chart) -> Iterator[Figure]:
    """Yield the curves of a chart that have one value."""
    for line in chart.lines:
        for step, value in line.points:
            label = chart.title if len(chart.lines) == 1 else f"{chart.title}, {line.label}"
            yield Figure(label, f"{format_value(value)} {chart.unit}".rstrip(), f"at step {step:,}")


def setup(run: Run) -> list[Figure]:
    """Return what was trained and how, from the plan."""
    plan, batch, parallel = (
        run.plan,
        mapping(run.plan.get("batch")),
        mapping(run.plan.get("parallel")),
    )
    flags = mapping(plan.get("flags"))
    rows = [Figure("stage", str(plan["stage"]))] if "stage" in plan else []
    if "trainer" in plan:
        rows.append(Figure("trainer", str(plan["trainer"])))
    if model := format_flag_value(mapping(flags.get("model_name_or_path")).get("value")):
        rows.append(Figure("model", model))
    if batch:
        ranks = "1 rank" if batch.get("width") == 1 else f"{batch.get('width')} ranks"
        terms = (
            f"{ranks} x {batch.get('per_device')} per device x {batch.get('accumulation')} "
            "accumulation"
        )
        rows.append(Figure("global batch", f"{batch.get('global')} samples", terms))
    if parallel:
        rows.append(
            Figure(
                "parallel",
                f"{parallel.get('mode')}, {parallel.get('precision')}, {parallel.get('device')}",
            )
        )
    if "identity" in plan:
        rows.append(Figure("plan identity", str(plan["identity"])))
    return rows


def losses_that_are_not_finite(run: Run) -> list[str]:
    """Return a sentence for each metric that was NaN or infinite."""
    sentences = []
    for name, curve in run.metrics.curves.items():
        if curve.first_bad is not None:
            step, value = curve.first_bad
            more = f", {curve.bad_count:,} times in all" if curve.bad_count > 1 else ""
            sentences.append(f"{name} is {value} at step {step:,}{more}")
    return sentences


def comparison(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return the head and a row for each run."""
    heads = ["run", "state", "steps"]
    columns = {
        label: {f.label.partition(" at step")[0]: f.value for f in figures(run)}
        for label, run in runs.items()
    }
    heads += list(dict.fromkeys(head for cells in columns.values() for head in cells))
    rows = [heads]
    for label, run in runs.items():
        steps = run.outcome.steps if run.outcome else run.metrics.last_step
        cells = columns[label]
        rows.append(
            [label, ending(run), f"{steps or 0:,}", *(cells.get(head, "-") for head in heads[3:])]
        )
    return rows


def labels(runs: Sequence[Run]) -> dict[str, Run]:
    """Name each run as shortly as is unique: its folder's name, else stage/name, else its path."""
    for name in (lambda run: run.folder.name, lambda run: run.name, lambda run: str(run.folder)):
        named = {name(run): run for run in runs}
        if len(named) == len(runs):
            return named
    return {f"{run.folder} ({index})": run for index, run in enumerate(runs, 1)}


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


def flag_rows(plan: Mapping[str, Any]) -> Sequence[Sequence[str] | None]:
    """Return every flag of the trainer, its value and where the value is set."""
    flags = mapping(plan.get("flags"))
    return Table.of(
        "Flags", FLAG_COLUMNS, ((name, mapping(flag)) for name, flag in flags.items())
    ).rows


def guard_rows(settings: Mapping[str, Any]) -> list[list[str]]:
    """Return the guards of a configuration with their limits; [] where there are none."""
    rows = []
    for name, limits in mapping(settings.get("guards")).items():
        text = ", ".join(f"{key} {value}" for key, value in mapping(limits).items())
        rows.append([str(name), text if isinstance(limits, dict) else "off"])
    return [["guard", "limits"], *rows] if rows else []


def version_figures(versions: Mapping[str, Any]) -> list[Figure]:
    """Return the versions that matter for a result: Python, the trainer's packages, the platform,
    the GPUs.
    """
    packages = mapping(versions.get("packages"))
    figures = [Figure("Python", str(versions["python"]))] if "python" in versions else []
    figures += [Figure(name, str(packages[name])) for name in _PACKAGES if name in packages]
    figures += [
        Figure(key, str(versions[key])) for key in ("platform", "driver") if versions.get(key)
    ]
    gpus = Counter(
        (str(gpu.get("name")), str(gpu.get("memory"))) for gpu in objects(versions.get("gpus"))
    )
    figures += [
        Figure("GPUs", f"{count} x {name}", memory) for (name, memory), count in gpus.items()
    ]
    return figures


def git_rows(git: Mapping[str, Any]) -> list[list[str]]:
    """Return the commit of each repository, and its local changes."""
    rows = []
    for name, value in git.items():
        if isinstance(value, dict):
            commit = str(value.get("commit") or f"unknown: {value.get('why')}")
            dirty = value.get("dirty")
            rows.append([name, commit, "unknown" if dirty is None else "yes" if dirty else "none"])
    return [["repository", "commit", "uncommitted changes"], *rows] if rows else []


_ANSWERS = 3  # of each task
_MAX_ROWS = 2000  # of a file of answers
_MAX_CHARACTERS = 600


@dataclass(frozen=True)
class EvaluationSection:
    rows: list[list[str]]  # the first is the head
    # likewise: what each model answered to the first questions of each task
    answers: list[list[str]]
    source: str  # the model and the harness


def read_evaluation(folder: Path) -> EvaluationSection | None:
    """Read evaluation.json and the answers that it names; None without a task."""
    record = read_json_object(folder / "evaluation.json")
    tasks = objects(record.get("tasks"))
    if not tasks:
        return None
    models = list(
        dict.fromkeys(
            str(model.get("model")) for task in tasks for model in objects(task.get("models"))
        )
    )
    rows = [["task", "metric", *models, "verdict"]]
    rows += [_score_row(task, models) for task in tasks]
    answers: dict[
        tuple[str, str], list[str]
    ] = {}  # by task and prompt: what is expected, and each model's answer
    for index, name in enumerate(models):
        scored = [
            model
            for task in tasks
            for model in objects(task.get("models"))
            if str(model.get("model")) == name
        ]
        for file in dict.fromkeys(str(model.get("samples")) for model in scored):
            for task, prompt, text, target in _read_answers(Path(file)):
                cells = answers.setdefault((task, prompt), [target, *[""] * len(models)])
                cells[index + 1] = text
    table = [
        ["task", "prompt", "expected", *models],
        *([*key, *cells] for key, cells in answers.items()),
    ]
    return EvaluationSection(rows, table, f"{record.get('model')}, {record.get('harness')}")


def read_samples(run: Run) -> list[tuple[str, list[list[str]]]]:
    """Return the prompts that the model answered while it trained, each with a table of its answers
    by step.
    """
    prompts: dict[str, dict[int, list[str]]] = {}
    for event in run.events("completion"):
        scores = [
            (name, number(value)) for name, value in mapping(event.data.get("rewards")).items()
        ]
        rewards = [f"{name} {format_value(value)}" for name, value in scores if value is not None]
        answer = ", ".join([_cut(event.data.get("completion")), *rewards])
        prompts.setdefault(_cut(event.data.get("prompt")), {})[event.data["step"]] = [answer]
    return [
        (
            prompt,
            [
                ["step", "answer"],
                *([f"{step:,}", *cells] for step, cells in sorted(answers.items())),
            ],
        )
        for prompt, answers in prompts.items()
    ]


def _score_row(task: Mapping[str, Any], models: Sequence[str]) -> list[str]:
    scores = {str(model.get("model")): model for model in objects(task.get("models"))}
    better = "higher" if task.get("higher_is_better") else "lower"
    half = number(task.get("gain_half_interval"))
    spread = f"± {format_value(half)} at 95 %, " if half is not None else ""
    against = (
        mapping(scores.get(models[-1])).get("verdict_against_previous") if len(models) > 2 else None
    )
    previous = f"; {against} against the one before" if against else ""
    broken = ", ".join(map(str, task["broken"])) if isinstance(task.get("broken"), list) else ""
    return [
        str(task.get("task")),
        f"{task.get('metric')}, {better} is better",
        *(_plus_minus(mapping(scores.get(name)), "score", "stderr") for name in models),
        f"broken: {broken}"
        if broken
        else f"{task.get('summary') or task.get('verdict')} ({spread}{task.get('questions')} "
        f"questions){previous}",
    ]


def _plus_minus(fields: Mapping[str, Any], value: str, spread: str) -> str:
    center, half = number(fields.get(value)), number(fields.get(spread))
    if center is None:
        return "-"
    return format_value(center) + (
        f" ± {format_value(half)}" if half is not None and math.isfinite(half) else ""
    )


def _read_answers(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield the task, prompt, answer and target of the first generated answers of each task; a task
    that only scores given texts has none.
    """
    counts: Counter[str] = Counter()
    for row in islice(iterate_json_lines(path), _MAX_ROWS):
        prompt, text = (
            _first_text((row or {}).get("arguments")),
            _first_text((row or {}).get("filtered_resps")),
        )
        if row is not None and text is not None:
            task = str(row.get("task"))
            counts[task] += 1
            if counts[task] <= _ANSWERS:
                yield task, _cut(prompt), _cut(text), _cut(row.get("target"))


def _first_text(value: object) -> str | None:
    while isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) else None


def _cut(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
