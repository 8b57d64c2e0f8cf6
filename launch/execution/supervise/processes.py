"""The processes of a run: orphans of an earlier run, and the reaper that ends all descendants."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from launch.errors import refusal
from launch.execution.supervise.reaper import find_by_run_id

_ORPHANS = 20.0  # seconds; the tear-down after a launcher's SIGKILL takes at most 15


def is_stopped(pid: int) -> bool:
    """Return whether a process is suspended (SIGSTOP); False for one that cannot be inspected."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def end_by_run_id(run_id: str, seconds: float = 10.0) -> int:
    """Send SIGKILL until no process is left or `seconds` have passed; return the number of
    processes ended.
    """
    ended: set[tuple[int, float]] = set()
    deadline = time.monotonic() + seconds
    while (living := find_by_run_id(run_id)) and time.monotonic() < deadline:
        for key, process in living.items():
            with contextlib.suppress(psutil.Error):
                process.kill()
                ended.add(key)
        time.sleep(0.05)
    return len(ended)


def wait_for_orphans(output: Path, say: Callable[[str], None], patience: float = _ORPHANS) -> None:
    """Wait until no process of an earlier run has the folder `output` on its command line.

    Their launcher was killed, and they normally end by themselves within seconds.

    Raises UserError: still_running, when some are left after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    announced = False
    while orphans := _find_writers(output):
        if time.monotonic() > deadline:
            message = (
                f"processes of an earlier run still write to {output}: "
                f"{', '.join(map(str, orphans))}"
            )
            raise refusal("still_running", message, None, "end them, or use another name=")
        if not announced:
            say(f"waiting for {len(orphans)} processes of the earlier run to end")
            announced = True
        time.sleep(0.2)


def _find_writers(output: Path) -> list[int]:
    """Return the ids of the processes that have `output` on their command line."""
    writers = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        if str(output) in (process.info["cmdline"] or ()):
            writers.append(process.pid)
    return writers


GRACE = 8.0  # seconds between SIGTERM and SIGKILL; the kills included, a run ends within 15
# Seconds within which the reaper reports that it has carried out an order. A reaper that does not
# is stopped or hangs.
_PATIENCE = GRACE + 12.0
# The seconds are fewer if the reaper is stopped (SIGSTOP) or the user has asked twice.
_PATIENCE_AT_KILL = 4.0
_REAPER = Path(__file__).with_name("reaper.py")


@dataclass(frozen=True)
class ServerProgram:
    """A program that runs beside the command, which starts once the program answers GET /health."""

    argv: tuple[str, ...]
    port: int  # a port of this machine
    env: Mapping[str, str] = field(default_factory=dict)  # variables in addition to the command's
    seconds: float = 1800.0  # within which it answers

    def order(self, output: Path) -> dict[str, Any]:
        """Return the reaper's part of an order. The program writes to `output`."""
        return {
            "argv": self.argv,
            "set": self.env,
            "output": str(output),
            "port": self.port,
            "seconds": self.seconds,
        }


class ReaperProcess:
    """A running reaper: sends it orders and reads its reports."""

    def __init__(self, order: Mapping[str, Any], output: int) -> None:
        """Start the reaper and send it `order`, which names the command to start (reaper.py).

        `output`: the file descriptor for the stderr of the reaper and of the command.
        """
        self.status: int | None = None
        self.ended_processes = 0
        self.left: int | None = None  # processes that could not be ended
        self.interrupted = False  # whether a signal of the user ended it
        self.halted = False  # whether a guard or the removal of its folder ended it
        self.completed = False  # ended because all requested steps are logged
        self.server_reports: deque[dict[str, Any]] = deque()  # about the server, not yet taken
        command = [sys.executable, "-P", "-u", str(_REAPER)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            bufsize=0,
        )
        self.send(json.dumps({**order, "grace": GRACE}))
        self._rest = b""
        self._ordered: float | None = None  # time.monotonic() of the first order to end the run

    @property
    def reports(self) -> int:
        """The file descriptor that the reports arrive on."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        if line in ("stop", "kill"):
            self._ordered = self._ordered or time.monotonic()
        data = memoryview(line.encode() + b"\n")
        with contextlib.suppress(OSError):  # the reaper has exited, and its reports end
            while data:  # a signal can cut a write short
                data = data[self._process.stdin.write(data) :]

    def halt(self) -> bool:
        """End the run, for a guard or because its folder was removed. Return False if it has ended
        already or the user is ending it.
        """
        if self.status is not None or self.interrupted:
            return False
        self.halted = True
        self.send("stop")
        return True

    def complete(self) -> None:
        """End a run that has done what was requested, unless it has ended or is being ended
        already.
        """
        if self.status is None and not self.interrupted and not self.halted:
            self.completed = True
            self.status = 0
            self.send("stop")

    def read_reports(self) -> bool:
        """Read the reports that have arrived; return False at their end."""
        data = os.read(self.reports, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            report: dict[str, Any] = json.loads(line)
            was_ended = self.interrupted or self.halted or self.completed
            if report["kind"] == "exited" and not was_ended:
                self.status = report["status"]
            elif report["kind"].startswith("server_") and not was_ended:
                self.server_reports.append(report)
            elif report["kind"] == "swept":
                self.ended_processes = report["ended"]
                self.left = report["left"]
        return bool(data)

    def is_silent(self, *, urgent: bool) -> bool:
        """Return whether the reaper has not carried out an order in time, because it is stopped or
        hangs.
        """
        if self._ordered is None:
            return False
        is_short = urgent or is_stopped(self._process.pid)
        patience = _PATIENCE_AT_KILL if is_short else _PATIENCE
        return time.monotonic() - self._ordered > patience

    def kill(self) -> None:
        """Kill the reaper itself; its reports then end, and this process ends what it has left."""
        self._process.kill()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
