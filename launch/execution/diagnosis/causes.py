"""Finds why a run failed: the error of the rank that failed first, not the last of many.

A rank's exceptions are known from the event that its worker sends, else from the traceback at the
end of its log. Where there is none (a signal, a watchdog, an abort in C++) its last lines count.
The rest of a log never does.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from launch.execution.diagnosis.advice import Cure, Situation, cure_for_errors, cure_for_lines
from launch.execution.diagnosis.known import known
from launch.execution.diagnosis.tracebacks import (
    TRACEBACK,
    LogTail,
    RaisedError,
    describe_chain,
    event_chain,
    one_line,
    parse_error,
    printed_chain,
    summarize_last_words,
)
from launch.execution.record.events import Event
from launch.terminal import format_ranks, printable

DETAIL_LINES = 15
_MAX_LINE = 400  # characters of a cause
# a row of the table in torch/distributed/elastic/multiprocessing/errors, and the head of its last
# one
_FAILED = re.compile(r"^ +rank *: (?P<rank>\d+).*\n +exitcode *: (?P<code>-?\d+)", re.MULTILINE)
_ROOT = "Root Cause (first observed failure)"
# subprocess.CalledProcessError, which accelerate raises for its only process
_CHILD_EXIT = re.compile(
    r"CalledProcessError: .*(?:died with <Signals\.\w+: (\d+)>|non-zero exit status (\d+))"
)
# neither SIGTERM, with which elastic ends the other ranks, nor SIGABRT, with which NCCL's watchdog
# ends its own rank
_SYSTEM_KILLS = tuple(
    -getattr(signal, name)
    for name in ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL")
    if hasattr(signal, name)
)
_NOT_STARTED = 127  # the status of a command that could not be started (supervise/reaper.py)
# torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
_WATCHDOG = "Watchdog caught collective operation timeout"
_NCCL_WORK = re.compile(r"WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+)")
_GLOO_TIMEOUT = re.compile(r"Timed out waiting (?P<milliseconds>\d+)ms for \w+ operation")
_COLLECTIVE = re.compile(
    r"\b(all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|barrier|all_to_all\w*|reduce|gather)\("
)


@dataclass(frozen=True)
class Cause:
    """Why a run failed."""

    line: str  # one sentence
    detail: tuple[str, ...] = ()  # at most 15 lines of the log that it comes from
    rank: int | None = None  # None for the launcher
    cure: Cure | None = None  # None for an unknown cause


class CauseFinder:
    """Follows every stream and every error event, and finds the cause at the end."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._tails = {rank: LogTail() for rank in ranks}
        self._launcher = LogTail()
        self._errors: list[Event] = []
        self._nccl_timeouts: dict[
            int, str
        ] = {}  # rank -> the NCCL collective in which it timed out
        self._exits: dict[
            int, int
        ] = {}  # rank -> exit code, from elastic's table or from accelerate
        self._root_rank: int | None = None

    def add_lines(self, rank: int, lines: Sequence[str], now: float) -> None:
        tail = self._tails[rank]
        for line in lines:
            tail.add(line, now)
            if _WATCHDOG in line and (work := _NCCL_WORK.search(line)):
                self._nccl_timeouts.setdefault(rank, f"{work['kind']} number {work['number']}")

    def add_launcher_lines(self, lines: Sequence[str], now: float) -> None:
        for line in lines:
            self._launcher.add(line, now)
            if len(self._tails) == 1 and (match := _CHILD_EXIT.search(line)):
                (self._root_rank,) = self._tails
                self._exits[self._root_rank] = -int(match[1]) if match[1] else int(match[2])

    def _read_exits(self) -> None:
        """Read from elastic's table, in the launcher's last lines, how its ranks ended, and which
        failed first.
        """
        text = "\n".join(self._launcher.lines)
        for match in _FAILED.finditer(text):
            self._exits[int(match["rank"])] = int(match["code"])
            if _ROOT in text[: match.start()]:
                self._root_rank = int(match["rank"])

    def add_error(self, event: Event) -> None:
        if len(self._errors) < 1000:
            self._errors.append(event)

    def unmet_expectation(self) -> str | None:
        """Return the id of the expectation for which the worker stopped the run; None if something
        else ended it.
        """
        first = min(self._errors, key=lambda event: event.time, default=None)
        if first is None or first.data.get("type") != "Unmet":
            return None
        ids = first.data.get("ids")
        return str(ids[0]) if isinstance(ids, list) and ids else "unmet"

    def find_cause(self, status: int | None, situation: Situation | None = None) -> Cause:
        """Return the best explanation with its cure.

        `status`: the launcher's exit status, None if unknown.
        """
        self._situation = situation or Situation()
        self._read_exits()
        if (first := self._first_error()) is not None:
            if _has_lost_peer(event_chain(first.data)) and (silent := self._find_silent()):
                return silent
            return self._explain_gloo_timeout(first) or self._explain_event(first)
        if self._nccl_timeouts:
            return self._explain_nccl_timeout()
        rank = self._failing_rank()
        return self._explain_end(rank) or self._explain_exit(status, rank)

    def _explain_exit(self, status: int | None, rank: int | None) -> Cause:
        """Explain a run by its launcher's exit status, with the last line of the rank that may have
        failed.
        """
        tail = self._launcher if rank is None else self._tails[rank]
        ending = _describe_exit(status)
        if status is not None and status < 0:
            return _build_cause(ending, None, tail.printed(), self._killed_cure(status))
        if status == _NOT_STARTED and (last := tail.last_line()):  # the reaper has printed why
            return _build_cause(last, None, tail.printed())
        return _unknown_cause(
            ending, "its last line" if rank is None else f"the last line of rank {rank}", tail
        )

    def _first_error(self) -> Event | None:
        """Return the earliest error that is not merely the loss of another rank, else the earliest
        of all.
        """
        ordered = sorted(self._errors, key=lambda event: event.time)
        own = [event for event in ordered if not _has_lost_peer(event_chain(event.data))]
        return next(iter(own or ordered), None)

    def _explain_end(self, rank: int | None) -> Cause | None:
        """Explain the end of a rank, or of the launcher, that reported no error; None if nothing is
        known of it.
        """
        tail, code = (
            (self._launcher, None) if rank is None else (self._tails[rank], self._exits.get(rank))
        )
        chain = printed_chain(tail.traceback) if tail.ends_in_traceback else []
        if rank is not None and _has_lost_peer(chain) and (silent := self._find_silent()):
            return silent
        was_killed = code is not None and code < 0 and code != -signal.SIGABRT
        if chain and not was_killed:
            return self._explain_chain(chain, rank, list(tail.traceback))
        if rank is not None and code is not None:
            return self._explain_silent(rank, code)
        words = tail.last_words()
        return self._explain_words(words, rank, None) if words else None

    def _explain_silent(self, rank: int, code: int) -> Cause:
        """Explain a rank that ended with this code and no exception."""
        tail = self._tails[rank]
        words = tail.last_words()
        ending = f"rank {rank} {_describe_code(code)}"
        if words:
            return self._explain_words(words, rank, ending if code < 0 else None)
        if code >= 0:
            return replace(_unknown_cause(ending, "its last line", tail), rank=rank)
        return _build_cause(ending, rank, tail.printed(), self._killed_cure(code))

    def _explain_event(self, event: Event) -> Cause:
        chain, tail = event_chain(event.data), self._tails.get(event.rank)
        if (
            event.data.get("type") == "SystemExit"
            and tail is not None
            and (words := tail.last_words())
        ):
            # argparse prints its message, and exits with 2
            return self._explain_words(words, event.rank, None)
        message = str(event.data["message"])
        traceback = list(tail.traceback) if tail is not None and tail.ends_in_traceback else []
        return self._explain_chain(chain, event.rank, traceback or message.splitlines()[1:])

    def _find_silent(self) -> Cause | None:
        """Explain the first rank that the system killed, or that aborted: the others only lost
        their connection.
        """
        for rank, code in sorted(self._exits.items()):
            has_aborted = (
                code == -signal.SIGABRT
                and rank in self._tails
                and bool(self._tails[rank].last_words())
            )
            if rank in self._tails and (code in _SYSTEM_KILLS or has_aborted):
                return self._explain_silent(rank, code)
        return None

    def _explain_nccl_timeout(self) -> Cause:
        """Explain an NCCL time-out: ranks that report it had entered the collective; the others had
        not.
        """
        rank = min(self._nccl_timeouts)
        line = (
            "NCCL timeout: "
            f"{_describe_waiting(self._nccl_timeouts)}{self._describe_absent(set(self._nccl_timeouts))}"
        )
        detail = [text for text in self._tails[rank].lines if _WATCHDOG in text][:1]
        return _build_cause(line, rank, detail, cure_for_lines([line], self._situation))

    def _explain_gloo_timeout(self, first: Event) -> Cause | None:
        """Explain a gloo time-out, which names neither collective nor rank: the traceback and the
        other ranks do.
        """
        match = _GLOO_TIMEOUT.search(str(first.data["message"]))
        if match is None:
            return None
        arrived = {event.rank for event in self._errors}
        tail = self._tails.get(first.rank)
        traceback = list(tail.traceback) if tail else []
        called = [call[1] for text in traceback if (call := _COLLECTIVE.search(text))]
        name = called[0] if called else "a collective"
        seconds = int(match["milliseconds"]) / 1000
        line = (
            f"a collective timed out after {seconds:g} s: "
            f"{_describe_waiting(dict.fromkeys(arrived, name))}"
        )
        line += self._describe_absent(arrived)
        return _build_cause(line, first.rank, traceback, cure_for_lines([line], self._situation))

    def _describe_absent(self, arrived: set[int]) -> str:
        absent = sorted(set(self._tails) - arrived)
        return f"; {format_ranks(absent)} had not arrived" if absent else ""

    def _failing_rank(self) -> int | None:
        if self._root_rank in self._tails:
            return self._root_rank
        raised = [
            (tail.traceback_time or 0.0, rank)
            for rank, tail in self._tails.items()
            if tail.ends_in_traceback
        ]
        if raised:
            return min(raised)[1]
        launcher_error = printed_chain(self._launcher.traceback)
        if launcher_error and launcher_error[-1].type not in (
            "CalledProcessError",
            "ChildFailedError",
        ):
            return None
        spoken = [rank for rank, tail in sorted(self._tails.items()) if tail.lines]
        return next(
            (rank for rank in spoken if self._tails[rank].last_words()), next(iter(spoken), None)
        )

    def _explain_chain(
        self, chain: Sequence[RaisedError], rank: int | None, detail: Sequence[str]
    ) -> Cause:
        found = cure_for_errors(chain, self._situation)
        leading, cure = found if found is not None else (chain[0], None)
        return _build_cause(describe_chain(chain, leading), rank, detail, cure)

    def _explain_words(self, words: Sequence[str], rank: int | None, ending: str | None) -> Cause:
        summary = summarize_last_words(words)
        cure = cure_for_errors([parse_error(summary)], self._situation)
        line, shown = f"{ending}: {summary}" if ending else summary, words[:DETAIL_LINES]
        return _build_cause(
            line, rank, shown, cure[1] if cure else cure_for_lines([summary], self._situation)
        )

    def _killed_cure(self, code: int) -> Cure | None:
        return cure_for_lines([_describe_code(code)], self._situation)


def _has_lost_peer(chain: Sequence[RaisedError]) -> bool:
    return any(known().phrases["peer_died"].search(error.message) for error in chain)


def _build_cause(
    line: str, rank: int | None, detail: Sequence[str], cure: Cure | None = None
) -> Cause:
    lines = [printable(text) for text in _drop_runpy_frames(detail)]
    return Cause(
        printable(one_line(line) or line)[:_MAX_LINE], tuple(lines[-DETAIL_LINES:]), rank, cure
    )


def _unknown_cause(ending: str, whose: str, tail: LogTail) -> Cause:
    last = tail.last_line()
    return _build_cause(
        f"{ending}, for an unknown reason{f'; {whose}: {last}' if last else ''}",
        None,
        tail.printed(),
    )


def _drop_runpy_frames(lines: Sequence[str]) -> Sequence[str]:
    """Drop the outermost frames of a traceback, the worker's and runpy's, which precede the
    trainer's own.
    """
    frames = [index for index, text in enumerate(lines) if "<frozen runpy>" in text]
    return [lines[0], *lines[frames[-1] + 1 :]] if frames and TRACEBACK in lines[0] else lines


def _describe_waiting(places: Mapping[int, str]) -> str:
    """Render `ranks 0, 2 waited in ALLREDUCE number 5`, one part per collective."""
    groups: dict[str, list[int]] = {}
    for rank, place in sorted(places.items()):
        groups.setdefault(place, []).append(rank)
    return ", ".join(f"{format_ranks(ranks)} waited in {place}" for place, ranks in groups.items())


def _describe_code(code: int) -> str:
    if code >= 0:
        return f"exited with status {code} and no error message"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "the process that supervises the run disappeared"
    return (
        f"the launcher {_describe_code(status)}"
        if status < 0
        else f"the launcher exited with status {status}"
    )
