"""Shows the record of a trial: one row for each run, whatever the verb, and the parts that each
verb adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.execution.display import format_duration
from launch.execution.record.format import format_problem
from launch.execution.record.run import mapping, number, objects
from launch.execution.report.document import Document, Spread, numbers, show, show_range, texts
from launch.execution.report.page import render_document, write_report
from launch.execution.report.summary import Figure
from launch.files import read_json_object
from launch.table import Column, Table
from launch.trials.measurement import median

VERBS = ("rollout", "bench", "tune", "sweep")
_SHOWN = 20  # predictions in the plot
_FACTS = ("stage", "trainer", "upstream", "model", "width", "card", "global_batch", "candidates")
Row = Mapping[str, Any]  # a run of a record, and what it measured


def run_row(run: Mapping[str, Any]) -> Row:
    """The row of a run in its record's JSON: its keys, and those of what it measured."""
    return {**mapping(run.get("measured")), **run}


def _number(head: str, key: str, unit: str = "", scale: float = 1.0, width: int = 0) -> Column[Row]:
    return Column(head, lambda row: show(row.get(key), unit, scale), width)


def _range(head: str, low: str, high: str, width: int = 0) -> Column[Row]:
    return Column(head, lambda row: show_range(row.get(low), row.get(high)), width)


def _text(head: str, key: str, width: int = 0) -> Column[Row]:
    return Column(head, lambda row: "-" if row.get(key) is None else str(row[key]), width)


def _shape(run: Row) -> str:
    """Mode, per-device batch x accumulation."""
    batch = mapping(run.get("batch"))
    return (
        f"{run.get('parallel', '-')} "
        f"{batch.get('per_device', '-')}x{batch.get('accumulation', '-')}"
    )


def _throughput(run: Row) -> str:
    return show(run.get("per_second"), f"{run.get('unit')}/s")


def _memory(run: Row) -> str:
    return show(number(run.get("reserved_gib")) or run.get("memory_gib"), "GiB")


def _state(run: Row) -> str:
    """The state, and what qualifies it."""
    gates = objects(run.get("gates"))
    warned = sum(gate.get("verdict") == "warn" for gate in gates)
    allowed = sum(gate.get("allowed") is True for gate in gates)
    marks = [str(run["cause_id"])] if run.get("cause_id") not in (None, "failed") else []
    marks += [
        f"{count} {word}" for count, word in ((warned, "warned"), (allowed, "allowed")) if count
    ]
    marks += ["reused"] if run.get("reused") else []
    return str(run.get("state")) + (f" ({', '.join(marks)})" if marks else "")


def _projection(run: Row) -> str:
    """What the whole training takes."""
    projection = mapping(run.get("projection"))
    hours = number(projection.get("hours"))
    if hours is None:
        return "-"
    parts = [f"{format_duration(hours * 3600)} h" if hours >= 1 else f"{hours * 60:.1f} min"]
    parts += (
        [show(projection["gpu_hours"], "GPU-hours")]
        if projection.get("gpu_hours") is not None
        else []
    )
    parts += [f"costs {show(projection['cost'], '')}"] if projection.get("cost") is not None else []
    return ", ".join(parts) + ("" if projection.get("basis") == "measured" else " (projected)")


_SHAPE, _STEPS = Column("setting", _shape, 13), _number("steps", "steps", width=6)
_SPEED = (Column("throughput", _throughput, 17), _number("step", "step_seconds", "s", width=8))
_COST = (_number("padding", "padding", "%", 100, 8), Column("memory", _memory, 10))
_RESULT = (_range("loss", "first_loss", "loss", 16), Column("state", _state))
COLUMNS: Mapping[str, Sequence[Column[Row]]] = {
    "bench": (
        _text("run", "label", 5),
        _text("width", "width", 6),
        _SHAPE,
        *_SPEED,
        *_COST,
        _number("MFU", "mfu_measured", "%", 100, 8),
        *_RESULT,
    ),
    "rollout": (
        _text("width", "label", 6),
        _SHAPE,
        _STEPS,
        *_SPEED,
        _number("per rank", "efficiency", "%", 100, 9),
        *_COST,
        Column("whole run", _projection, 22),
        *_RESULT,
    ),
    "tune": (
        _text("setting", "label", 38),
        _number("predicted step", "predicted_seconds", "s", width=14),
        *_SPEED,
        *_COST,
        _number("predicted memory", "predicted_gib", "GiB", width=16),
        *_RESULT,
    ),
    "sweep": (
        _text("run", "label", 38),
        _STEPS,
        *_SPEED,
        *_COST,
        _range("validation", "best_validation_loss", "validation_loss", 16),
        *_RESULT,
    ),
}
PREDICTIONS: Sequence[Column[Row]] = (
    _text("setting", "label"),
    _number("step", "step_seconds", "s"),
    _range("between", "low_seconds", "high_seconds"),
    _number("throughput", "per_second", "tokens/s"),
    _number("padding", "padding", "%", 100),
    _number("longest/mean", "imbalance"),
    _number("memory", "memory_gib", "GiB"),
    _text("fits", "fit"),
)
DIFFERENCES: Sequence[Column[Row]] = (_text("differs", "what"), _text("A", "a"), _text("B", "b"))
GATES: Sequence[Column[Row]] = (
    _text("gate", "id", 21),
    Column(
        "verdict", lambda gate: "allowed" if gate.get("allowed") else str(gate.get("verdict")), 7
    ),
    _text("what it measured", "message"),
)
# what a bench compares: the key of what a run measured -> title, unit, factor from the recorded
# value to the unit
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
    """Read whatever the folder's record holds; nothing in it makes this fail.

    Of a record of another format nothing is shown, but that it has one.
    """
    verb = trial_verb(folder) or "rollout"
    path = folder / f"{verb}.json"
    record = read_json_object(path)
    problem = format_problem(path, record, verb)
    if problem is None:
        return build_document(record, folder)
    reason = str(problem) if record else f"{verb}.json cannot be read"
    missing = f"nothing of this {verb} is shown: {reason}"
    return Document(f"{verb}: {folder.name}", "unreadable", folder, [missing])


def write_trial_report(folder: Path, notify: Callable[[str], None]) -> None:
    """Write report.html into the folder of a trial; a problem is a warning."""
    write_report(folder, lambda: render_document(read_trial(folder)), notify)


def build_document(record: Mapping[str, Any], folder: Path) -> Document:
    """Return the report of a trial's record."""
    verb = str(record["verb"])
    title = f"{verb} of {record.get('stage', 'an unknown stage')}: {folder.name}"
    document = Document(title, str(record.get("state")), folder, texts(record.get("summary")))
    document.notes = texts(record.get("notes"))
    facts = {name: record.get(name) for name in _FACTS} | mapping(record.get("options"))
    document.figures = [
        Figure(name.replace("_", " "), str(value))
        for name, value in facts.items()
        if value is not None
    ]
    rows = [{**run_row(run), "label": _mark(record, run)} for run in objects(record.get("runs"))]
    document.add_table(Table.of("Runs", COLUMNS[verb], rows))
    for row in rows:
        document.notes += [f"{row['label']}: {row['message']}"] if row.get("message") else []
        document.add_run(row["label"], row.get("folder"))
    parts = {"bench": _add_bench, "rollout": _add_rollout, "tune": _add_tune}
    if verb in parts:
        parts[verb](document, record, rows)
    return document


def _add_bench(document: Document, record: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """The settings, the spread of their runs, the ratio of each pair, A beside B, and how the two
    plans differ.
    """
    for setting in objects(record.get("settings")):
        overrides = " ".join(texts(setting.get("overrides"))) or "no overrides"
        document.figures.append(Figure(f"setting {setting.get('label')}", overrides))
    done = [row for row in rows if row.get("state") == "done"]
    unit = _unit(done)
    sides = [[row for row in done if row["label"].startswith(label)] for label in "AB"]
    rates = [
        Spread(label, _values(side, "per_second")) for label, side in zip("AB", sides, strict=True)
    ]
    document.add_plot("Throughput: a dot for each run", f"{unit}/s", rates)
    ratio = mapping(mapping(record.get("verdict")).get("speed_ratio"))
    spread = Spread(
        "B / A", numbers(ratio.get("values")), number(ratio.get("low")), number(ratio.get("high"))
    )
    document.add_plot("Ratio of each pair, and the 95 % interval of the mean", "", [spread], 1.0)
    table = [["median of the runs", "A", "A from to", "B", "B from to", "B / A"]]
    for name, (title, form, scale) in COMPARED.items():
        compared = [_values(side, name, scale) for side in sides]
        a, b = map(median, compared)
        if a is None and b is None:
            continue
        cells = [title]
        for values in compared:
            lowest, highest = min(values, default=None), max(values, default=None)
            cells += [show(median(values), form.format(unit=unit)), show_range(lowest, highest)]
        table.append([*cells, f"{b / a:.3f}" if a and b is not None else "-"])
    document.add_table(Table("A against B", table))
    document.add_table(Table.of("The two plans", DIFFERENCES, objects(record.get("differences"))))


def _add_rollout(document: Document, record: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Efficiency and throughput by width, and every gate."""
    efficiency = _spreads(rows, "efficiency", 100)
    document.add_plot("Efficiency: speed of a rank against one rank alone", "%", efficiency, 100.0)
    document.add_plot("Throughput of all ranks", f"{_unit(rows)}/s", _spreads(rows, "per_second"))
    gates = [{**gate, "label": row["label"]} for row in rows for gate in objects(row.get("gates"))]
    document.add_table(Table.of("Gates", (_text("width", "label"), *GATES), gates))


def _add_tune(document: Document, record: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """The steps' times, as measured and as predicted."""
    document.add_plot("Time of a step, probed", "s", _spreads(rows, "step_seconds"))
    predictions = [
        {**estimate, "label": _mark(record, estimate)}
        for estimate in objects(record.get("predictions"))
    ]
    spreads = _spreads(predictions[:_SHOWN], "step_seconds")
    document.add_plot(
        "Time of a step, predicted and corrected by the probes, with its range", "s", spreads
    )
    document.add_table(Table.of("Predictions, corrected by the probes", PREDICTIONS, predictions))


def _mark(record: Mapping[str, Any], setting: Row) -> str:
    """Return a setting's name, and in a search whether it is the chosen one, the recipe's own or
    full fine-tuning.
    """
    label = str(setting.get("label"))
    named = (("chosen", "best"), ("the recipe's own", "base"), ("full fine-tuning", "full"))
    marks = [mark for mark, key in named if record.get(key) == label]
    return f"{label} ({', '.join(marks)})" if marks else label


def _unit(rows: Sequence[Row]) -> str:
    """What the throughput of the runs counts."""
    return next((str(unit) for row in rows if (unit := row.get("unit"))), "tokens")


def _spreads(rows: Sequence[Row], name: str, scale: float = 1.0) -> list[Spread]:
    """One number of each row, and the range of a predicted time."""
    return [
        Spread(
            str(row["label"]),
            _values([row], name, scale),
            number(row.get("low_seconds")),
            number(row.get("high_seconds")),
        )
        for row in rows
    ]


def _values(rows: Sequence[Row], name: str, scale: float = 1.0) -> list[float]:
    return [value * scale for value in numbers([row.get(name) for row in rows])]
