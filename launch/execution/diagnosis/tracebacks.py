"""What a dying process printed: the end of each stream, its chain of exceptions, and last words
where there is none.

A chain is one that a worker reports, or that Python prints.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launch.execution.diagnosis.known import known
from launch.terminal import strip_escapes

TRACEBACK = "Traceback (most recent call last)"
_HANDLING = "During handling of the above"
CHAIN_LINKS = (_HANDLING, "The above exception was the direct cause")
_ERROR = re.compile(r"(?P<type>[A-Za-z_]\w*(?:\.\w+)*)(?:: ?(?P<message>.*))?", re.DOTALL)
_FRAME = re.compile(r'\s+File "(?:.*/(?:(?:site|dist)-packages|python3\.\d+)/)?(?P<package>\w+)')
_MOST_MESSAGE_LINES = 12  # of one exception in a log, where nothing marks its end
_EMBEDDED = "Original Traceback (most recent call last)"  # torch/_utils.py, ExceptionWrapper
# errors whose message the worker wrote itself
_WORKER_ERRORS = ("Unmet", "PatchError", "EntryError", "SystemExit")
_MOST_OUTER = 160  # characters of the outer error in a description


@dataclass(frozen=True)
class RaisedError:
    """One exception of a chain."""

    type: str  # the class, without its module; "" where a log line does not name one
    message: str  # may have several lines
    # whether the next one of the chain was raised in its handler, not because of it
    was_handled: bool = False
    packages: tuple[str, ...] = ()  # of the frames that it passed through, by their top-level names

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
        RaisedError(
            str(entry.get("type", "")),
            str(entry.get("message", "")),
            entry.get("was_handled") is True,
            tuple(map(str, entry.get("packages") or ())),
        )
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping)
    ]
    return _unfold(
        chain or [RaisedError(str(data.get("type") or ""), str(data.get("message", "")))]
    )


def printed_chain(lines: Sequence[str]) -> list[RaisedError]:
    """Return the errors of a traceback as Python prints it, the root first; [] without one."""
    chain: list[RaisedError] = []
    message: list[str] = []
    packages: list[str] = []
    is_in_frames = False
    for line in [*lines, TRACEBACK]:
        if TRACEBACK in line or line.startswith(CHAIN_LINKS):
            if message:
                error = parse_error("\n".join(message))
                chain.append(
                    replace(error, was_handled=line.startswith(_HANDLING), packages=tuple(packages))
                )
            message, packages, is_in_frames = [], [], TRACEBACK in line
        elif is_in_frames and not line.startswith((" ", "\t")):
            message, is_in_frames = [line], False
        elif is_in_frames and (frame := _FRAME.match(line)):
            packages.append(frame["package"])
        elif message and len(message) < _MOST_MESSAGE_LINES:
            message.append(line)
    return _unfold(chain)


def describe_chain(chain: Sequence[RaisedError], leading: RaisedError) -> str:
    """Describe a chain by its root error, and the one that ended the process if that is another."""
    outer = chain[-1]
    if outer is leading or str(outer) == str(leading):
        return str(leading)
    what = (
        f"{outer.type}: {outer.message.strip().splitlines()[0].rstrip(': ')}"
        if outer.message.strip()
        else outer.type
    )
    return f"{leading} (then {what[:_MOST_OUTER]})"


def _unfold(chain: Sequence[RaisedError]) -> list[RaisedError]:
    """Replace an error that quotes the traceback of a data loader's worker by that traceback's own
    errors.
    """
    unfolded: list[RaisedError] = []
    for error in chain:
        _, found, quoted = error.message.partition(_EMBEDDED)
        inner = printed_chain([TRACEBACK, *quoted.splitlines()[1:]]) if found else []
        unfolded += inner or [error]
    return unfolded


_MAX_LINES = 300  # kept of a stream, and of its last chain of tracebacks
_MAX_WIDTH = 400  # characters of a kept line
_LAST = 80  # lines at the end that can be a process's last words: a C++ stack has about forty
_AFTER_TRACEBACK = 30  # lines that follow the last traceback at most, if the process died of it
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")


@dataclass
class LogTail:
    """The end of one stream, and its last chain of tracebacks."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_LINES))
    traceback: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_LINES))
    traceback_time: float | None = None  # when its first exception was printed
    _in_frames: bool = False
    _lines_since: int = 0  # the last line of the traceback

    def add(self, raw: str, now: float) -> None:
        """Add one line, printed at `now` (unix seconds)."""
        line = _RANK_PREFIX.sub("", raw) if raw.startswith("[rank") else raw
        line = strip_escapes(line)[:_MAX_WIDTH]
        is_survived = (
            TRACEBACK in line
            and bool(self.lines)
            and known().phrases["survived"].search(self.lines[-1])
        )
        self.lines.append(line)
        if TRACEBACK in line and not is_survived:
            if not any(text.startswith(CHAIN_LINKS) for text in list(self.traceback)[-2:]):
                self.traceback.clear()
                self.traceback_time = now
            self._in_frames = True
            self._keep(line)
        elif self._in_frames or (self.traceback and line.startswith(CHAIN_LINKS)):
            self._in_frames = self._in_frames and line.startswith((" ", "\t"))
            self._keep(line)
        elif self.traceback:
            self._lines_since += 1
            if self._lines_since <= _AFTER_TRACEBACK and not known().phrases["progress_bar"].search(
                line
            ):
                self.traceback.append(line)  # perhaps the message's next line

    def _keep(self, line: str) -> None:
        self._lines_since = 0
        self.traceback.append(line)

    @property
    def ends_in_traceback(self) -> bool:
        """Whether the process printed little after its last traceback, so that it can have died of
        it.
        """
        return bool(self.traceback) and self._lines_since <= _AFTER_TRACEBACK

    def printed(self) -> list[str]:
        """Return the last lines without progress bars."""
        return [line for line in self.lines if not known().phrases["progress_bar"].search(line)]

    def last_line(self) -> str | None:
        return next((line.strip() for line in reversed(self.printed()) if line.strip()), None)

    def last_words(self) -> list[str]:
        """Return what a dying process printed, from the line that says so; [] if no line does."""
        last = self.printed()[-_LAST:]
        for index, line in enumerate(last):
            if known().phrases["fatal"].search(line):
                return last[index:]
        return []


def summarize_last_words(lines: Sequence[str]) -> str:
    """Return one line: what ended the process, with C++'s `what():` where there is one."""
    what = next((line.strip() for line in lines if line.strip().startswith("what():")), None)
    if what is not None and not lines[0].strip().startswith("what():"):
        return f"{lines[0].strip()} {what}" if lines[0].startswith("terminate called") else what
    return lines[0].strip()
