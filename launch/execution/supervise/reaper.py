"""Runs the trainer's launcher as a child and makes sure that no descendant outlives the run.

A small process between the supervisor and the launcher, started by path with the launcher's own
interpreter in its own session; it imports nothing from `launch`. The first line of stdin is the
order (JSON: argv, set, unset, grace, remove, server); later lines may be `stop` or `kill`; end of
file means that the supervisor is gone. Reports go to stdout, a JSON object per line:

    {"kind": "server_ready", "seconds": 61.2}
    {"kind": "server_silent"}                             it did not answer in time: the run is ended
    {"kind": "server_exited", "status": 1}                before the launcher: the run is ended
    {"kind": "started", "pid": 123}
    {"kind": "exited", "status": 0}                       negative: the signal that ended the launcher
    {"kind": "swept", "ended": 7, "left": 0}               the last report: how many processes it had to end

The launcher's own output goes to this process's stderr. `server` (null, or JSON: argv, set, output,
port, seconds) is a program that answers GET /health on a port of this machine. The launcher starts
once it answers, and it is ended after the launcher.
torch elastic puts each worker into its own session (torch/distributed/elastic/multiprocessing), so
killing a process group misses them. On Linux this process is their subreaper: orphans are
reparented to it, so it sees every descendant. On other systems it remembers the descendants that it
has seen, and searches environments for the run id.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

_LINUX = sys.platform.startswith("linux")
# The numbers are those of linux/prctl.h.
_SUBREAPER = 36
_PDEATHSIG = 1
_DRAIN = 1.0  # seconds that the orphans of a finished launcher get to exit by themselves
_KILL_FOR = 10.0  # seconds until a process that survives SIGKILL (D state) is given up and reported
_POLL = 0.05
_HEALTH_EVERY = 0.25  # seconds between two requests to the server's health endpoint
_HEALTH_TIMEOUT = 2.0  # seconds
# Open files of a process. A higher limit slows down programs that close every possible descriptor.
_MOST_FILES = 65_536
_Key = tuple[int, float]  # (pid, creation time)


class Reaper:
    """Runs one command and ends all its descendants."""

    def __init__(self, order: dict[str, Any], pending_input: bytes) -> None:
        self.order = order
        self.grace = float(order["grace"])
        self.run_id: str = order["set"].get("LAUNCH_RUN_ID", "")
        self.seen: dict[_Key, psutil.Process] = {}
        self.ended: set[_Key] = set()
        self.status: int | None = None
        self.pid = 0
        self.server_pid = 0
        self.server_status: int | None = None
        self.server_processes: set[_Key] = set()  # not left behind by the launcher
        self.kill = False  # skip SIGTERM
        self.stop = False
        self.orphaned = False  # stdin has ended: the supervisor is gone
        self._input = b""
        self._parse_input(pending_input)

    def prepare(self) -> None:
        """Become the parent of orphans, and set the environment of what is started."""
        _raise_file_limit()
        self.environ = dict(os.environ)
        for name in self.order["unset"]:
            self.environ.pop(name, None)
        self.environ.update(self.order["set"])
        self._libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None
        if self._libc is not None:
            self._libc.prctl(_SUBREAPER, 1, 0, 0, 0)

    def start(self) -> None:
        self.pid = self._spawn(self.order["argv"], self.environ, 2)
        self.send_report(kind="started", pid=self.pid)

    def _spawn(self, argv: list[str], environ: dict[str, str], output: int) -> int:
        """Start a child that dies with this process; return its id."""
        libc = self._libc
        parent = os.getpid()

        def die_with_parent() -> None:
            if libc is not None:
                libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != parent:  # the parent died before prctl took effect
                    os._exit(1)

        child = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,  # noqa: PLW1509  one thread only, and PDEATHSIG can be set nowhere else
        )
        child.returncode = 0  # reaped here by waitpid(-1), not by Popen
        return child.pid

    def start_server(self, server: dict[str, Any]) -> bool:
        """Start the server and wait until it answers; return whether the launcher may start.

        It may not if the server has exited, does not answer in time, or the run is to be ended.
        """
        output = os.open(server["output"], os.O_WRONLY)
        environ = {**self.environ, **server["set"]}
        self.server_pid = self._spawn(server["argv"], environ, output)
        os.close(output)
        began = time.monotonic()
        while not _is_healthy(server["port"]):
            if time.monotonic() - began > server["seconds"]:
                self.send_report(kind="server_silent")
                self.stop = True
            self.wait(_HEALTH_EVERY)
            self.reap()
            if self.server_status is not None or self.stop:
                return False
        self.send_report(kind="server_ready", seconds=time.monotonic() - began)
        return True

    def _end_server(self) -> None:
        """End the server and its own processes, which no other process needs any more."""
        if not self.server_pid or self.server_status is not None:
            return
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.server_pid)
            for process in [root, *root.children(recursive=True)]:
                self.server_processes.add((process.pid, process.create_time()))
        deadline = time.monotonic() + self.grace
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = self._live_server_processes()
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            while self._live_server_processes() and time.monotonic() < deadline and not self.kill:
                self.wait(_POLL)
                self.reap()
        self.reap()

    def _live_server_processes(self) -> list[psutil.Process]:
        living = self.live_descendants()
        return [process for key, process in living.items() if key in self.server_processes]

    def send_report(self, **values: Any) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone
            os.write(1, json.dumps(values).encode() + b"\n")

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid and self.status is None:
                self.status = os.waitstatus_to_exitcode(status)
                self.send_report(kind="exited", status=self.status)
            elif pid == self.server_pid and self.server_status is None:
                self.server_status = os.waitstatus_to_exitcode(status)
                if self.status is None and not self.stop:
                    self.send_report(kind="server_exited", status=self.server_status)
                    self.stop = True

    def live_descendants(self) -> dict[_Key, psutil.Process]:
        """Return every live descendant by (pid, creation time)."""
        processes: dict[_Key, psutil.Process] = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                processes[process.pid, process.create_time()] = process
        if not _LINUX:
            self.seen.update(processes)
            alive = {key: seen for key, seen in self.seen.items() if seen.is_running()}
            processes.update(alive)
            if self.run_id and (self.stop or self.status is not None):
                processes.update(find_by_run_id(self.run_id))
        return {key: process for key, process in processes.items() if not is_zombie(process)}

    def wait(self, seconds: float | None) -> None:
        """Sleep until stdin has input, a signal arrives or `seconds` have passed."""
        if self.orphaned:
            time.sleep(_POLL if seconds is None else seconds)
            return
        ready, _, _ = select.select([0, _WAKE[0]], [], [], seconds)
        if _WAKE[0] in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(_WAKE[0], 4096)
        if 0 in ready:
            self.read_input()
        if _TERMINATED:
            self.stop = True

    def read_input(self) -> None:
        data = os.read(0, 4096)
        self.orphaned = not data
        self.stop = self.stop or self.orphaned
        self._parse_input(data)

    def _parse_input(self, data: bytes) -> None:
        *lines, self._input = (self._input + data).split(b"\n")
        self.stop = self.stop or b"stop" in lines or b"kill" in lines
        self.kill = self.kill or b"kill" in lines

    def watch(self) -> None:
        """Wait until the launcher or the server has exited, or a stop order has come."""
        while not self._is_over():
            self.reap()
            if not self._is_over():
                if not _LINUX:
                    self.live_descendants()
                self.wait(None if _LINUX else 1.0)

    def _is_over(self) -> bool:
        return self.status is not None or self.stop

    def sweep(self) -> None:
        """End every descendant: wait for those that exit by themselves, then send SIGTERM, then
        SIGKILL.
        """
        grace = self.grace
        if not self.stop:
            self._end_server()
            if self._wait_until_gone(_DRAIN):
                return
            grace = min(grace, 3.0)
        if not self.kill:
            self._signal_all(signal.SIGTERM)
            if self._wait_until_gone(grace):
                return
        deadline = time.monotonic() + _KILL_FOR
        while time.monotonic() < deadline:
            if not self._signal_all(signal.SIGKILL):
                return
            self.wait(_POLL)
            self.reap()

    def _wait_until_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        stopping = self.stop
        while time.monotonic() < deadline:
            self.reap()
            if not self.live_descendants():
                return True
            if self.kill or (self.stop and not stopping):
                return False
            self.wait(_POLL)
        self.reap()
        return not self.live_descendants()

    def _signal_all(self, number: int) -> int:
        descendants = self.live_descendants()
        for key, process in descendants.items():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
                if key not in self.server_processes:
                    self.ended.add(key)
                if number != signal.SIGKILL:
                    process.resume()  # a stopped process (SIGSTOP) does not handle SIGTERM
        return len(descendants)


def find_by_run_id(run_id: str) -> dict[_Key, psutil.Process]:
    """Return the live processes with LAUNCH_RUN_ID=run_id in their environment.

    Processes whose environment this user may not read are left out.
    """
    processes: dict[_Key, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("LAUNCH_RUN_ID") == run_id and not is_zombie(process):
                processes[process.pid, process.create_time()] = process
    return processes


def is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _is_healthy(port: int) -> bool:
    """Return whether a server on this machine answers that it is up."""
    import http.client  # only a run with a server waits for it

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_HEALTH_TIMEOUT)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


_WAKE = (0, 0)
_TERMINATED: list[int] = []


def _read_order() -> tuple[dict[str, Any], bytes]:
    data = b""
    while b"\n" not in data:
        piece = os.read(0, 1 << 16)
        if not piece:
            raise SystemExit(0)  # the supervisor died before it sent the order
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def _raise_file_limit() -> None:
    """Raise the soft limit of open files: rank 0's store needs one for every rank, and login shells
    allow 1,024.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main() -> None:
    global _WAKE  # noqa: PLW0603  one wake-up pipe per process, as for its signal handlers
    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):
        # SIG_IGN would be inherited by the trainer.
        signal.signal(getattr(signal, name), lambda *_: None)
    reaper = Reaper(*_read_order())
    _WAKE = os.pipe()
    for end in _WAKE:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(_WAKE[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: _TERMINATED.append(1))
    reaper.prepare()
    try:
        server = reaper.order["server"]
        if server is None or reaper.start_server(server):
            reaper.start()
    except OSError as error:
        name = error.filename or reaper.order["argv"][0]
        os.write(2, f"{name}: {error.strerror}\n".encode())
        reaper.status = 127
        reaper.send_report(kind="exited", status=127)
    try:
        reaper.watch()
    finally:
        reaper.sweep()
        reaper.reap()
        left = len(reaper.live_descendants())
        reaper.send_report(kind="swept", ended=len(reaper.ended), left=left)
        if reaper.order["remove"]:
            shutil.rmtree(reaper.order["remove"], ignore_errors=True)


if __name__ == "__main__":
    main()
