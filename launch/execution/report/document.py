"""A report of figures, plots and tables that prints on a terminal, in Markdown and as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.execution.record.run import number
from launch.execution.record.steps import MetricCurves, read_curves
from launch.execution.report.summary import Figure
from launch.table import Table, format_measurement

_MAX_RUNS = 24  # runs whose curves a page shows
_LINE = 110  # characters


@dataclass(frozen=True)
class Spread:
    """The values of one setting: a dot for each run, and an interval where there is one."""

    label: str
    values: Sequence[float]
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SpreadPlot:
    """Spreads on one axis, which begins at 0."""

    title: str
    unit: str
    spreads: Sequence[Spread]
    reference: float | None = None  # a value to compare with, drawn as a line

    def percent(self, value: float) -> float:
        """Return the position of a value, in percent of the axis from the left."""
        shown = [self.reference]
        for spread in self.spreads:
            shown += [*spread.values, spread.high]
        largest = max((value for value in shown if value), default=1.0)
        axis_end = 1.05 * largest
        return 100 * max(0.0, value) / axis_end if axis_end > 0 else 0.0


@dataclass
class Document:
    """The content of a report; plots and curves are shown on its page only."""

    title: str
    state: str
    folder: Path
    summary: list[str] = field(default_factory=list)  # sentences
    figures: list[Figure] = field(default_factory=list)
    plots: list[SpreadPlot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: dict[str, MetricCurves] = field(default_factory=dict)  # the curves of its short runs

    def add_table(self, table: Table) -> None:
        """Add a table, unless it has only its head."""
        if len(table.rows) > 1:
            self.tables.append(table)

    def add_plot(
        self, title: str, unit: str, spreads: Sequence[Spread], reference: float | None = None
    ) -> None:
        """Add a plot of the spreads that have values."""
        shown = [spread for spread in spreads if spread.values]
        if shown:
            self.plots.append(SpreadPlot(title, unit, shown, reference))

    def add_run(self, label: str, folder: object) -> None:
        """Add the curves of a short run."""
        if isinstance(folder, str) and len(self.runs) < _MAX_RUNS:
            metrics = read_curves(Path(folder) / "metrics.jsonl")
            if metrics.steps:
                self.runs[label] = metrics

    def text(self) -> str:
        """Return the report for a terminal."""
        lines = [self.title, ""]
        lines += wrap(self.summary)
        lines.append("")
        lines += [f"{figure.label}: {figure.value}" for figure in self.figures]
        for table in self.tables:
            lines += ["", table.title, *table.lines()]
        lines.append("")
        lines += wrap(self.notes)
        lines.append("")
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the report for an issue or a page."""
        lines = [f"### {self.title}", ""]
        lines += [f"- {sentence}" for sentence in self.summary]
        lines.append("")
        lines += [f"- {figure.label}: `{figure.value}`" for figure in self.figures]
        for table in self.tables:
            lines += ["", f"**{table.title}**", "", *table.markdown()]
        lines.append("")
        lines += [f"- {note}" for note in self.notes]
        lines.append("")
        return "\n".join(lines)


def wrap(sentences: Sequence[str]) -> list[str]:
    """Wrap sentences for a terminal; their further lines are indented."""
    wrapper = textwrap.TextWrapper(_LINE, subsequent_indent="  ", break_long_words=False)
    lines = []
    for sentence in sentences:
        lines += wrapper.wrap(sentence)
    return lines


def format_with_unit(value: object, unit: str, scale: float = 1.0) -> str:
    """Return a number of a record with its unit; `-` for anything else."""
    converted = number(value)
    if converted is None:
        return "-"
    return f"{format_measurement(converted * scale)} {unit}".rstrip()


def format_range_with_unit(low: object, high: object, unit: str = "") -> str:
    """Return `LOW to HIGH UNIT`, one value where both are shown alike; `-` if one is not a number."""
    lowest = format_with_unit(low, "")
    highest = format_with_unit(high, "")
    if "-" in (lowest, highest):
        return "-"
    text = lowest if lowest == highest else f"{lowest} to {highest}"
    return f"{text} {unit}".rstrip()


def numbers(values: object) -> list[float]:
    """Return the numbers of a JSON list; [] for anything else."""
    if not isinstance(values, list):
        return []
    converted = [number(value) for value in values]
    return [value for value in converted if value is not None]


def texts(values: object) -> list[str]:
    """Return the items of a JSON list as text; [] for anything else."""
    return [str(value) for value in values] if isinstance(values, list) else []
