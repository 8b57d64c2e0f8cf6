"""Turns the lines and events of a live run into its record (metrics.jsonl, events.jsonl), the
display and the cause.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from launch.execution.diagnosis.causes import CauseFinder
from launch.execution.facts import LoggedStep, NewOutput, PhaseStarted, RankError, TotalSteps
from launch.execution.record.events import PHASES, Event, Metrics
from launch.execution.record.folder import RunFolder
from launch.execution.supervise.readers import reader_for
from launch.execution.supervise.streams import LAUNCHER
from launch.execution.supervise.watch import Watch
from launch.files import JsonLines

_MAX_PENDING = 10_000  # events that a blocked display may leave unread; older ones are dropped
_PROGRESS_EVERY = 1.0  # seconds between two checks of whether the output is new
_RECENT_LINES = 500
# in the order of TRL's trainers
_TRL_PHASES = (PHASES[0], "load", "tokenize", *PHASES[3:])
# of tqdm: `Computing ...:  12%|##   | 24/200 [00:03<00:20, 9.9it/s]`
_BAR = re.compile(r"(?P<done>\d+)/(?P<total>\d+) \[")


class PhaseTracker:
    """Follows the current phase. A worker event always sets it; a log line or a step only moves it
    forward.

    Lines and events arrive through different pipes, so their order is not guaranteed. Times are
    unix seconds: when an event was sent, when a line arrived.
    """

    def __init__(self, reader: str) -> None:
        self.current = ""
        self._since = 0.0
        self._order = _TRL_PHASES if reader == "trl" else PHASES

    def update(self, phase: str, time: float, *, from_worker: bool = False) -> bool:
        """Set the phase from a worker event, or move it forward; return whether it changed.

        Training resumes after a checkpoint.
        """
        if from_worker:
            changed = phase != self.current
        elif self.current == "checkpoint" and phase == "training":
            changed = time >= self._since
        else:
            changed = not self.current or self._order.index(phase) > self._order.index(self.current)
        if changed:
            self.current, self._since = phase, time
        return changed


class Observer:
    """The pump's sink: records every event, and keeps what the display and the guards need.

    Steps go to metrics.jsonl, all other events to events.jsonl. `watch` takes what the
    guards observe, with times from `clock`, a monotonic one.
    """

    def __init__(
        self,
        reader: str,
        ranks: Sequence[int],
        folder: RunFolder,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # phases, steps, totals, each warning once
        self.display_events: deque[Event] = deque(maxlen=_MAX_PENDING)
        self.causes = CauseFinder(ranks)
        self.metrics = Metrics()
        self.step = 0
        self._first_rank = min(ranks)
        self._warnings_shown: set[str] = set()
        self._readers = {rank: reader_for(reader, rank) for rank in ranks}
        self._phase = PhaseTracker(reader)
        self._metrics_file = JsonLines(folder.metrics)
        self._events_file = JsonLines(folder.events)
        self._lock = threading.Lock()
        self._watch, self._clock = watch, clock
        self._progress_checked = 0.0
        self._recent_lines: deque[str] = deque(maxlen=_RECENT_LINES)

    def lines(self, source: int, lines: Sequence[str], now: float) -> None:
        if source == LAUNCHER:
            self.causes.add_launcher_lines(lines, now)
            return
        self.causes.add_lines(source, lines, now)
        self._check_progress(lines[-1], source)
        reader = self._readers[source]
        for line in lines:
            if events := reader.feed(line, now):
                self._take(events)

    def tick(self, now: float) -> None:
        for reader in self._readers.values():
            self._take(reader.idle(now))

    def event(self, event: Event) -> None:
        """Take an event that a worker sent."""
        if event.kind == "phase" and isinstance(event.data.get("pid"), int):
            self._watch.add_process(event.rank, event.data["pid"])
        if event.kind != "phase":
            self._take([event])
        elif event.rank != self._first_rank:
            self.record(event)
        elif self._phase.update(event.data["phase"], event.time, from_worker=True):
            self._change_phase(event)

    def record(self, event: Event) -> None:
        """Write an event to events.jsonl; may be called from any thread."""
        self._append(self._events_file, event.as_json())

    def close(self, now: float) -> None:
        for reader in self._readers.values():
            self._take(reader.close(now))
        for file in (self._metrics_file, self._events_file):
            with contextlib.suppress(OSError):
                file.close()

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind == "phase":
                if event.rank == self._first_rank and self._phase.update(
                    event.data["phase"], event.time
                ):
                    self._change_phase(event)
            elif event.kind == "step":
                self._add_step(event)
            else:
                self.record(event)
                if event.kind == "error":
                    self.causes.add_error(event)
                    self._watch.observe(RankError(self._clock(), event.rank))
                    continue
                if event.kind == "total_steps":
                    self._watch.observe(TotalSteps(self._clock(), event.data["steps"]))
                message = str(event.data.get("message"))
                if event.kind in ("total_steps", "evaluation", "early_stop") or (
                    event.kind == "warning" and message not in self._warnings_shown
                ):
                    self.display_events.append(event)
                    if len(self._warnings_shown) < _MAX_PENDING:
                        self._warnings_shown.add(message)

    def _change_phase(self, event: Event) -> None:
        if event.data["phase"] == "training":
            self.metrics.training_began(event.time)
        self.record(event)
        self.display_events.append(event)
        self._watch.observe(PhaseStarted(self._clock(), event.data["phase"]))

    def _check_progress(self, line: str, rank: int) -> None:
        """Report progress for a line that was not printed recently; a repeated line does not count.

        What a bar counts before the training is shown as well, and not recorded.
        """
        now = self._clock()
        if now - self._progress_checked >= _PROGRESS_EVERY and line not in self._recent_lines:
            self._progress_checked = now
            self._recent_lines.append(line)
            self._watch.observe(NewOutput(now))
            bar = (
                _BAR.search(line)
                if rank == self._first_rank and self._phase.current != "training"
                else None
            )
            if bar:
                counts = {"done": int(bar["done"]), "total": int(bar["total"])}
                self.display_events.append(Event("progress", time.time(), rank, counts))

    def _add_step(self, event: Event) -> None:
        if event.rank == self._first_rank and self._phase.update("training", event.time):
            self._change_phase(Event("phase", event.time, event.rank, {"phase": "training"}))
        values = self.metrics.add(event)
        if values is not None:
            self.step = values["step"]
            self._append(self._metrics_file, values)
            self.display_events.append(Event("step", event.time, event.rank, self.metrics.last))
            self._watch.observe(LoggedStep(self._clock(), self.step, self.metrics.last))

    def _append(self, file: JsonLines, value: dict[str, Any]) -> None:
        # a full disk; a file that is already closed
        with self._lock, contextlib.suppress(OSError, ValueError):
            file.append(value)
