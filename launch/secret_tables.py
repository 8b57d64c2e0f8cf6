"""Finds secrets in the cells of a table below the name of a secret, and in the items of a list.

Such tables have cells between bars, tabs, commas or several spaces, as kubectl, psql, pandas and
Markdown show them, and files of CSV.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from launch.secret_blocks import lines_span
from launch.secret_names import is_secret, is_vague, looks_drawn, looks_random, name_strength
from launch.secret_shapes import Span

_Cells = list[tuple[int, int]]

_LONGEST_HEADER = 400  # bytes
_BAR = re.compile(rb"\||\xe2\x94[\x82\x83]|\xe2\x95\x91")
_RULE = re.compile(rb"(?:[ \t|+:=-]|\xe2[\x94\x95][\x80-\xbf]){3,}\r?")
_RULE_BELOW = re.compile(rb"\n" + _RULE.pattern + rb"(?:\n|\Z)")
_COLUMN_NAME = re.compile(rb"[A-Za-z_#][\w .#/%()-]{0,40}")
_CELL_OF_CSV = re.compile(rb"\"(?:[^\"\n]|\"\")*\"|[^,;\"\n]+|(?<![^,;\n])(?![^,;\n])")
_WORDS = re.compile(rb"\S+(?: \S+)*")
_WORD = re.compile(rb"\S+")
_ITEM = re.compile(rb"[^\s,'\"\[\]]+")


@dataclass(frozen=True)
class _Header:
    """The line of a table's header in the data, and the column of a secret."""

    first: int
    stop: int
    cells: _Cells
    index: int
    split: Callable[[bytes, int, int], _Cells]

    def cells_below(self, data: bytes, at: int, stop: int) -> _Cells | None:
        """Return the cells of the row in [at, stop) below the secret's name, None if it is no row."""
        row = self.split(data, at, stop)
        if self.split is not _split_words:
            return [row[self.index]] if len(row) == len(self.cells) else None
        if len(row) != len(self.cells):
            row = [word.span() for word in _WORD.finditer(data, at, stop)]
        if len(row) - len(self.cells) not in (0, 1):  # pandas shows an index
            return None
        begin = self.cells[self.index][0] - self.first + at
        end = self.cells[self.index][1] - self.first + at
        return [cell for cell in row if cell[0] < end and cell[1] > begin]


def column_spans(data: bytes, start: int, end: int) -> tuple[list[Span], range]:
    """Return the cells below the name of a secret at [start, end), and where the rows are.

    Without a table below the name the range is empty. If the table may continue after the data, the
    last span is empty and has the header.
    """
    header = _header_at(data, start, end)
    if header is None:
        return [], range(0)
    name, is_sure = _column_of(data, header)
    spans: list[Span] = []
    at = header.stop + 1
    while at < len(data):
        line = data.find(b"\n", at)
        line = line if line >= 0 else len(data)
        if not _RULE.fullmatch(data, at, line):
            below = header.cells_below(data, at, line)
            if below is None:
                return spans, range(header.stop, at)
            spans += _secret_cells(data, start, below, name, is_sure)
        at = line + 1
    kept = data[header.first : header.stop + 1]
    rule = b"---\n" if _RULE_BELOW.match(data, header.stop) else b""
    spans.append(Span(start, len(data), len(data), header=kept + rule))
    return spans, range(header.stop, len(data))


def item_spans(data: bytes, start: int, end: int, name: str) -> list[Span]:
    """Return the secrets among the lines of a list below a name; not every item is one.

    If the list may continue after the data, the last span is empty and has the name's line.
    """
    below = lines_span(data, start, end, name)
    if below is None:
        return []
    spans = items_between(data, start, below.start, below.end, name)
    if below.open_block is None:
        return spans
    first = data.rfind(b"\n", 0, start) + 1
    kept = data[first : data.find(b"\n", end) + 1]
    return [*spans, Span(start, len(data), len(data), header=kept)]


def items_between(data: bytes, start: int, first: int, stop: int, name: str) -> list[Span]:
    """Return the secrets among the items in [first, stop) of a list with a name."""
    items = _ITEM.finditer(data, first, stop)
    return [Span(start, *item.span()) for item in items if is_secret(name, _text(item[0]))]


def _header_at(data: bytes, start: int, end: int) -> _Header | None:
    """Return the header of a table that has a column of the name at [start, end)."""
    first = data.rfind(b"\n", 0, start) + 1
    stop = data.find(b"\n", end)
    if stop < 0 or stop - first > _LONGEST_HEADER:
        return None
    for split in (_split_bars, _split_tabs, _split_commas, _split_words):
        cells = split(data, first, stop)
        if len(cells) < 2:
            continue
        has_names = all(_COLUMN_NAME.fullmatch(_bare(data, cell)) for cell in cells)
        has_rule = stop + 1 >= len(data) or _RULE_BELOW.match(data, stop)
        if not has_names or (split is _split_bars and not has_rule):
            return None
        index = sum(cell[1] <= start for cell in cells)
        return _Header(first, stop, cells, index, split)
    return None


def _column_of(data: bytes, header: _Header) -> tuple[str, bool]:
    """Return a column's name, and whether any value below it is a secret, not a random one alone.

    Tables of tokens of text are frequent, and in the first column stand names.
    """
    name = re.sub(r"\W+", "_", _text(_bare(data, header.cells[header.index])))
    is_sure = name_strength(name) == 2 and header.index > 0
    if header.split is _split_words:
        is_sure = is_sure and len(header.cells) > 2
    return name, is_sure and not name.lower().endswith(("token", "tokens"))


def _secret_cells(data: bytes, start: int, cells: _Cells, name: str, is_sure: bool) -> list[Span]:
    spans = []
    for cell in cells:
        value = _bare(data, cell)
        text = _text(value)
        is_drawn = looks_drawn(text) if is_vague(name) else looks_random(text)
        if value and (is_drawn or is_sure) and is_secret(name, text):
            begin = data.index(value, cell[0])
            spans.append(Span(start, begin, begin + len(value)))
    return spans


def _split_bars(data: bytes, first: int, stop: int) -> _Cells:
    """Return the cells between bars, without what is outside of the first and the last bar."""
    cells = []
    at = first
    for bar in [*_BAR.finditer(data, first, stop), None]:
        end = bar.start() if bar else stop
        cells.append((at, end))
        at = bar.end() if bar else stop
    is_empty = [not data[slice(*cell)].strip() for cell in (cells[0], cells[-1])]
    return cells[is_empty[0] : len(cells) - is_empty[1]]


def _split_tabs(data: bytes, first: int, stop: int) -> _Cells:
    return [
        cell.span() for cell in re.compile(rb"[^\t]+|(?<=\t)(?=\t)").finditer(data, first, stop)
    ]


def _split_commas(data: bytes, first: int, stop: int) -> _Cells:
    cells = [cell.span() for cell in _CELL_OF_CSV.finditer(data, first, stop)]
    is_prose = any(data[cell[0] : cell[0] + 1] == b" " for cell in cells)
    return [] if is_prose else cells


def _split_words(data: bytes, first: int, stop: int) -> _Cells:
    """Return the parts between two spaces or more."""
    return [words.span() for words in _WORDS.finditer(data, first, stop)]


def _bare(data: bytes, cell: tuple[int, int]) -> bytes:
    """Return what stands in a cell, without quotes."""
    return data[slice(*cell)].strip().strip(b"\"'")


def _text(value: bytes) -> str:
    return value.decode("ascii", "replace")
