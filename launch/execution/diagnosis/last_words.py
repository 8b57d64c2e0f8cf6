"""Keeps the end of each stream of a run, and finds what a process printed as it died without an exception."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from launch.execution.diagnosis.known import known
from launch.execution.diagnosis.tracebacks import CHAIN_LINKS, TRACEBACK
from launch.terminal import strip_escapes

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
        is_survived = TRACEBACK in line and bool(self.lines) and known().phrases["survived"].search(self.lines[-1])
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
            if self._lines_since <= _AFTER_TRACEBACK and not known().phrases["progress_bar"].search(line):
                self.traceback.append(line)  # perhaps the message's next line

    def _keep(self, line: str) -> None:
        self._lines_since = 0
        self.traceback.append(line)

    @property
    def ends_in_traceback(self) -> bool:
        """Whether the process printed little after its last traceback, so that it can have died of it."""
        return bool(self.traceback) and self._lines_since <= _AFTER_TRACEBACK

    def printed(self) -> list[str]:
        """Return the last lines without progress bars."""
        return [line for line in self.lines if not known().phrases["progress_bar"].search(line)]

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
