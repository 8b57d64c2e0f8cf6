"""Reads the rows of CSV and TSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from launch.errors import refusal
from launch.worker.finding import Finding

_DELIMITERS = ";\t|"  # delimiters of a .csv file without a comma in its first line
_SEPARATOR_LINE = re.compile('"?sep=(.)"?', re.IGNORECASE)  # that Excel reads, and writes
_QUOTING = (
    "quote values that contain the delimiter, a quote or a line end, and write each quote in them "
    'twice: "say ""so"""'
)


def read_csv(
    lines: Iterator[tuple[int, str]], path: Path, delimiter: str, longest: int
) -> Iterator[tuple[str, dict[str, str] | Finding]]:
    """Yield the place and the columns of each row after the line that names the columns; a Finding
    for rows that a stray quote may have joined.

    A column without a name, such as an index, is left out. `longest` is the largest number of
    characters of a value. Raises UserError: data_not_parsed.
    """
    csv.field_size_limit(longest)
    # the number of the line with the names
    above, first_line = next(lines, (1, ""))
    separator = _SEPARATOR_LINE.fullmatch(first_line.rstrip("\r\n"))
    if separator:
        delimiter = separator[1]
        above, first_line = next(lines, (above, ""))
    elif delimiter == "," and "," not in first_line and set(_DELIMITERS) & set(first_line):
        delimiter = max(_DELIMITERS, key=first_line.count)
    # spaces after the delimiters of the first line do not belong to the values
    has_spaces = f"{delimiter} " in first_line
    texts = chain([first_line] if first_line else [], (text for _, text in lines))
    reader = csv.reader(texts, delimiter=delimiter, strict=True, skipinitialspace=has_spaces)
    row_start = above
    try:
        names = [name.strip() for name in next(reader, [])]
        if not names:
            return
        named = [name for name in names if name]
        has_duplicates = len(set(named)) < len(named)
        if has_duplicates or not named:
            listed = ", ".join(map(repr, names))
            message = f"the first line must name the columns, each once; it has {listed}"
            raise refusal("data_not_parsed", message, f"{path}:{above}")
        row_start = reader.line_num + above
        for values in reader:
            place = f"{path}:{row_start}"
            lines_read = reader.line_num + above - row_start
            row_start = reader.line_num + above
            if not values:
                continue
            if len(values) != len(names):
                message = f"the row has {len(values)} columns, the first line names {len(names)}"
                raise refusal("data_not_parsed", message, place, _QUOTING)
            if lines_read > 1 and _reads_as_rows(values, delimiter):
                yield place, _joined_rows(place, lines_read)
                continue
            columns = {name: value for name, value in zip(names, values, strict=True) if name}
            yield place, columns
    except csv.Error as error:
        is_open = "unexpected end" in str(error)  # the value whose quote is not closed
        where = f"{path}:{row_start if is_open else reader.line_num + above - 1}"
        raise refusal("data_not_parsed", f"not CSV: {error}", where, _QUOTING) from error


def _reads_as_rows(values: list[str], delimiter: str) -> bool:
    """Return whether each line of a row of several lines has the delimiters of a whole row.

    A quote at the start of a value joins its row with the following rows, up to one whose value
    ends with a quote. A single comma or semicolon does not count, nor does one that a space or the
    line's end follows, as in prose and code. Texts have no tabs.
    """
    lines = delimiter.join(values).split("\n")
    expected = len(values) - 1
    if any(line.count(delimiter) != expected for line in lines):
        return False
    found = (len(lines) - 1) * expected
    if delimiter == "\t":
        return found > 0
    is_prose = any(f"{delimiter} " in line or line.endswith(delimiter) for line in lines)
    return found > 1 and not is_prose


def _joined_rows(place: str, lines: int) -> Finding:
    message = (
        f"{lines} lines are one row with a quoted value, and each of them reads as a row: a quote "
        "at the start of a value joins rows up to the next quote"
    )
    cure = f"{_QUOTING}; or write the rows as .jsonl, which has no such quotes"
    return Finding.error("data_not_parsed", message, place, cure)
