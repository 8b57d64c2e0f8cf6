"""Prints what neither controls the terminal nor shows a secret, whatever a trainer, a file or a name contains."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from launch.files import encode_json
from launch.redact import process_redactor

# ECMA-48: CSI, OSC and the other strings (ended by BEL or ST; an unclosed one ends with its line), two-byte escapes
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
# the same in bytes of any encoding; what a cut leaves of one is made harmless by the removal of its ESC
_BYTE_ESCAPES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|\xc2[\x80-\x9f]"
    rb"|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]|[\x01-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
# tab and newline may stay
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def strip_escapes(text: str) -> str:
    """Remove terminal escape sequences (colours, titles, cursor movements) from `text`."""
    return _ESCAPES.sub("", text) if "\x1b" in text or not text.isascii() else text


def printable(text: str) -> str:
    """Remove escape sequences, and replace every other control character but tab and newline by a visible `\\xNN`."""
    if text.isprintable():
        return text
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), strip_escapes(text))


def clean(text: str) -> str:
    """Return `text` without secrets and `printable`."""
    return printable(process_redactor().redact_text(text))


def echo(
    text: object = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False, coloured: bool = False
) -> None:
    """Print without secrets and control characters; `coloured`: the text's escape sequences are ours."""
    shown = process_redactor().redact_text(str(text)) if coloured else clean(str(text))
    print(shown, end=end, file=file, flush=flush)


def print_json(value: object, indent: int | None = 2) -> None:
    """Print a value as JSON without secrets; what would control a terminal is escaped."""
    print(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", encode_json(value, indent)))


def notify(text: str) -> None:
    """Print a sentence for the user on stderr, at once: what a wait waits for, what is refused. Long values are cut.

    On a full disk, or without a reader, it is lost: that changes neither a run nor the exit code.
    """
    try:
        print(f"launch: {shorten(clean(text))}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def align_columns(
    rows: Iterable[Sequence[str] | None], widest: int | None = None, wrap_at: int | None = None
) -> list[str]:
    """Format a table whose columns are as wide as their cells, but no wider than `widest` before the next one.

    A row of one cell is a line of its own, and None an empty line. The last column continues on lines below where it
    would go beyond column `wrap_at`.

    >>> align_columns([("run", "loss"), ("sft-gpu8", "1.5"), None, ("of one stage",)])
    ['run       loss', 'sft-gpu8  1.5', '', 'of one stage']
    """
    table = [row or () for row in rows]
    columns = zip(*(row for row in table if len(row) > 1), strict=True)
    widths = [min(max(map(len, column)), widest or sys.maxsize) for column in columns]
    if wrap_at:
        room = max(20, wrap_at - sum(widths[:-1]) - 2 * len(widths[1:]))
        table = [line for row in table for line in _wrap_last(row, room)]
    cells = (row if len(row) < 2 else map(str.ljust, row, widths) for row in table)
    return ["  ".join(row).rstrip() for row in cells]


def _wrap_last(row: Sequence[str], room: int) -> Iterator[Sequence[str]]:
    """Yield a row with as much of its last cell as there is room for, then rows with the rest of it."""
    *before, last = row or ("",)
    for part in textwrap.wrap(last, room, break_long_words=False, break_on_hyphens=False) or [""]:
        yield (*before, part)
        before = [""] * len(before)


def format_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 0, 1`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(str(rank) for rank in ranks)


def shorten(text: str) -> str:
    """Cut out the middle of every run of more than 320 characters without a space: a value, not a path or a key."""
    return re.sub(r"(\S{200})\S{80,}(\S{40})", r"\1...\2", text)


def printable_bytes(data: bytes) -> bytes:
    """Remove escape sequences and control characters but NUL, tab, newline and CR from the bytes of a log."""
    return _BYTE_ESCAPES.sub(b"", data)
