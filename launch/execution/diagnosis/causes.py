"""Find why a run failed: the error of the rank that failed first, which is not the last one printed.

The exceptions of a rank come from the event that its worker sends, else from the traceback at the
end of its log. Where there is none (a signal, a watchdog, an abort in C++), the last lines of the
log are searched. The rest of a log is not.
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
_MAX_ERRORS = 1000  # error events that are kept
# A row in the table that torch elastic prints (torch/distributed/elastic/multiprocessing/errors),
# and the title of the part of it with the rank that failed first.
_FAILED = re.compile(r"^ +rank *: (?P<rank>\d+).*\n +exitcode *: (?P<code>-?\d+)", re.MULTILINE)
_ROOT = "Root Cause (first observed failure)"
# accelerate raises subprocess.CalledProcessError if its only process fails.
_CHILD_EXIT = re.compile(
    r"CalledProcessError: .*(?:died with <Signals\.\w+: (\d+)>|non-zero exit status (\d+))"
)
_LAUNCHER_ERRORS = ("CalledProcessError", "ChildFailedError")  # raised because a rank failed
# Exit codes of a process that the system killed. They do not include SIGTERM, with which elastic
# ends the other ranks, and SIGABRT, with which NCCL's watchdog ends its own rank.
_SYSTEM_KILLS = tuple(
    -getattr(signal, name)
    for name in ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL")
    if hasattr(signal, name)
)
_NOT_STARTED = 127  # the status of a command that could not be started (supervise/reaper.py)
# The message of NCCL's watchdog (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
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
    detail: tuple[str, ...] = ()  # the lines of the log that show it, at most DETAIL_LINES
    rank: int | None = None  # None for the launcher
    cure: Cure | None = None  # None for an unknown cause


class CauseFinder:
    """Follows every stream and every error event, and finds the cause at the end."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._tails = {rank: LogTail() for rank in ranks}
        self._launcher = LogTail()
        self._situation = Situation()  # the facts from which cures are computed
        self._errors: list[Event] = []
        self._nccl_timeouts: dict[int, str] = {}  # the collective in which each rank timed out
        # The exit codes by rank, from elastic's table or from accelerate.
        self._exits: dict[int, int] = {}
        self._root_rank: int | None = None  # the rank that failed first

    def add_lines(self, rank: int, lines: Sequence[str], now: float) -> None:
        """Add lines that a rank printed at `now` (unix seconds)."""
        tail = self._tails[rank]
        for line in lines:
            tail.add(line, now)
            work = _NCCL_WORK.search(line) if _WATCHDOG in line else None
            if work:
                self._nccl_timeouts.setdefault(rank, f"{work['kind']} number {work['number']}")

    def add_launcher_lines(self, lines: Sequence[str], now: float) -> None:
        """Add lines that the launcher printed at `now` (unix seconds)."""
        for line in lines:
            self._launcher.add(line, now)
            match = _CHILD_EXIT.search(line) if len(self._tails) == 1 else None
            if match:
                [rank] = self._tails
                self._root_rank = rank
                self._exits[rank] = -int(match[1]) if match[1] else int(match[2])

    def _read_exits(self) -> None:
        """Read how the ranks ended, and which failed first, from elastic's table in the launcher's
        last lines.
        """
        text = "\n".join(self._launcher.lines)
        for match in _FAILED.finditer(text):
            self._exits[int(match["rank"])] = int(match["code"])
            if _ROOT in text[: match.start()]:
                self._root_rank = int(match["rank"])

    def add_error(self, event: Event) -> None:
        """Add an "error" event of a rank."""
        if len(self._errors) < _MAX_ERRORS:
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
        if situation is not None:
            self._situation = situation
        self._read_exits()
        first = self._first_error()
        if first is not None:
            if _has_lost_peer(event_chain(first.data)):
                killed_peer = self._explain_killed_peer()
                if killed_peer is not None:
                    return killed_peer
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
            lines = tail.printed_before_kill()
            return _build_cause(ending, None, lines, self._cure_for_signal(status))
        last_line = tail.last_line()
        if status == _NOT_STARTED and last_line:  # the reaper has printed the reason
            return _build_cause(last_line, None, tail.printed())
        source = "its last line" if rank is None else f"the last line of rank {rank}"
        return _unknown_cause(ending, source, tail)

    def _first_error(self) -> Event | None:
        """Return the earliest error of a rank that did not merely lose the connection to another.

        If all did, return the earliest error of all; None without an error.
        """
        ordered = sorted(self._errors, key=lambda event: event.time)
        for event in ordered:
            if not _has_lost_peer(event_chain(event.data)):
                return event
        return ordered[0] if ordered else None

    def _explain_end(self, rank: int | None) -> Cause | None:
        """Explain the end of a rank, or of the launcher (None), that reported no error.

        Return None if its log does not show the reason.
        """
        tail = self._launcher if rank is None else self._tails[rank]
        code = None if rank is None else self._exits.get(rank)
        chain = printed_chain(tail.traceback) if tail.ends_in_traceback else []
        if rank is not None and _has_lost_peer(chain):
            killed_peer = self._explain_killed_peer()
            if killed_peer is not None:
                return killed_peer
        was_killed = code is not None and code < 0 and code != -signal.SIGABRT
        if chain and not was_killed:
            return self._explain_chain(chain, rank, list(tail.traceback))
        if rank is not None and code is not None:
            return self._explain_exit_code(rank, code)
        last_words = tail.last_words()
        return self._explain_last_words(last_words, rank, None) if last_words else None

    def _explain_exit_code(self, rank: int, code: int) -> Cause:
        """Explain a rank that ended with this code and no exception."""
        tail = self._tails[rank]
        last_words = tail.last_words()
        ending = f"rank {rank} {_describe_code(code)}"
        if last_words:
            return self._explain_last_words(last_words, rank, ending if code < 0 else None)
        if code >= 0:
            return replace(_unknown_cause(ending, "its last line", tail), rank=rank)
        return _build_cause(ending, rank, tail.printed_before_kill(), self._cure_for_signal(code))

    def _explain_event(self, event: Event) -> Cause:
        """Explain a run by the error that a rank reported."""
        tail = self._tails.get(event.rank)
        if event.data.get("type") == "SystemExit" and tail is not None:
            last_words = tail.last_words()
            if last_words:  # argparse prints its message, and exits with 2
                return self._explain_last_words(last_words, event.rank, None)
        detail = str(event.data["message"]).splitlines()[1:]
        if tail is not None and tail.ends_in_traceback:
            detail = list(tail.traceback)
        return self._explain_chain(event_chain(event.data), event.rank, detail)

    def _explain_killed_peer(self) -> Cause | None:
        """Explain the first rank that the system killed, or that aborted; None without one.

        The other ranks only lost their connection to it.
        """
        for rank, code in sorted(self._exits.items()):
            if rank not in self._tails:
                continue
            has_aborted = code == -signal.SIGABRT and bool(self._tails[rank].last_words())
            if code in _SYSTEM_KILLS or has_aborted:
                return self._explain_exit_code(rank, code)
        return None

    def _explain_nccl_timeout(self) -> Cause:
        """Explain an NCCL time-out. The ranks that report it had entered the collective; the others
        had not.
        """
        rank = min(self._nccl_timeouts)
        waiting = _describe_waiting(self._nccl_timeouts)
        absent = self._describe_absent(set(self._nccl_timeouts))
        line = f"NCCL timeout: {waiting}{absent}"
        detail = [text for text in self._tails[rank].lines if _WATCHDOG in text][:1]
        return _build_cause(line, rank, detail, cure_for_lines([line], self._situation))

    def _explain_gloo_timeout(self, first: Event) -> Cause | None:
        """Explain a gloo time-out; None if the error is another one.

        Its message names neither the collective nor the ranks. The traceback has the collective, and
        the ranks that report an error had entered it.
        """
        match = _GLOO_TIMEOUT.search(str(first.data["message"]))
        if match is None:
            return None
        arrived = {event.rank for event in self._errors}
        tail = self._tails.get(first.rank)
        traceback = list(tail.traceback) if tail else []
        calls = [_COLLECTIVE.search(text) for text in traceback]
        collective = next((call[1] for call in calls if call), "a collective")
        seconds = int(match["milliseconds"]) / 1000
        waiting = _describe_waiting(dict.fromkeys(arrived, collective))
        absent = self._describe_absent(arrived)
        line = f"a collective timed out after {seconds:g} s: {waiting}{absent}"
        return _build_cause(line, first.rank, traceback, cure_for_lines([line], self._situation))

    def _describe_absent(self, arrived: set[int]) -> str:
        absent = sorted(set(self._tails) - arrived)
        return f"; {format_ranks(absent)} had not arrived" if absent else ""

    def _failing_rank(self) -> int | None:
        """Return the rank whose log may have the cause; None if only the launcher's may."""
        if self._root_rank in self._tails:
            return self._root_rank
        traceback_times = {
            rank: tail.traceback_time or 0.0
            for rank, tail in self._tails.items()
            if tail.ends_in_traceback
        }
        if traceback_times:
            return min(traceback_times, key=lambda rank: (traceback_times[rank], rank))
        launcher_chain = printed_chain(self._launcher.traceback)
        if launcher_chain and launcher_chain[-1].type not in _LAUNCHER_ERRORS:
            return None
        ranks_with_output = [rank for rank, tail in sorted(self._tails.items()) if tail.lines]
        for rank in ranks_with_output:
            if self._tails[rank].last_words():
                return rank
        return ranks_with_output[0] if ranks_with_output else None

    def _explain_chain(
        self, chain: Sequence[RaisedError], rank: int | None, detail: Sequence[str]
    ) -> Cause:
        """Explain a run by a chain of exceptions, with the first one that has a cure."""
        cured = cure_for_errors(chain, self._situation)
        if cured is None:
            return _build_cause(describe_chain(chain, chain[0]), rank, detail)
        leading, cure = cured
        return _build_cause(describe_chain(chain, leading), rank, detail, cure)

    def _explain_last_words(
        self, last_words: Sequence[str], rank: int | None, ending: str | None
    ) -> Cause:
        """Explain a run by what a process printed last; `ending` describes its exit code."""
        summary = summarize_last_words(last_words)
        line = f"{ending}: {summary}" if ending else summary
        cured = cure_for_errors([parse_error(summary)], self._situation)
        cure = cured[1] if cured else cure_for_lines([summary], self._situation)
        return _build_cause(line, rank, last_words[:DETAIL_LINES], cure)

    def _cure_for_signal(self, code: int) -> Cure | None:
        """Return the cure for a process that a signal ended with this exit code."""
        return cure_for_lines([_describe_code(code)], self._situation)


def _has_lost_peer(chain: Sequence[RaisedError]) -> bool:
    """Return whether a rank failed because it lost the connection to another one."""
    return any(known().phrases["peer_died"].search(error.message) for error in chain)


def _build_cause(
    line: str, rank: int | None, detail: Sequence[str], cure: Cure | None = None
) -> Cause:
    sentence = printable(one_line(line) or line)[:_MAX_LINE]
    lines = [printable(text) for text in _drop_runpy_frames(detail)]
    return Cause(sentence, tuple(lines[-DETAIL_LINES:]), rank, cure)


def _unknown_cause(ending: str, source: str, tail: LogTail) -> Cause:
    """Return a cause with the last line of a log; `source` names the log."""
    line = f"{ending}, for an unknown reason"
    last_line = tail.last_line()
    if last_line:
        line += f"; {source}: {last_line}"
    return _build_cause(line, None, tail.printed())


def _drop_runpy_frames(lines: Sequence[str]) -> Sequence[str]:
    """Drop the outermost frames of a traceback, the worker's and runpy's, which precede the
    trainer's own.
    """
    frames = [index for index, text in enumerate(lines) if "<frozen runpy>" in text]
    if not frames or TRACEBACK not in lines[0]:
        return lines
    return [lines[0], *lines[frames[-1] + 1 :]]


def _describe_waiting(collectives: Mapping[int, str]) -> str:
    """Render `ranks 0, 2 waited in ALLREDUCE number 5`, one part per collective."""
    ranks_by_collective: dict[str, list[int]] = {}
    for rank, collective in sorted(collectives.items()):
        ranks_by_collective.setdefault(collective, []).append(rank)
    parts = []
    for collective, ranks in ranks_by_collective.items():
        parts.append(f"{format_ranks(ranks)} waited in {collective}")
    return ", ".join(parts)


def _describe_code(code: int) -> str:
    """Describe the exit code of a process, which is negative for a signal."""
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
    if status < 0:
        return f"the launcher {_describe_code(status)}"
    return f"the launcher exited with status {status}"
