"""Supervises one command: starts it under the reaper, reads its output, records it, shows it and
ends it.

execution -> reaper -> accelerate launch -> ranks
               pump thread: FIFOs -> logs, events, metrics, facts
               watch thread: facts -> guards -> the stop order
main thread: signals, display, the reaper's reports
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import selectors
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.diagnosis.servers import describe_exit
from launch.execution.display import Display, SafeDisplay
from launch.execution.record.events import Event
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.record.written import CheckpointRecorder
from launch.execution.supervise.ending import RunEnd, conclude, end_lines
from launch.execution.supervise.observer import Observer
from launch.execution.supervise.processes import ReaperProcess, ServerProgram, end_by_run_id
from launch.execution.supervise.stacks import PeerNodes
from launch.execution.supervise.stop_signals import StopOrders, handle_signals, stop_signals
from launch.execution.supervise.streams import SERVER_LOG, Channel, Pump
from launch.execution.supervise.watch import Watch, WatchConfig
from launch.redact import add_secrets
from launch.resources import PYTHON_VARIABLES
from launch.worker.json_codec import to_json

_REFRESH = 0.2  # seconds
_REPEAT = "; press again to end them at once"
_FOLDER_EVERY = 2.0  # seconds between two checks that the run folder exists
_FOLDER_MISSES = 3  # consecutive misses after which the folder counts as removed


@dataclass(frozen=True)
class Execution:
    """A command to supervise."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # the variables set for the command
    # The variables removed from its environment: names, or patterns such as PREFIX_*.
    unset: tuple[str, ...] = ()
    # The settings of the guards; its guard_context has the ranks and the steps.
    watch_config: WatchConfig = field(default_factory=WatchConfig)
    # End the run as done after this logged step, without a model.
    stop_after: int | None = None
    seconds: float | None = None  # end the run as done after this time, whatever was logged
    peers: PeerNodes | None = None  # the other nodes of the run
    server: ServerProgram | None = None  # starts before the command, and ends after it
    # The exit codes with which an end is recorded at once, before anything is printed. It is empty
    # for a pass that is not a run. In a job it lacks the interruption, because the caller knows its
    # cause (a lost node, the time limit) and records it.
    recorded: tuple[int, ...] = (EXIT_FAILED, EXIT_STOPPED, EXIT_INTERRUPTED)
    # False if another node of the run reports an interruption and watches the run folder.
    leads: bool = True


def _reaper_order(execution: Execution, run_id: str, channel: Channel) -> dict[str, Any]:
    """Return what the reaper is to start, and the folder that it removes at the end."""
    server = execution.server
    return {
        "server": server.order(channel.server) if server is not None else None,
        "argv": execution.argv,
        "set": {
            **execution.env,
            **PYTHON_VARIABLES,
            # torch's elastic agent leaves a folder in TMPDIR. The ranks restore their own TMPDIR.
            "TMPDIR": str(channel.folder),
            "LAUNCH_TMPDIR": {**os.environ, **execution.env}.get("TMPDIR", ""),
            "LAUNCH_RUN_ID": run_id,
            "LAUNCH_CHANNEL": str(channel.folder),
            "LAUNCH_TRACER": str(os.getpid()),
        },
        "unset": _matching_names(execution.unset, os.environ),
        "remove": str(channel.folder),
    }


def _matching_names(patterns: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    matching: set[str] = set()
    for pattern in patterns:
        matching.update(name for name in environ if fnmatch.fnmatchcase(name, pattern))
    return [name for name in environ if name in matching]


def supervise(execution: Execution, folder: RunFolder, display: Display) -> Outcome:
    """Run `execution` to its end and record it in `folder`, which must exist; no process of it
    outlives this call.

    `stop_signals()` end the run: SIGTERM to every process, then SIGKILL after 8 seconds, or
    immediately at the second signal. Only the main thread can handle signals; elsewhere nothing
    does. A failed run's FAILED is written before anything is printed; the caller calls
    `folder.finish(outcome)` after its own checks.
    """
    stops = StopOrders()
    is_main = threading.current_thread() is threading.main_thread()
    with handle_signals(stops.handle, stop_signals() if is_main else ()):
        add_secrets(execution.env)
        return _supervise(execution, folder, display, stops)


def _supervise(
    execution: Execution, folder: RunFolder, display: Display, stops: StopOrders
) -> Outcome:
    context = execution.watch_config.guard_context
    run_id = uuid.uuid4().hex
    channel = Channel.create(
        Path(tempfile.mkdtemp(prefix="launch-")),
        context.ranks,
        has_server=execution.server is not None,
    )
    reaper: ReaperProcess | None = None
    watch = Watch(
        execution.watch_config,
        folder.stacks,
        lambda: reaper is not None and reaper.halt(),
        execution.peers,
    )
    checkpoints = None
    if execution.watch_config.output is not None and execution.leads:
        checkpoints = CheckpointRecorder(folder.path, execution.watch_config.output)
    observer = Observer(context.ranks, folder, watch, checkpoints=checkpoints)
    reading, writing = os.pipe()
    pump = Pump(channel, reading, folder.logs, observer)
    run = _LiveRun(execution, folder, observer, watch, SafeDisplay(display), stops)
    pump.start()
    watch.start()
    ended_processes = 0
    try:
        reaper = ReaperProcess(_reaper_order(execution, run_id, channel), writing)
        stops.reaper = reaper
        stops.forward()
        run.screen.start(context.total_steps)
        if execution.server is not None:
            run.screen.say(f"starting vLLM's server; its log: {folder.logs / SERVER_LOG}")
        else:
            run.begin_import()
        run.follow(reaper)
    finally:
        os.close(writing)
        if reaper is not None:
            ended_processes = _close_reaper(reaper, run_id)
        pump.finish()
        watch.close()
        run.show()
        observer.close()
        shutil.rmtree(channel.folder, ignore_errors=True)
        run.screen.close()
    end = run.conclude(reaper, ended_processes)
    run.record_end(end)
    run.say_end(end, pump)
    return end.outcome


def _close_reaper(reaper: ReaperProcess, run_id: str) -> int:
    """Wait for the reaper, end what it has left, and return the number of processes that were
    ended.
    """
    reaper.close()
    if reaper.left == 0:
        return reaper.ended_processes
    return reaper.ended_processes + end_by_run_id(run_id)


@dataclass
class _LiveRun:
    """The main thread's part in a run: it shows the run, decides when to end it, and records its
    end.
    """

    execution: Execution
    folder: RunFolder
    observer: Observer
    watch: Watch
    screen: SafeDisplay
    stops: StopOrders
    began: float = field(default_factory=time.monotonic)
    is_removed: bool = False  # whether the folder was removed while the run wrote to it
    server_failure: str | None = None  # how the server ended the run
    _step: int = 0  # the last step of which the other nodes were notified
    _misses: int = 0  # consecutive checks that did not find the folder
    _folder_checked: float = field(default_factory=time.monotonic)  # the time of the last check

    def begin_import(self) -> None:
        """Record that the command starts, whose first phase is the import of the trainer."""
        rank = min(self.execution.watch_config.guard_context.ranks)
        self.observer.event(Event("phase", time.time(), rank, {"phase": "import"}))

    def follow(self, reaper: ReaperProcess) -> None:
        """Forward events to the display, and what ends the run to the reaper, until that exits."""
        signals_seen = 0
        with selectors.DefaultSelector() as selector:
            selector.register(reaper.reports, selectors.EVENT_READ)
            while True:
                if selector.select(_REFRESH) and not reaper.read_reports():
                    return
                self._take_server_reports(reaper)
                self.show()
                self.screen.refresh()
                if self._has_done_enough():
                    reaper.complete()
                self._look_for_folder()
                if self.is_removed and not reaper.halted and reaper.halt():
                    self.screen.say("the run folder was removed: ending every process of this run")
                if reaper.is_silent(urgent=len(self.stops.signals) > 1):
                    self.screen.say(
                        "the reaper is unresponsive; terminating all processes directly"
                    )
                    reaper.kill()
                for number in self.stops.signals[signals_seen:]:
                    self._say_signal(number, is_first=signals_seen == 0)
                    signals_seen += 1

    def _take_server_reports(self, reaper: ReaperProcess) -> None:
        """Print that the server is up, and keep the reason why it ended the run."""
        while reaper.server_reports:
            report = reaper.server_reports.popleft()
            if report["kind"] == "server_ready":
                self.screen.say(f"vLLM's server answers after {report['seconds']:.0f} s")
                self.begin_import()
            elif report["kind"] == "server_silent":
                self.server_failure = "did not answer in time"
            else:
                self.server_failure = describe_exit(report["status"])

    def _say_signal(self, number: signal.Signals, *, is_first: bool) -> None:
        if not self.execution.leads:
            return
        is_interactive = sys.stdin is not None and sys.stdin.isatty()
        extent = "of this run" if is_first else "at once"
        hint = _REPEAT if is_first and is_interactive else ""
        self.screen.say(f"{number.name}: ending every process {extent}{hint}")

    def show(self) -> None:
        """Show what has come since the last call, and record the guards' findings."""
        while self.observer.display_events:
            self.screen.show(self.observer.display_events.popleft())
        while self.watch.findings:
            finding = self.watch.findings.popleft()
            values = {**to_json(finding), "stop": finding.stops}
            self.observer.record(Event("guard", time.time(), 0, values))
        while self.watch.messages:
            self.screen.say(self.watch.messages.popleft())

    def conclude(self, reaper: ReaperProcess, ended_processes: int) -> RunEnd:
        """Decide how the run ended, once its processes are gone."""
        run = Outcome(
            EXIT_DONE,
            seconds=time.monotonic() - self.began,
            steps=self.observer.step,
            last_loss=self.observer.metrics.last_loss,
            # When a run has logged the requested steps, its processes are ended on purpose.
            ended_processes=0 if reaper.completed else ended_processes,
        )
        return conclude(
            run,
            status=reaper.status,
            interrupted=self.stops.signals[0].name if reaper.interrupted else None,
            removed=self.folder.path if self.is_removed else None,
            server_failure=self.server_failure,
            observer=self.observer,
            watch=self.watch,
        )

    def record_end(self, end: RunEnd) -> None:
        """Write FAILED, if the execution has this end recorded at once."""
        if end.outcome.exit_code in self.execution.recorded:
            with contextlib.suppress(OSError):  # the caller tries again, and reports it
                self.folder.finish(end.outcome)

    def say_end(self, end: RunEnd, pump: Pump) -> None:
        """Print the closing lines, and how much of the output was lost."""
        if self.execution.leads or end.outcome.exit_code != EXIT_INTERRUPTED:
            for line in end_lines(end, self.folder):
                self.screen.say(line)
        for line in _describe_losses(pump):
            self.screen.say(line)

    def _has_done_enough(self) -> bool:
        """Return whether the run has done what was requested.

        If this node is the one that decides it, the other nodes are notified.
        """
        execution = self.execution
        peers = execution.peers
        step = self.observer.step
        if step != self._step and peers is not None:
            peers.note_step()
        self._step = step
        if peers is not None and peers.progress == "complete":
            return True
        seconds = time.monotonic() - self.began
        is_late = execution.seconds is not None and seconds > execution.seconds
        has_steps = execution.stop_after is not None and step >= execution.stop_after
        is_complete = is_late or has_steps
        if is_complete and peers is not None:
            peers.report_progress("complete")
        return is_complete

    def _look_for_folder(self) -> None:
        """Check from time to time that the run folder exists; an unreadable one counts as
        existing.
        """
        now = time.monotonic()
        if now - self._folder_checked < _FOLDER_EVERY or not self.execution.leads:
            return
        self._folder_checked = now
        try:
            self.folder.logs.lstat()
            self._misses = 0
        except FileNotFoundError:
            self._misses += 1
        except OSError:
            pass
        self.is_removed = self.is_removed or self._misses >= _FOLDER_MISSES


def _describe_losses(pump: Pump) -> list[str]:
    lines = []
    if pump.lost_bytes:
        lines.append(f"warning: {pump.lost_bytes} bytes of logs could not be written")
    if pump.fault is not None:
        lines.append(f"warning: some output could not be read: {pump.fault!r}")
    return lines
