"""Prints what neither controls the terminal nor shows a secret, whatever a trainer, a file or a
name contains.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from launch.files import encode_json
from launch.redact import process_redactor

# ECMA-48: CSI, OSC and the other strings (ended by BEL or ST; an unclosed one ends with its line),
# two-byte escapes
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
# the same in bytes of any encoding; what a cut leaves of one is made harmless by the removal of its
# ESC
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
    """Remove escape sequences, and replace every other control character but tab and newline by a
    visible `\\xNN`.
    """
    if text.isprintable():
        return text
    return _CONTROLS.sub(
        lambda match: match[0].encode("unicode_escape").decode("ascii"), strip_escapes(text)
    )


def clean(text: str) -> str:
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
    """Print without secrets and control characters; `coloured`: the text's escape sequences are
    ours.
    """
    shown = process_redactor().redact_text(str(text)) if coloured else clean(str(text))
    print(shown, end=end, file=file, flush=flush)


def print_json(value: object, indent: int | None = 2) -> None:
    """Print a value as JSON without secrets; what would control a terminal is escaped."""
    print(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", encode_json(value, indent)))


def notify(text: str) -> None:
    """Print a sentence for the user on stderr, at once: what a wait waits for, what is refused.
    Long values are cut.

    On a full disk, or without a reader, it is lost: that changes neither a run nor the exit code.
    """
    try:
        print(f"launch: {shorten(clean(text))}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def format_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 0, 1`."""
    return (
        f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(str(rank) for rank in ranks)
    )


def shorten(text: str) -> str:
    """Cut out the middle of every run of more than 320 characters without a space: a value, not a
    path or a key.
    """
    return re.sub(r"(\S{200})\S{80,}(\S{40})", r"\1...\2", text)


def printable_bytes(data: bytes) -> bytes:
    """Remove escape sequences and control characters but NUL, tab, newline and CR from the bytes of
    a log.
    """
    return _BYTE_ESCAPES.sub(b"", data)
