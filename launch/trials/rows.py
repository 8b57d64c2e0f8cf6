"""Formats numbers and rows of tables, for a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def padded(values: Sequence[str], widths: Sequence[int]) -> str:
    """Format a row whose columns are at least `widths` characters wide."""
    return "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)).rstrip()


def format_number(value: float | None, form: str, unit: str = "") -> str:
    """Format a number and its unit, `-` where it is missing.

    >>> format_number(0.5, ".1%"), format_number(None, ".1f", " GiB")
    ('50.0%', '-')
    """
    return "-" if value is None else f"{value:{form}}{unit}"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Format a Markdown table, line by line.

    >>> markdown_table(["a|b", "c"], [["1", "2"]])
    ['| a\\\\|b | c |', '| --- | --- |', '| 1 | 2 |']
    """
    return [_line(heads), _line(["---"] * len(heads)), *(_line(row) for row in rows)]


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|").replace("\n", " ") for value in values) + " |"
