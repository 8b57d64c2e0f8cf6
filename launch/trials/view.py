"""Writes a trial as text: the tables and lines that its verb prints, and its whole report.

Every table of bench, rollout, tune and sweep is made here from a record's JSON. A `Document` prints
the report on a terminal, in Markdown and as a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.execution.record.format import format_problem
from launch.execution.record.run import mapping, number, objects
from launch.execution.report.document import (
    Document,
    Spread,
    format_range_with_unit,
    format_with_unit,
    numbers,
    texts,
)
from launch.execution.report.page import render_document, write_report
from launch.execution.report.summary import Figure
from launch.files import read_json_object
from launch.table import Column, Table, format_duration, format_row
from launch.trials.measurement import median

_VERBS = ("rollout", "bench", "tune", "sweep")
_SHOWN = 20  # predictions in the plot
# Keys of a record that are shown as its facts.
_FACTS = ("stage", "trainer", "upstream", "model", "width", "card", "global_batch", "candidates")
JsonRow = Mapping[str, Any]  # the JSON keys of a run, and of what it measured


def _number(
    head: str, key: str, unit: str = "", scale: float = 1.0, width: int = 0
) -> Column[JsonRow]:
    """Return a column of numbers, each multiplied by `scale` to be in `unit`."""
    return Column(head, lambda row: format_with_unit(row.get(key), unit, scale), width)


def _range(head: str, low: str, high: str, unit: str = "", width: int = 0) -> Column[JsonRow]:
    """Return a column of ranges between the numbers under two keys."""
    return Column(
        head, lambda row: format_range_with_unit(row.get(low), row.get(high), unit), width
    )


def _text(head: str, key: str, width: int = 0) -> Column[JsonRow]:
    """Return a column of texts, with `-` where a row has none."""

    def show_text(row: JsonRow) -> str:
        return "-" if row.get(key) is None else str(row[key])

    return Column(head, show_text, width)


def _shape(run: JsonRow) -> str:
    """Return the parallel mode, and per-device batch x accumulation."""
    batch = mapping(run.get("batch"))
    mode = run.get("parallel", "-")
    per_device = batch.get("per_device", "-")
    accumulation = batch.get("accumulation", "-")
    return f"{mode} {per_device}x{accumulation}"


def _throughput(run: JsonRow) -> str:
    """Return the rate of a run in tokens or samples per second."""
    return format_with_unit(run.get("per_second"), f"{run.get('unit')}/s")


def _memory(run: JsonRow) -> str:
    """Return the peak memory that torch reserved, or allocated where only that is known."""
    reserved = number(run.get("reserved_gib"))
    return format_with_unit(reserved or run.get("memory_gib"), "GiB")


def _state(run: JsonRow) -> str:
    """Return the state of a run, with remarks in brackets."""
    gates = objects(run.get("gates"))
    warned = sum(gate.get("verdict") == "warn" for gate in gates)
    allowed = sum(gate.get("allowed") is True for gate in gates)
    marks = []
    if run.get("cause_id") not in (None, "failed"):
        marks.append(str(run["cause_id"]))
    if warned:
        marks.append(f"{warned} warned")
    if allowed:
        marks.append(f"{allowed} allowed")
    if run.get("reused"):
        marks.append("reused")
    state = str(run.get("state"))
    return f"{state} ({', '.join(marks)})" if marks else state


def _projection(run: JsonRow) -> str:
    """Return the time and the cost of the whole training."""
    projection = mapping(run.get("projection"))
    hours = number(projection.get("hours"))
    if hours is None:
        return "-"
    parts = [format_duration(hours * 3600)]
    if projection.get("gpu_hours") is not None:
        parts.append(format_with_unit(projection["gpu_hours"], "GPU-hours"))
    if projection.get("cost") is not None:
        parts.append(f"costs {format_with_unit(projection['cost'], '')}")
    text = ", ".join(parts)
    return text if projection.get("basis") == "measured" else f"{text} (projected)"


def _verdict(gate: JsonRow) -> str:
    """Return the verdict of a gate; `allowed` for a failure that `allow` permits."""
    return "allowed" if gate.get("allowed") else str(gate.get("verdict"))


# Columns that the tables of several verbs have.
_SHAPE = Column("setting", _shape, 13)
_STEPS = _number("steps", "steps", width=6)
_SPEED = (Column("throughput", _throughput, 17), _number("step", "step_seconds", "s", width=8))
_COST = (_number("padding", "padding", "%", 100, 8), Column("memory", _memory, 10))
_RESULT = (_range("loss", "first_loss", "loss", width=16), Column("state", _state))
_RUN_COLUMNS: Mapping[str, Sequence[Column[JsonRow]]] = {
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
        _range("validation", "best_validation_loss", "validation_loss", width=16),
        *_RESULT,
    ),
}
_PREDICTION_COLUMNS: Sequence[Column[JsonRow]] = (
    _text("setting", "label"),
    _number("step", "step_seconds", "s"),
    _range("between", "low_seconds", "high_seconds", "s"),
    _number("throughput", "per_second", "tokens/s"),
    _number("padding", "padding", "%", 100),
    _number("longest/mean", "imbalance"),
    _number("memory", "memory_gib", "GiB"),
    _text("fits", "fit"),
)
_DIFFERENCE_COLUMNS: Sequence[Column[JsonRow]] = (
    _text("differs", "what"),
    _text("A", "a"),
    _text("B", "b"),
)
_GATE_COLUMNS: Sequence[Column[JsonRow]] = (
    _text("gate", "id", 21),
    Column("verdict", _verdict, 7),
    _text("what it measured", "message"),
)
# The measurements that a bench compares: {key in the record: (title, unit, factor from the recorded
# value to the unit)}.
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


def _run_row(run: Mapping[str, Any]) -> JsonRow:
    """Return the row of a run, given in its record's JSON."""
    return {**mapping(run.get("measured")), **run}


def run_lines(verb: str, run: Mapping[str, Any]) -> list[str]:
    """Return the lines that a trial prints when a run has ended: the head of the table, the run's
    row, and why it did not measure everything.

    `run`: the run in its record's JSON.
    """
    columns = _RUN_COLUMNS[verb]
    lines = [format_row(columns), format_row(columns, _run_row(run))]
    if run["message"]:
        lines.append(f"  {run['message']}")
    return lines


def gate_line(gate: Mapping[str, Any]) -> str:
    """Return the line below a width's row about a gate that it did not pass."""
    return f"  {format_row(_GATE_COLUMNS, gate)}"


def runs_table(verb: str, runs: Iterable[Mapping[str, Any]], title: str = "") -> Table:
    """Return the table of a trial's runs, which are given in the record's JSON."""
    return Table.of(title, _RUN_COLUMNS[verb], map(_run_row, runs))


def predictions_table(predictions: Iterable[Mapping[str, Any]], title: str = "") -> Table:
    """Return the table of a search's predictions, which are given in the record's JSON."""
    return Table.of(title, _PREDICTION_COLUMNS, predictions)


def trial_verb(folder: Path) -> str | None:
    """Return rollout, bench, tune or sweep; None for a folder without a trial's record."""
    for verb in _VERBS:
        if (folder / f"{verb}.json").is_file():
            return verb
    return None


def read_trial(folder: Path) -> Document:
    """Return the report of the record in a trial's folder; nothing in the record makes this fail.

    For a record that cannot be read, or has another format, the report has only the reason.
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
    stage = record.get("stage", "an unknown stage")
    title = f"{verb} of {stage}: {folder.name}"
    document = Document(title, str(record.get("state")), folder, texts(record.get("summary")))
    document.notes = texts(record.get("notes"))
    facts = {name: record.get(name) for name in _FACTS}
    facts |= mapping(record.get("options"))
    document.figures = [
        Figure(name.replace("_", " "), str(value))
        for name, value in facts.items()
        if value is not None
    ]
    rows = [
        {**_run_row(run), "label": _marked_label(record, run)}
        for run in objects(record.get("runs"))
    ]
    document.add_table(runs_table(verb, rows, "Runs"))
    for row in rows:
        if row.get("message"):
            document.notes.append(f"{row['label']}: {row['message']}")
        document.add_run(row["label"], row.get("folder"))
    parts = {
        "bench": _add_bench,
        "rollout": _add_rollout,
        "tune": _add_tune,
        "sweep": _add_sweep,
    }
    if verb in parts:
        parts[verb](document, record, rows)
    return document


def _add_bench(document: Document, record: Mapping[str, Any], rows: Sequence[JsonRow]) -> None:
    """Add the settings, the spread of their runs, the ratio of each pair, a table of A beside B,
    and the differences between the two plans.
    """
    for setting in objects(record.get("settings")):
        overrides = " ".join(texts(setting.get("overrides"))) or "no overrides"
        document.figures.append(Figure(f"setting {setting.get('label')}", overrides))
    done = [row for row in rows if row.get("state") == "done"]
    unit = _unit(done)
    runs_of_a = [row for row in done if row["label"].startswith("A")]
    runs_of_b = [row for row in done if row["label"].startswith("B")]
    rates = [
        Spread("A", _values(runs_of_a, "per_second")),
        Spread("B", _values(runs_of_b, "per_second")),
    ]
    document.add_plot("Throughput: a dot for each run", f"{unit}/s", rates)
    ratio = mapping(mapping(record.get("verdict")).get("speed_ratio"))
    spread = Spread(
        "B / A", numbers(ratio.get("values")), number(ratio.get("low")), number(ratio.get("high"))
    )
    document.add_plot("Ratio of each pair, and the 95 % interval of the mean", "", [spread], 1.0)
    document.add_table(_comparison_table(runs_of_a, runs_of_b, unit))
    differences = objects(record.get("differences"))
    document.add_table(Table.of("The two plans", _DIFFERENCE_COLUMNS, differences))


def _comparison_table(
    runs_of_a: Sequence[JsonRow], runs_of_b: Sequence[JsonRow], unit: str
) -> Table:
    """Return the table of the medians and ranges of A's runs beside those of B's.

    `unit`: what the rates count, tokens or samples.
    """
    table = [["median of the runs", "A", "A from to", "B", "B from to", "B / A"]]
    for name, (title, unit_template, scale) in COMPARED.items():
        values_of_a = _values(runs_of_a, name, scale)
        values_of_b = _values(runs_of_b, name, scale)
        a = median(values_of_a)
        b = median(values_of_b)
        if a is None and b is None:
            continue
        unit_of_row = unit_template.format(unit=unit)
        table.append(
            [
                title,
                format_with_unit(a, unit_of_row),
                _show_extremes(values_of_a),
                format_with_unit(b, unit_of_row),
                _show_extremes(values_of_b),
                f"{b / a:.3f}" if a and b is not None else "-",
            ]
        )
    return Table("A against B", table)


def _show_extremes(values: Sequence[float]) -> str:
    """Return the range from the lowest to the highest value."""
    return format_range_with_unit(min(values, default=None), max(values, default=None))


def _add_rollout(document: Document, record: Mapping[str, Any], rows: Sequence[JsonRow]) -> None:
    """Add the plots of efficiency and throughput by width, and the table of all gates."""
    efficiency = _spreads(rows, "efficiency", 100)
    document.add_plot("Efficiency: speed of a rank against one rank alone", "%", efficiency, 100.0)
    document.add_plot("Throughput of all ranks", f"{_unit(rows)}/s", _spreads(rows, "per_second"))
    gates: list[JsonRow] = []
    for row in rows:
        gates += [{**gate, "label": row["label"]} for gate in objects(row.get("gates"))]
    columns = (_text("width", "label"), *_GATE_COLUMNS)
    document.add_table(Table.of("Gates", columns, gates))


def _add_tune(document: Document, record: Mapping[str, Any], rows: Sequence[JsonRow]) -> None:
    """Add the times of a step, as measured and as predicted."""
    document.add_plot("Time of a step, probed", "s", _spreads(rows, "step_seconds"))
    predictions = [
        {**estimate, "label": _marked_label(record, estimate)}
        for estimate in objects(record.get("predictions"))
    ]
    spreads = _spreads(predictions[:_SHOWN], "step_seconds")
    title = "Time of a step, predicted and corrected by the probes, with its range"
    document.add_plot(title, "s", spreads)
    document.add_table(predictions_table(predictions, "Predictions, corrected by the probes"))


def _add_sweep(document: Document, record: Mapping[str, Any], rows: Sequence[JsonRow]) -> None:
    """Add plots of the losses and the throughput of the runs."""
    for title, name in (
        ("Best validation loss", "best_validation_loss"),
        ("Loss after the last step", "loss"),
        ("Throughput", "per_second"),
    ):
        unit = f"{_unit(rows)}/s" if name == "per_second" else ""
        document.add_plot(title, unit, _spreads(rows, name))


def _marked_label(record: Mapping[str, Any], setting: JsonRow) -> str:
    """Return a setting's label, marked in a search if it is the chosen one, the recipe's own or
    full fine-tuning.
    """
    label = str(setting.get("label"))
    marks = []
    if record.get("best") == label:
        marks.append("chosen")
    if record.get("base") == label:
        marks.append("the recipe's own")
    if record.get("full") == label:
        marks.append("full fine-tuning")
    return f"{label} ({', '.join(marks)})" if marks else label


def _unit(rows: Sequence[JsonRow]) -> str:
    """Return the unit of the runs' throughput, tokens or samples."""
    for row in rows:
        if row.get("unit"):
            return str(row["unit"])
    return "tokens"


def _spreads(rows: Sequence[JsonRow], name: str, scale: float = 1.0) -> list[Spread]:
    """Return one number of each row for a plot, with the range of a predicted time."""
    spreads = []
    for row in rows:
        low = number(row.get("low_seconds"))
        high = number(row.get("high_seconds"))
        spreads.append(Spread(str(row["label"]), _values([row], name, scale), low, high))
    return spreads


def _values(rows: Sequence[JsonRow], name: str, scale: float = 1.0) -> list[float]:
    """Return the numbers that the rows have under `name`, multiplied by `scale`."""
    recorded = [row.get(name) for row in rows]
    return [value * scale for value in numbers(recorded)]
