"""Prints text without secrets and without characters that control the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from launch.files import encode_json
from launch.redact import process_redactor

# The escape sequences of ECMA-48: CSI, OSC and the other strings (ended by BEL or ST; an unclosed
# one ends with its line), and two-byte escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
# The same sequences in bytes of any encoding. The removal of its ESC makes a sequence harmless that
# was cut in two.
_BYTE_ESCAPES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
    rb"|\xc2[\x80-\x9f]"
    rb"|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]|[\x01-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
# Control characters, except tab and newline.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def strip_escapes(text: str) -> str:
    """Remove terminal escape sequences (colours, titles, cursor movements) from `text`."""
    if "\x1b" not in text and text.isascii():
        return text
    return _ESCAPES.sub("", text)


def printable(text: str) -> str:
    """Remove escape sequences, and replace other control characters by a visible `\\xNN`.

    Tab and newline are kept.
    """

    def escape(match: re.Match[str]) -> str:
        return match[0].encode("unicode_escape").decode("ascii")

    if text.isprintable():
        return text
    return _CONTROLS.sub(escape, strip_escapes(text))


def join_lines(text: str) -> str:
    """Return `text` with a space in place of each line break."""
    return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text.strip("\r\n")


def clean_text(text: str) -> str:
    """Return `text` without secrets and `printable`."""
    return printable(process_redactor().redact_text(text))


def echo(
    text: object = "",
    *,
    end: str = "\n",
    file: TextIO | None = None,
    flush: bool = False,
    coloured: bool = False,
) -> None:
    """Print without secrets and control characters; `coloured` text keeps its escape sequences."""
    masked = process_redactor().redact_text(str(text))
    print(masked if coloured else printable(masked), end=end, file=file, flush=flush)


def print_json(value: object, indent: int | None = 2) -> None:
    """Print a value as JSON without secrets; what would control a terminal is escaped."""

    def escape(match: re.Match[str]) -> str:
        return f"\\u{ord(match[0]):04x}"

    print(_CONTROLS.sub(escape, encode_json(value, indent)))


def notify(text: str) -> None:
    """Print a sentence for the user on stderr at once, such as a warning; long values are cut.

    On a full disk, or without a reader, it is lost: that changes neither a run nor the exit code.
    """
    try:
        print(f"launch: {shorten(clean_text(text))}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def format_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 0, 1`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks))}"


def shorten(text: str) -> str:
    """Cut out the middle of every run of more than 320 characters without a space.

    Paths and keys are shorter, so that only values are cut.
    """
    return re.sub(r"(\S{200})\S{80,}(\S{40})", r"\1...\2", text)


def printable_bytes(data: bytes) -> bytes:
    """Remove escape sequences and control characters from the bytes of a log.

    NUL, tab, newline and CR are kept.
    """
    return _BYTE_ESCAPES.sub(b"", data)
