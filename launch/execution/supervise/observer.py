"""Turns the events of a live run into its record and the display.

The record is metrics.jsonl and events.jsonl. The lines that the run prints are only searched for
the causes of a failure.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from launch.execution.diagnosis.causes import CauseFinder
from launch.execution.diagnosis.servers import ServerLog
from launch.execution.facts import (
    FileUsed,
    LoggedStep,
    NewOutput,
    PhaseStarted,
    RankError,
    TotalSteps,
)
from launch.execution.record.attempts import latest_attempt
from launch.execution.record.events import Event, Metrics, read_opened
from launch.execution.record.folder import RunFolder
from launch.execution.record.written import CheckpointRecorder
from launch.execution.supervise.streams import LAUNCHER, SERVER
from launch.execution.supervise.watch import Watch
from launch.files import JsonLines
from launch.worker.json_codec import versioned

_MAX_PENDING = (
    10_000  # events that a blocked display may leave in the queue; older ones are dropped
)
_PROGRESS_EVERY = 1.0  # seconds between two checks of whether the output is new
_RECENT_LINES = 500
_CHECKPOINT = "checkpoint"
# A progress bar of tqdm is `Computing ...:  12%|##   | 24/200 [00:03<00:20, 9.9it/s]`.
_BAR = re.compile(r"(?P<done>\d+)/(?P<total>\d+) \[")


class Observer:
    """The pump's sink: records every event, and keeps what the display and the guards need.

    Steps go to metrics.jsonl, all other events to events.jsonl. `watch` takes what the
    guards judge, with times from `clock`, a monotonic one. `checkpoints` records those that the
    run writes.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        folder: RunFolder,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
        checkpoints: CheckpointRecorder | None = None,
    ) -> None:
        # Phases, steps and totals, and each warning once.
        self.display_events: deque[Event] = deque(maxlen=_MAX_PENDING)
        self.causes = CauseFinder(ranks)
        self.server_log = ServerLog()
        self.metrics = Metrics()
        self.step = 0
        self._first_rank = min(ranks)
        self._attempt = max(1, latest_attempt(folder.path))  # a trial's runs count none
        self._warnings_shown: set[str] = set()
        self._phase = ""
        self._metrics_file = JsonLines(folder.metrics)
        self._events_file = JsonLines(folder.events)
        self._lock = threading.Lock()
        self._watch = watch
        self._checkpoints = checkpoints
        self._clock = clock
        self._progress_checked = 0.0
        self._recent_lines: deque[str] = deque(maxlen=_RECENT_LINES)

    def lines(self, source: int, lines: Sequence[str], now: float) -> None:
        if source == LAUNCHER:
            self.causes.add_launcher_lines(lines, now)
            return
        if source == SERVER:
            self.server_log.add(lines)
            self._check_progress(lines[-1], source)
            return
        self.causes.add_lines(source, lines, now)
        self._check_progress(lines[-1], source)

    def event(self, event: Event) -> None:
        """Take an event that a worker sent."""
        if event.kind == "phase":
            self._take_phase(event)
        elif event.kind == "step":
            self._add_step(event)
        elif event.kind == "error":
            self.record(event)
            self.causes.add_error(event)
            is_stop = event.data.get("type") == "Unmet"
            self._watch.put(RankError(self._clock(), event.rank, is_stop))
        else:
            self.record(event)
            if event.kind == "total_steps":
                self._watch.put(TotalSteps(self._clock(), event.data["steps"]))
            elif event.kind == "opened":
                self._take_file(event)
            self._display(event)

    def record(self, event: Event) -> None:
        """Write an event to events.jsonl; may be called from any thread."""
        self._append(self._events_file, versioned(replace(event, attempt=self._attempt)))

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close(is_writing=self._phase == _CHECKPOINT)
        for file in (self._metrics_file, self._events_file):
            with contextlib.suppress(OSError):
                file.close()

    def _take_phase(self, event: Event) -> None:
        """Record a phase. The run's phases are those of the first rank; the other ranks send only
        their first one, with their process id.
        """
        if isinstance(event.data.get("pid"), int):
            self._watch.add_process(event.rank, event.data["pid"])
        if event.rank == self._first_rank:
            self._begin_phase(event)
        else:
            self.record(event)

    def _take_file(self, event: Event) -> None:
        """Pass on a file that a process of this machine has used."""
        file = read_opened(event)
        if file is not None:
            self._watch.put(FileUsed(self._clock(), file))

    def _begin_phase(self, event: Event, *, is_step: bool = False) -> None:
        phase = event.data["phase"]
        recorder = self._checkpoints
        if recorder is not None:
            is_written = self._phase == _CHECKPOINT and phase != _CHECKPOINT
            if is_written or (is_step and recorder.is_waiting):
                # This precedes the record of the step, so that a launcher which is killed has
                # recorded both.
                recorder.record_new(is_whole=is_step)
        if phase == self._phase:
            return
        self._phase = phase
        if phase == "training":
            self.metrics.training_began(event.time)
        self.record(event)
        self.display_events.append(event)
        self._watch.put(PhaseStarted(self._clock(), phase))

    def _display(self, event: Event) -> None:
        """Show an event of the kinds that a display prints, each warning once."""
        if event.kind in ("total_steps", "evaluation", "early_stop"):
            self.display_events.append(event)
        elif event.kind == "warning":
            message = str(event.data["message"])
            if message in self._warnings_shown:
                return
            self.display_events.append(event)
            if len(self._warnings_shown) < _MAX_PENDING:
                self._warnings_shown.add(message)

    def _check_progress(self, line: str, rank: int) -> None:
        """Report progress for a line that was not printed recently.

        The counts of a progress bar before the training are shown as well; they are not recorded.
        """
        now = self._clock()
        if now - self._progress_checked < _PROGRESS_EVERY or line in self._recent_lines:
            return
        self._progress_checked = now
        self._recent_lines.append(line)
        self._watch.put(NewOutput(now))
        if rank != self._first_rank or self._phase == "training":
            return
        bar = _BAR.search(line)
        if bar is not None:
            counts = {"done": int(bar["done"]), "total": int(bar["total"])}
            self.display_events.append(Event("progress", time.time(), rank, counts))

    def _add_step(self, event: Event) -> None:
        values = self.metrics.add(event)
        if values is None:
            return
        self.step = values["step"]
        if event.rank == self._first_rank:  # not every trainer reports when it begins to train
            training = Event("phase", event.time, event.rank, {"phase": "training"})
            self._begin_phase(training, is_step=True)
        self._append(self._metrics_file, values)
        self.display_events.append(Event("step", event.time, event.rank, self.metrics.last))
        self._watch.put(LoggedStep(self._clock(), self.step, self.metrics.last))

    def _append(self, file: JsonLines, value: dict[str, Any]) -> None:
        # The disk may be full, or the file already closed.
        with self._lock, contextlib.suppress(OSError, ValueError):
            file.append(value)
