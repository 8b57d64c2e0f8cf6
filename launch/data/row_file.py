"""Writes converted rows to the file that a trainer's loader reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

_FIRST_BYTES = 8 << 20  # less than what the loader reads first


def encode_row(columns: Mapping[str, Any]) -> bytes:
    """Return the line of a converted row. Its texts can be encoded; of columns that only a verifier
    gets, what can't is written as `?`.
    """
    return json.dumps(columns, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class RowFile:
    """Writes rows as JSON lines.

    The loader decides by the first 10 MiB whether all turns have the same keys
    (datasets/packaged_modules/json/json.py, chunksize), and fails at a later turn that has others,
    such as a call of a tool. The first row with such a turn is therefore put first if it is far
    below.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self._rows = 0
        self._keys: set[str] | None = None  # of the turns before the first that has others
        self._is_settled = False
        self._moved: tuple[int, int, bytes] | None = None  # the row, its first byte, its line

    def write(self, columns: Mapping[str, Any]) -> bytes:
        """Write a row, and return its line."""
        line = encode_row(columns)
        if not self._is_settled:
            for turn in _turns_of(columns):
                self._keys = self._keys or set(turn)
                self._is_settled = self._is_settled or set(turn) != self._keys
            start = self._stream.tell()
            if self._is_settled and start > _FIRST_BYTES:
                self._moved = (self._rows, start, line)
        self._stream.write(line)
        self._rows += 1
        return line

    def finish(self) -> int:
        """Order the rows of the closed file; return the number of the one that is first now."""
        if self._moved is None:
            return 0
        number, start, line = self._moved
        rest = self._path.with_name(".rest")
        with self._path.open("rb") as stream, rest.open("wb") as written:
            written.write(line)
            position = 0
            for other in stream:
                if position != start:
                    written.write(other)
                position += len(other)
        rest.replace(self._path)
        return number


def _turns_of(columns: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for turns in columns.values():
        for turn in turns if isinstance(turns, list) else ():
            if isinstance(turn, dict):
                yield turn
