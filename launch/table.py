"""Tables and numbers as text: a column is declared once, and prints on a terminal, in Markdown and
on a page.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Generic, TypeVar

from launch.redact import process_redactor

T = TypeVar("T")

_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table whose rows are of type T."""

    head: str
    cell: Callable[[T], str]
    width: int = 0  # characters at least, in a table that is printed row by row
    optional: bool = False  # left out where no row has anything in it


@dataclass(frozen=True)
class Table:
    """A title and rows; the first row is the head."""

    title: str
    rows: Sequence[Sequence[str] | None]  # one of one cell is a line of its own, None an empty line

    @classmethod
    def of(cls, title: str, columns: Sequence[Column[T]], items: Iterable[T]) -> Table:
        rows = [[column.cell(item) for column in columns] for item in items]
        shown = [
            index
            for index, column in enumerate(columns)
            if not column.optional or any(row[index] for row in rows)
        ]
        heads = [column.head for column in columns]
        return cls(title, [[row[index] for index in shown] for row in (heads, *rows)])

    @property
    def full_rows(self) -> list[Sequence[str]]:
        """The rows with as many cells as the first one, without empty lines: for Markdown and a
        page.
        """
        columns = len(self.rows[0] or ())
        return [[*row, *[""] * (columns - len(row))] for row in self.rows if row is not None]

    def lines(self, widest: int | None = None, wrap_at: int | None = None) -> list[str]:
        """Format the rows for a terminal: columns as wide as their cells, but no wider than
        `widest` before the next one. The last column continues on lines below where it would go
        beyond column `wrap_at`.

        >>> Table("", [("run", "loss"), ("sft-gpu8", "1.5"), None, ("of one stage",)]).lines()
        ['run       loss', 'sft-gpu8  1.5', '', 'of one stage']
        """
        table = [row or () for row in self.rows]
        columns = zip(*(row for row in table if len(row) > 1), strict=True)
        widths = [min(max(map(len, column)), widest or sys.maxsize) for column in columns]
        if wrap_at:
            room = max(20, wrap_at - sum(widths[:-1]) - 2 * len(widths[1:]))
            table = [line for row in table for line in _wrap_last(row, room)]
        cells = (row if len(row) < 2 else map(str.ljust, row, widths) for row in table)
        return ["  ".join(row).rstrip() for row in cells]

    def _repr_html_(self) -> str:
        """What a notebook shows: the rows without secrets, text on the left, where Jupyter's own
        style has numbers.
        """
        tags = ["th", *["td"] * (len(self.full_rows) - 1)]
        mask = process_redactor().redact_text
        rows = (
            "".join(f'<{tag} style="text-align: left">{escape(mask(cell))}</{tag}>' for cell in row)
            for tag, row in zip(tags, self.full_rows, strict=True)
        )
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def markdown(self) -> list[str]:
        """Format the rows as Markdown.

        >>> Table("", [["a|b", "c"], ["1", "2"]]).markdown()
        ['| a\\\\|b | c |', '| --- | --- |', '| 1 | 2 |']
        """
        head, *rows = self.full_rows
        return [_markdown_row(row) for row in (head, ["---"] * len(head), *rows)]


def format_row(columns: Sequence[Column[T]], item: T | None = None) -> str:
    """One row of a table that grows on a terminal; the head without an item."""
    cells = (column.head if item is None else column.cell(item) for column in columns)
    return "  ".join(
        cell.ljust(column.width) for cell, column in zip(cells, columns, strict=True)
    ).rstrip()


def format_number(value: float | None, form: str, unit: str = "") -> str:
    """Format a number and its unit, `-` where it is missing.

    >>> format_number(0.5, ".1%"), format_number(None, ".1f", " GiB")
    ('50.0%', '-')
    """
    return "-" if value is None else f"{value:{form}}{unit}"


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
    return (
        "| " + " | ".join(value.replace("|", "\\|").replace("\n", " ") for value in values) + " |"
    )


def _wrap_last(row: Sequence[str], room: int) -> Iterator[Sequence[str]]:
    """Yield a row with as much of its last cell as there is room for, then rows with the rest of
    it.
    """
    *before, last = row or ("",)
    for part in textwrap.wrap(last, room, break_long_words=False, break_on_hyphens=False) or [""]:
        yield (*before, part)
        before = [""] * len(before)
