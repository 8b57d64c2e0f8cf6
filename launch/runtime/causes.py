"""Why a run failed, in a few lines: the earliest failing rank's own error, not the last of many."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from launch.runtime.events import Event

LINES = 15
_KEPT = 60  # lines of each stream
_WIDTH = 400  # characters of a kept line
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
_TRACEBACK = "Traceback (most recent call last)"
_CHAIN = ("During handling of the above", "The above exception was the direct cause")
_OWN_KINDS = ("Unmet", "PatchError", "SystemExit")  # the worker's own sentences
_ROOT = "Root Cause (first observed failure)"  # torch/distributed/elastic/multiprocessing/errors
_ROOT_RANK = re.compile(r"^\s+rank\s*: (\d+)")
_ROOT_EXIT = re.compile(r"^\s+exitcode\s*: (-?\d+)")


@dataclass(frozen=True)
class Cause:
    """`line`: one sentence. `detail`: at most 15 lines of the log it comes from. `rank`: None for the launcher."""

    line: str
    detail: tuple[str, ...] = ()
    rank: int | None = None


@dataclass
class _Tail:
    """The end of one stream, and its last traceback."""

    kept: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    block: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    began: float | None = None
    final: str = ""
    _open: bool = False

    def add(self, raw: str, now: float) -> None:
        line = _RANK_PREFIX.sub("", raw) if raw.startswith("[rank") else raw
        line = line[:_WIDTH]
        self.kept.append(line)
        if _TRACEBACK in line:
            chained = any(text.startswith(_CHAIN) for text in list(self.block)[-2:])
            if not chained:
                self.block.clear()
                self.began = now
            self._open = True
            self.block.append(line)
        elif self._open or (self.block and line.startswith(_CHAIN)):
            self.block.append(line)
            if self._open and not line.startswith((" ", "\t")):
                self._open, self.final = False, line


class CauseFinder:
    """Follows every stream and every error event; at the end it names the cause."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._tails = {rank: _Tail() for rank in ranks}
        self._launcher = _Tail()
        self._errors: list[Event] = []
        self._in_root = False
        self._root_rank: int | None = None
        self._root_exit: int | None = None

    def lines(self, rank: int, lines: Sequence[str], now: float) -> None:
        tail = self._tails[rank]
        for line in lines:
            tail.add(line, now)

    def launcher_lines(self, lines: Sequence[str], now: float) -> None:
        for line in lines:
            self._launcher.add(line, now)
            if _ROOT in line:
                self._in_root = True
            elif self._in_root and (match := _ROOT_RANK.match(line)):
                self._root_rank = int(match[1])
            elif self._in_root and (match := _ROOT_EXIT.match(line)):
                self._root_exit, self._in_root = int(match[1]), False

    def error(self, event: Event) -> None:
        if len(self._errors) < 1000:
            self._errors.append(event)

    def cause(self, status: int | None) -> Cause:
        """The best explanation. `status`: the launcher's exit status, None if it is not known."""
        if self._errors:
            first = min(self._errors, key=lambda event: event.time)
            kind, message = first.data.get("type"), str(first.data["message"])
            line = f"{kind}: {message}" if kind and kind not in _OWN_KINDS else message
            return _cause(line, first.rank, self._block(first.rank) or message.splitlines()[1:])
        rank = self._failing_rank()
        if rank is not None:
            tail = self._tails[rank]
            killed = _killed_by(self._root_exit) if rank == self._root_rank else None
            if killed:
                return _cause(f"rank {rank} {killed}", rank, list(tail.kept))
            if tail.block:
                return _cause(tail.final or tail.block[-1], rank, self._block(rank))
            return _cause(_last(tail) or _ended(status), rank, list(tail.kept))
        tail = self._launcher
        return _cause(tail.final or _last(tail) or _ended(status), None, list(tail.block or tail.kept))

    def _block(self, rank: int) -> list[str]:
        tail = self._tails.get(rank)
        return list(tail.block) if tail else []

    def _failing_rank(self) -> int | None:
        if self._root_rank in self._tails:
            return self._root_rank
        raised = [(tail.began, rank) for rank, tail in self._tails.items() if tail.began is not None]
        if raised:
            return min(raised)[1]
        if self._launcher.kept and self._launcher.block and "CalledProcessError" not in self._launcher.final:
            return None
        return next((rank for rank, tail in sorted(self._tails.items()) if tail.kept), None)


def _cause(line: str, rank: int | None, detail: Sequence[str]) -> Cause:
    first = next((text.strip() for text in line.splitlines() if text.strip()), line)
    return Cause(first[:_WIDTH], tuple(_without_runpy(detail))[-LINES:], rank)


def _without_runpy(lines: Sequence[str]) -> Sequence[str]:
    """A traceback without its outermost frames, the worker's and runpy's: the trainer's own come after them."""
    frames = [index for index, text in enumerate(lines) if "<frozen runpy>" in text]
    return [lines[0], *lines[frames[-1] + 1 :]] if frames and _TRACEBACK in lines[0] else lines


def _last(tail: _Tail) -> str:
    return tail.kept[-1].strip() if tail.kept else ""


def _killed_by(exitcode: int | None) -> str | None:
    if exitcode is None or exitcode >= 0:
        return None
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _ended(status: int | None) -> str:
    if status is None:
        return "the process that watches over the run disappeared"
    killed = _killed_by(status)
    return f"the launcher {killed}" if killed else f"the launcher ended with status {status}"
