"""Shows the record of a trial: one row for each run, whatever the verb, and the parts that each verb adds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.execution.display import format_duration
from launch.execution.record.reader import mapping, number, objects
from launch.execution.report.document import Document, Spread, numbers, show, show_range, texts
from launch.execution.report.page import render_document, write_report
from launch.execution.report.summary import Figure
from launch.files import read_json_object
from launch.table import Column, Table
from launch.trials.version_1 import upgrade

SCHEMA_VERSION = 2
VERBS = ("rollout", "bench", "tune", "sweep")
_SHOWN = 20  # predictions in the plot
_FACTS = ("stage", "trainer", "upstream", "model", "width", "card", "global_batch", "candidates")
Run = Mapping[str, Any]


def measured(head: str, key: str, unit: str = "", scale: float = 1.0, width: int = 0) -> Column[Run]:
    """The column of a number that runs measured."""
    return Column(head, lambda run: show(mapping(run.get("measured")).get(key), unit, scale), width)


def _text(head: str, key: str, width: int = 0) -> Column[Run]:
    return Column(head, lambda run: "-" if run.get(key) is None else str(run[key]), width)


def _shape(run: Run) -> str:
    """Mode, per-device batch x accumulation."""
    batch = mapping(run.get("batch"))
    return f"{run.get('parallel', '-')} {batch.get('per_device', '-')}x{batch.get('accumulation', '-')}"


def _throughput(run: Run) -> str:
    figures = mapping(run.get("measured"))
    return show(figures.get("per_second"), f"{figures.get('unit')}/s")


def _memory(run: Run) -> str:
    figures = mapping(run.get("measured"))
    return show(number(figures.get("reserved_gib")) or figures.get("memory_gib"), "GiB")


def _loss(run: Run) -> str:
    figures = mapping(run.get("measured"))
    return show_range(figures.get("first_loss"), figures.get("loss"))


def _state(run: Run) -> str:
    """The state, and what qualifies it."""
    gates = objects(run.get("gates"))
    warned = sum(gate.get("verdict") == "warn" for gate in gates)
    allowed = sum(gate.get("allowed") is True for gate in gates)
    marks = [str(run["cause_id"])] if run.get("cause_id") not in (None, "failed") else []
    marks += [f"{count} {word}" for count, word in ((warned, "warned"), (allowed, "allowed")) if count]
    marks += ["reused"] if run.get("reused") else []
    return str(run.get("state")) + (f" ({', '.join(marks)})" if marks else "")


def _projection(run: Run) -> str:
    """What the whole training takes."""
    projection = mapping(run.get("projection"))
    hours = number(projection.get("hours"))
    if hours is None:
        return "-"
    parts = [f"{format_duration(hours * 3600)} h" if hours >= 1 else f"{hours * 60:.1f} min"]
    parts += [show(projection["gpu_hours"], "GPU-hours")] if projection.get("gpu_hours") is not None else []
    parts += [f"costs {show(projection['cost'], '')}"] if projection.get("cost") is not None else []
    return ", ".join(parts) + ("" if projection.get("basis") == "measured" else " (projected)")


_SPEED = (Column("throughput", _throughput, 17), measured("step", "step_seconds", "s", width=8))
_COST = (measured("padding", "padding", "%", 100, 8), Column("memory", _memory, 10))
_RESULT = (Column("loss", _loss, 16), Column("state", _state))
COLUMNS: Mapping[str, Sequence[Column[Run]]] = {
    "bench": (
        _text("run", "label", 5),
        _text("width", "width", 6),
        Column("setting", _shape, 13),
        *_SPEED,
        *_COST,
        measured("MFU", "mfu_measured", "%", 100, 8),
        *_RESULT,
    ),
    "rollout": (
        _text("width", "label", 6),
        Column("setting", _shape, 13),
        measured("steps", "steps", width=6),
        *_SPEED,
        Column("per rank", lambda run: show(run.get("efficiency"), "%", 100), 9),
        *_COST,
        Column("whole run", _projection, 22),
        *_RESULT,
    ),
    "tune": (
        _text("setting", "label", 38),
        Column("predicted step", lambda run: show(run.get("predicted_seconds"), "s"), 14),
        *_SPEED,
        *_COST,
        Column("predicted memory", lambda run: show(run.get("predicted_gib"), "GiB"), 16),
        *_RESULT,
    ),
    "sweep": (
        _text("run", "label", 38),
        measured("steps", "steps", width=6),
        *_SPEED,
        *_COST,
        Column("validation", lambda run: show_range(run.get("best_validation_loss"), run.get("validation_loss")), 16),
        *_RESULT,
    ),
}
PREDICTIONS: Sequence[Column[Run]] = (
    _text("setting", "label"),
    Column("step", lambda estimate: show(estimate.get("step_seconds"), "s")),
    Column("between", lambda estimate: show_range(estimate.get("low_seconds"), estimate.get("high_seconds"))),
    Column("throughput", lambda estimate: show(estimate.get("per_second"), "tokens/s")),
    Column("padding", lambda estimate: show(estimate.get("padding"), "%", 100)),
    Column("longest/mean", lambda estimate: show(estimate.get("imbalance"), "")),
    Column("memory", lambda estimate: show(estimate.get("memory_gib"), "GiB")),
    _text("fits", "fit"),
)
DIFFERENCES: Sequence[Column[Run]] = (_text("differs", "what"), _text("A", "a"), _text("B", "b"))
GATES: Sequence[Column[Run]] = (
    _text("gate", "id", 21),
    Column("verdict", lambda gate: "allowed" if gate.get("allowed") else str(gate.get("verdict")), 7),
    _text("what it measured", "message"),
)
# what a bench compares: the key of what a run measured -> title, unit, factor from the recorded value to the unit
COMPARED: Mapping[str, tuple[str, str, float]] = {
    "per_second": ("throughput without padding", "{unit}/s", 1.0),
    "padded_per_second": ("throughput with padding", "tokens/s", 1.0),
    "step_seconds": ("step", "s", 1.0),
    "padding": ("padding", "%", 100.0),
    "mfu_measured": ("MFU by the measured rate", "%", 100.0),
    "mfu_datasheet": ("MFU by the data sheet", "%", 100.0),
    "memory_gib": ("peak memory, allocated", "GiB", 1.0),
    "reserved_gib": ("peak memory, reserved", "GiB", 1.0),
    "loss": ("loss after the last step", "", 1.0),
    "before": ("before the first step", "s", 1.0),
}


def trial_verb(folder: Path) -> str | None:
    """Return rollout, bench, tune or sweep; None for a folder that holds the record of none."""
    return next((verb for verb in VERBS if (folder / f"{verb}.json").is_file()), None)


def read_trial(folder: Path) -> Document:
    """Read whatever the folder's record holds; nothing in it makes this fail."""
    verb = trial_verb(folder) or "rollout"
    record = read_json_object(folder / f"{verb}.json")
    if record:
        return build_document(upgrade(verb, record), folder)
    missing = f"{verb}.json cannot be read: nothing of this {verb} is shown"
    return Document(f"{verb}: {folder.name}", "unreadable", folder, [missing])


def write_trial_report(folder: Path, notify: Callable[[str], None]) -> None:
    """Write report.html into the folder of a trial; a problem is a warning."""
    write_report(folder, lambda: render_document(read_trial(folder)), notify)


def build_document(record: Mapping[str, Any], folder: Path) -> Document:
    """Return the report of a record of version 2."""
    verb = str(record["verb"])
    title = f"{verb} of {record.get('stage', 'an unknown stage')}: {folder.name}"
    document = Document(title, str(record.get("state")), folder, texts(record.get("summary")))
    document.notes = texts(record.get("notes"))
    facts = {name: record[name] for name in _FACTS if record.get(name) is not None}
    facts |= {name: value for name, value in mapping(record.get("options")).items() if value is not None}
    document.figures = [Figure(name.replace("_", " "), str(value)) for name, value in facts.items()]
    runs = objects(record.get("runs"))
    if verb == "tune":
        runs = [{**run, "label": _mark(record, run)} for run in runs]
    document.add_table(Table.of("Runs", COLUMNS[verb], runs))
    document.notes += [f"{run.get('label')}: {run['message']}" for run in runs if run.get("message")]
    for run in runs:
        document.add_run(str(run.get("label")), run.get("folder"))
    parts = {"bench": _add_bench, "rollout": _add_rollout, "tune": _add_tune}
    if verb in parts:
        parts[verb](document, record, runs)
    return document


def _add_bench(document: Document, record: Mapping[str, Any], runs: Sequence[Run]) -> None:
    """The settings, the spread of their runs, the ratio of each pair, A beside B, and how the two plans differ."""
    for setting in objects(record.get("settings")):
        overrides = " ".join(texts(setting.get("overrides"))) or "no overrides"
        document.figures.append(Figure(f"setting {setting.get('label')}", overrides))
    done = [run for run in runs if run.get("state") == "done"]
    unit = _unit(done)
    sides = [
        [mapping(run.get("measured")) for run in done if str(run.get("label")).startswith(label)] for label in "AB"
    ]
    rates = [Spread(label, _values(side, "per_second")) for label, side in zip("AB", sides, strict=True)]
    document.add_plot("Throughput: a dot for each run", f"{unit}/s", rates)
    ratio = mapping(mapping(record.get("verdict")).get("speed_ratio"))
    spread = Spread("B / A", numbers(ratio.get("values")), number(ratio.get("low")), number(ratio.get("high")))
    document.add_plot("Ratio of each pair, and the 95 % interval of the mean", "", [spread], 1.0)
    rows = [["median of the runs", "A", "A from to", "B", "B from to", "B / A"]]
    for name, (title, form, scale) in COMPARED.items():
        values = [_values(side, name) for side in sides]
        a, b = (statistics.median(side) if side else None for side in values)
        if a is None and b is None:
            continue
        cells = [title]
        for median, side in zip((a, b), values, strict=True):
            lowest, highest = min(side, default=None), max(side, default=None)
            cells += [show(median, form.format(unit=unit), scale), show_range(lowest, highest, scale)]
        rows.append([*cells, f"{b / a:.3f}" if a and b is not None else "-"])
    document.add_table(Table("A against B", rows))
    document.add_table(Table.of("The two plans", DIFFERENCES, objects(record.get("differences"))))


def _add_rollout(document: Document, record: Mapping[str, Any], runs: Sequence[Run]) -> None:
    """Efficiency and throughput by width, and every gate."""
    efficiency = [Spread(str(run.get("label")), _values([run], "efficiency", 100)) for run in runs]
    document.add_plot("Efficiency: speed of a rank against one rank alone", "%", efficiency, 100.0)
    document.add_plot("Throughput of all ranks", f"{_unit(runs)}/s", _spreads(runs, "per_second"))
    gates = [{**gate, "label": run.get("label")} for run in runs for gate in objects(run.get("gates"))]
    document.add_table(Table.of("Gates", (_text("width", "label"), *GATES), gates))


def _add_tune(document: Document, record: Mapping[str, Any], runs: Sequence[Run]) -> None:
    """The steps' times, as measured and as predicted."""
    document.add_plot("Time of a step, probed", "s", _spreads(runs, "step_seconds"))
    predictions = [{**estimate, "label": _mark(record, estimate)} for estimate in objects(record.get("predictions"))]
    spreads = [
        Spread(
            str(estimate["label"]),
            _values([estimate], "step_seconds"),
            number(estimate.get("low_seconds")),
            number(estimate.get("high_seconds")),
        )
        for estimate in predictions[:_SHOWN]
    ]
    document.add_plot("Time of a step, predicted and corrected by the probes, with its range", "s", spreads)
    document.add_table(Table.of("Predictions, corrected by the probes", PREDICTIONS, predictions))


def _mark(record: Mapping[str, Any], setting: Run) -> str:
    """Return a setting's name, and whether it is the chosen one, the recipe's own or full fine-tuning."""
    label = str(setting.get("label"))
    named = (("chosen", "best"), ("the recipe's own", "base"), ("full fine-tuning", "full"))
    marks = [mark for mark, key in named if record.get(key) == label]
    return f"{label} ({', '.join(marks)})" if marks else label


def _unit(runs: Sequence[Run]) -> str:
    """What the throughput of the runs counts."""
    return next((str(unit) for run in runs if (unit := mapping(run.get("measured")).get("unit"))), "tokens")


def _spreads(runs: Sequence[Run], name: str) -> list[Spread]:
    """One number that each run measured."""
    return [Spread(str(run.get("label")), _values([mapping(run.get("measured"))], name)) for run in runs]


def _values(figures: Sequence[Mapping[str, Any]], name: str, scale: float = 1.0) -> list[float]:
    return [value * scale for value in numbers([of.get(name) for of in figures])]
