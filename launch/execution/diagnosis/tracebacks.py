"""Parses chains of exceptions: those that a worker reports, and those that Python prints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

TRACEBACK = "Traceback (most recent call last)"
_HANDLING = "During handling of the above"
CHAIN_LINKS = (_HANDLING, "The above exception was the direct cause")
_ERROR = re.compile(r"(?P<type>[A-Za-z_]\w*(?:\.\w+)*)(?:: ?(?P<message>.*))?", re.DOTALL)
_MOST_MESSAGE_LINES = 12  # of one exception in a log, where nothing marks its end
_EMBEDDED = "Original Traceback (most recent call last)"  # torch/_utils.py, ExceptionWrapper
_WORKER_ERRORS = ("Unmet", "PatchError", "EntryError", "SystemExit")  # errors whose message the worker wrote itself
_MOST_OUTER = 160  # characters of the outer error in a description


@dataclass(frozen=True)
class RaisedError:
    """One exception of a chain."""

    type: str  # the class, without its module; "" where a log line does not name one
    message: str  # may have several lines
    was_handled: bool = False  # whether the next one of the chain was raised in its handler, not because of it

    def __str__(self) -> str:
        message = one_line(self.message)
        if not self.type or self.type in _WORKER_ERRORS:
            return message
        return f"{self.type}: {message}" if message else self.type


def one_line(message: str) -> str:
    """Return the first line of a message, with the next one where the first only announces it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    used = 1
    while used < len(lines) and lines[used - 1].endswith(":"):
        used += 1
    return " ".join(lines[:used])


def parse_error(text: str) -> RaisedError:
    """Parse `module.Type: message`, the last part of a traceback."""
    match = _ERROR.fullmatch(text.strip())
    if match is None:
        return RaisedError("", text.strip())
    return RaisedError(match["type"].rpartition(".")[2], match["message"] or "")


def event_chain(data: Mapping[str, Any]) -> list[RaisedError]:
    """Return the errors of an "error" event, the root first."""
    entries = data.get("chain")
    chain = [
        RaisedError(str(entry.get("type", "")), str(entry.get("message", "")), entry.get("was_handled") is True)
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping)
    ]
    return _unfold(chain or [RaisedError(str(data.get("type") or ""), str(data.get("message", "")))])


def printed_chain(lines: Sequence[str]) -> list[RaisedError]:
    """Return the errors of a traceback as Python prints it, the root first; [] without one."""
    chain: list[RaisedError] = []
    message: list[str] = []
    is_in_frames = False
    for line in [*lines, TRACEBACK]:
        if TRACEBACK in line or line.startswith(CHAIN_LINKS):
            if message:
                error = parse_error("\n".join(message))
                chain.append(replace(error, was_handled=line.startswith(_HANDLING)))
            message, is_in_frames = [], TRACEBACK in line
        elif is_in_frames and not line.startswith((" ", "\t")):
            message, is_in_frames = [line], False
        elif message and len(message) < _MOST_MESSAGE_LINES:
            message.append(line)
    return _unfold(chain)


def describe_chain(chain: Sequence[RaisedError], leading: RaisedError) -> str:
    """Describe a chain by its root error, and the one that ended the process if that is another."""
    outer = chain[-1]
    if outer is leading or str(outer) == str(leading):
        return str(leading)
    what = (
        f"{outer.type}: {outer.message.strip().splitlines()[0].rstrip(': ')}" if outer.message.strip() else outer.type
    )
    return f"{leading} (then {what[:_MOST_OUTER]})"


def _unfold(chain: Sequence[RaisedError]) -> list[RaisedError]:
    """Replace an error that quotes the traceback of a data loader's worker by that traceback's own errors."""
    unfolded: list[RaisedError] = []
    for error in chain:
        _, found, quoted = error.message.partition(_EMBEDDED)
        inner = printed_chain([TRACEBACK, *quoted.splitlines()[1:]]) if found else []
        unfolded += inner or [error]
    return unfolded
