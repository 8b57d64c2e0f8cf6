"""Tables and numbers as text, for a terminal, Markdown, a page and a notebook."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Generic, TypeVar

from launch.redact import process_redactor
from launch.terminal import join_lines

T = TypeVar("T")

_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table whose rows are of type T."""

    head: str
    cell: Callable[[T], str]
    width: int = 0  # minimum number of characters in a table that is printed row by row
    optional: bool = False  # whether it is left out if all its cells are empty


@dataclass(frozen=True)
class Table:
    """A title and rows; the first row is the head."""

    title: str
    rows: Sequence[Sequence[str] | None]  # a row of one cell spans the table, None is an empty line

    @classmethod
    def of(cls, title: str, columns: Sequence[Column[T]], items: Iterable[T]) -> Table:
        """Make a table with a row for each item."""
        items = list(items)
        heads: list[str] = []
        cells_by_column: list[list[str]] = []
        for column in columns:
            cells = [column.cell(item) for item in items]
            if any(cells) or not column.optional:
                heads.append(column.head)
                cells_by_column.append(cells)
        rows = zip(*cells_by_column, strict=True)
        return cls(title, [heads, *(list(row) for row in rows)])

    @property
    def full_rows(self) -> list[Sequence[str]]:
        """The rows with as many cells as the head, without empty lines, for Markdown and a page."""
        columns = len(self.rows[0] or ())
        full_rows: list[Sequence[str]] = []
        for row in self.rows:
            if row is not None:
                missing = [""] * (columns - len(row))
                full_rows.append([*row, *missing])
        return full_rows

    def lines(self, widest: int | None = None, wrap_at: int | None = None) -> list[str]:
        """Format the rows for a terminal.

        Columns are as wide as their cells, but at most `widest` characters; a longer cell moves the
        next one. The last column is wrapped where it would go beyond column `wrap_at`.

        >>> Table("", [("run", "loss"), ("sft-gpu8", "1.5"), None, ("of one stage",)]).lines()
        ['run       loss', 'sft-gpu8  1.5', '', 'of one stage']
        """
        # A recorded text with a line break stays one row.
        table: list[Sequence[str]] = [tuple(map(join_lines, row or ())) for row in self.rows]
        columns = zip(*(row for row in table if len(row) > 1), strict=True)
        widths = [min(max(map(len, column)), widest or sys.maxsize) for column in columns]
        if wrap_at:
            separators = 2 * len(widths[1:])
            last_width = max(20, wrap_at - sum(widths[:-1]) - separators)
            wrapped: list[Sequence[str]] = []
            for row in table:
                wrapped.extend(_wrap_last(row, last_width))
            table = wrapped
        lines = []
        for row in table:
            cells = map(str.ljust, row, widths) if len(row) > 1 else row
            lines.append("  ".join(cells).rstrip())
        return lines

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the rows without secrets.

        Text is aligned to the left; Jupyter aligns the cells of a table to the right.
        """
        mask = process_redactor().redact_text
        parts = []
        for number, row in enumerate(self.full_rows):
            tag = "td" if number else "th"
            cells = [
                f'<{tag} style="text-align: left">{escape(mask(cell))}</{tag}>' for cell in row
            ]
            parts.append(f"<tr>{''.join(cells)}</tr>")
        return f"<table>{''.join(parts)}</table>"

    def markdown(self) -> list[str]:
        """Format the rows as Markdown.

        >>> Table("", [["a|b", "c"], ["1", "2"]]).markdown()
        ['| a\\\\|b | c |', '| --- | --- |', '| 1 | 2 |']
        """
        head, *rows = self.full_rows
        return [_markdown_row(row) for row in (head, ["---"] * len(head), *rows)]


def format_row(columns: Sequence[Column[T]], item: T | None = None) -> str:
    """Format one row of a table that grows on a terminal; the head if there is no item."""
    cells = []
    for column in columns:
        cell = column.head if item is None else column.cell(item)
        cells.append(cell.ljust(column.width))
    return "  ".join(cells).rstrip()


def format_number(value: float | None, form: str, unit: str = "") -> str:
    """Format a number and its unit, `-` where it is missing.

    >>> format_number(0.5, ".1%"), format_number(None, ".1f", " GiB")
    ('50.0%', '-')
    """
    return "-" if value is None else f"{value:{form}}{unit}"


def format_measurement(value: float) -> str:
    """Format a number for a label: `12,345`, `0.1235`, `2e-05`."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e7:
        return f"{value:.4g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    four_digits = float(f"{value:.4g}")
    return f"{four_digits:,}".removesuffix(".0")


def format_duration(seconds: float) -> str:
    """Format seconds: `5` as `5 s`, `75` as `1 min 15 s`, `3700` as `1 h 2 min`."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return _with_rest(rounded, "min", "s")
    return _with_rest(round(seconds / 60), "h", "min")


def _with_rest(count: int, unit: str, part: str) -> str:
    """Format a count of parts as units of 60 of them and the rest."""
    whole, rest = divmod(count, 60)
    return f"{whole:,} {unit} {rest} {part}" if rest else f"{whole:,} {unit}"


def format_bytes(size: float) -> str:
    """Format bytes: 14.9 GiB."""
    return _with_unit(size, (*_BYTES, (1, "bytes")))


def format_count(count: float) -> str:
    """Format a number of parameters: 8.03 B."""
    return _with_unit(count, (*_COUNTS, (1, ""))).rstrip()


def _with_unit(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Format with three digits and the largest unit that fits."""
    scale, unit = next((entry for entry in units if value >= entry[0]), units[-1])
    scaled = value / scale
    return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


def _markdown_row(values: Sequence[str]) -> str:
    cells = [join_lines(value).replace("|", "\\|") for value in values]
    return f"| {' | '.join(cells)} |"


def _wrap_last(row: Sequence[str], width: int) -> Iterator[Sequence[str]]:
    """Yield a row with as much of its last cell as `width` allows, then rows with the rest."""
    *before, last = row or ("",)
    parts = textwrap.wrap(last, width, break_long_words=False, break_on_hyphens=False)
    for part in parts or [""]:
        yield (*before, part)
        before = [""] * len(before)
