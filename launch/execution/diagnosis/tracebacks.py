"""Read the end of a process's log: its last chain of exceptions, or else its last lines.

A worker also reports the chain of exceptions that ended it.
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
_MOST_MESSAGE_LINES = 12  # lines of an exception's message in a log, where nothing marks its end
_EMBEDDED = "Original Traceback (most recent call last)"  # torch/_utils.py, ExceptionWrapper
# The worker itself writes the messages of these errors: they are shown without the class.
_WORKER_ERRORS = ("Unmet", "PatchError", "EntryError", "SystemExit")
_MOST_OUTER = 160  # characters of the outer error in a description


@dataclass(frozen=True)
class RaisedError:
    """One exception of a chain."""

    type: str  # the class, without its module; "" where a log line does not name one
    message: str  # may have several lines
    # Whether the next exception of the chain was raised while this one was handled.
    was_handled: bool = False
    packages: tuple[str, ...] = ()  # top-level packages of the frames that it passed through

    def __str__(self) -> str:
        message = one_line(self.message)
        if not self.type or self.type in _WORKER_ERRORS:
            return message
        return f"{self.type}: {message}" if message else self.type


def one_line(message: str) -> str:
    """Return the first line of a message, with the next one if the first ends in a colon."""
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
    if not isinstance(entries, list):
        entries = []
    chain = []
    for entry in entries:
        if not isinstance(entry, Mapping):
            continue
        error = RaisedError(
            str(entry.get("type", "")),
            str(entry.get("message", "")),
            entry.get("was_handled") is True,
            tuple(map(str, entry.get("packages") or ())),
        )
        chain.append(error)
    if not chain:
        error_type = str(data.get("type") or "")
        message = str(data.get("message", ""))
        chain.append(RaisedError(error_type, message))
    return _unfold(chain)


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
                was_handled = line.startswith(_HANDLING)
                chain.append(replace(error, was_handled=was_handled, packages=tuple(packages)))
            message = []
            packages = []
            is_in_frames = TRACEBACK in line
        elif is_in_frames and line.startswith((" ", "\t")):
            frame = _FRAME.match(line)
            if frame:
                packages.append(frame["package"])
        elif is_in_frames:
            message = [line]
            is_in_frames = False
        elif message and len(message) < _MOST_MESSAGE_LINES:
            message.append(line)
    return _unfold(chain)


def describe_chain(chain: Sequence[RaisedError], leading: RaisedError) -> str:
    """Describe a chain by its root error, and the one that ended the process if that is another."""
    outer = chain[-1]
    if outer is leading or str(outer) == str(leading):
        return str(leading)
    outer_text = outer.type
    message = outer.message.strip()
    if message:
        first_line = message.splitlines()[0].rstrip(": ")
        outer_text = f"{outer.type}: {first_line}"
    return f"{leading} (then {outer_text[:_MOST_OUTER]})"


def _unfold(chain: Sequence[RaisedError]) -> list[RaisedError]:
    """Replace an error that quotes the traceback of a data loader's worker by the errors of that
    traceback.
    """
    unfolded: list[RaisedError] = []
    for error in chain:
        quoted_chain = []
        if _EMBEDDED in error.message:
            _, _, quoted = error.message.partition(_EMBEDDED)
            quoted_chain = printed_chain([TRACEBACK, *quoted.splitlines()[1:]])
        unfolded += quoted_chain or [error]
    return unfolded


_MAX_LINES = 300  # lines that are kept of a stream, and of its last chain of tracebacks
_MAX_WIDTH = 400  # characters of a kept line
_LAST = 80  # lines at the end in which last words are searched: a C++ stack has about forty
_AFTER_TRACEBACK = 30  # most lines after the last traceback, if the process died of it
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")


@dataclass
class LogTail:
    """The end of one stream, and its last chain of tracebacks."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_LINES))
    traceback: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_LINES))
    traceback_time: float | None = None  # time at which its first exception was printed
    _in_frames: bool = False
    _lines_since: int = 0  # lines since the last line of the traceback

    def add(self, raw: str, now: float) -> None:
        """Add one line, printed at `now` (unix seconds)."""
        line = _RANK_PREFIX.sub("", raw) if raw.startswith("[rank") else raw
        line = strip_escapes(line)[:_MAX_WIDTH]
        begins_traceback = TRACEBACK in line and not self._announces_survived_error()
        self.lines.append(line)
        if begins_traceback:
            self._begin_traceback(line, now)
        elif self._in_frames:
            self._in_frames = line.startswith((" ", "\t"))
            self._add_to_traceback(line)
        elif self.traceback and line.startswith(CHAIN_LINKS):
            self._add_to_traceback(line)
        elif self.traceback:
            self._lines_since += 1
            if self._lines_since <= _AFTER_TRACEBACK and not _is_progress_bar(line):
                self.traceback.append(line)  # it may be the next line of the message

    def _announces_survived_error(self) -> bool:
        """Return whether the last line announces a traceback that did not end the process."""
        return bool(self.lines) and bool(known().phrases["survived"].search(self.lines[-1]))

    def _begin_traceback(self, line: str, now: float) -> None:
        """Begin a new chain, unless the lines before continue the last one."""
        previous_lines = list(self.traceback)[-2:]
        if not any(text.startswith(CHAIN_LINKS) for text in previous_lines):
            self.traceback.clear()
            self.traceback_time = now
        self._in_frames = True
        self._add_to_traceback(line)

    def _add_to_traceback(self, line: str) -> None:
        self._lines_since = 0
        self.traceback.append(line)

    @property
    def ends_in_traceback(self) -> bool:
        """Whether the process printed few lines after its last traceback, and may have died of
        it.
        """
        return bool(self.traceback) and self._lines_since <= _AFTER_TRACEBACK

    def printed(self) -> list[str]:
        """Return the last lines without progress bars."""
        return [line for line in self.lines if not _is_progress_bar(line)]

    def printed_before_kill(self) -> list[str]:
        """Return the last lines without progress bars and warnings, which do not explain a signal."""
        return [line for line in self.printed() if not known().phrases["warning"].search(line)]

    def last_line(self) -> str | None:
        """Return the last line that is not empty; None without one."""
        for line in reversed(self.printed()):
            if line.strip():
                return line.strip()
        return None

    def last_words(self) -> list[str]:
        """Return the last lines from the one that reports a fatal error on; [] without one."""
        last_lines = self.printed()[-_LAST:]
        for index, line in enumerate(last_lines):
            if known().phrases["fatal"].search(line):
                return last_lines[index:]
        return []


def _is_progress_bar(line: str) -> bool:
    return bool(known().phrases["progress_bar"].search(line))


def summarize_last_words(lines: Sequence[str]) -> str:
    """Return one line: what ended the process, with C++'s `what():` where there is one."""
    first_line = lines[0].strip()
    for line in lines:
        exception = line.strip()
        if exception.startswith("what():"):
            has_head = lines[0].startswith("terminate called")
            return f"{first_line} {exception}" if has_head else exception
    return first_line
