"""Finds the processes of a run: by the run id in their environment, or by the folder on their command lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from launch.errors import Problem, UserError

_PATIENCE = 20.0  # seconds; the tear-down after a launcher's SIGKILL takes at most 15


def is_stopped(pid: int) -> bool:
    """Whether a process is suspended (SIGSTOP); False for one that cannot be looked at."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def find_by_run_id(run_id: str) -> list[psutil.Process]:
    """Return the live processes with LAUNCH_RUN_ID=run_id in their environment, as far as this user can see them."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("LAUNCH_RUN_ID") == run_id and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def end_by_run_id(run_id: str, seconds: float = 10.0) -> int:
    """Send SIGKILL until no process is left or `seconds` have passed; return the number of processes ended."""
    ended: set[int] = set()
    deadline = time.monotonic() + seconds
    while (living := find_by_run_id(run_id)) and time.monotonic() < deadline:
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.kill()
                ended.add(process.pid)
        time.sleep(0.05)
    return len(ended)


def wait_for_orphans(output: Path, say: Callable[[str], None], patience: float = _PATIENCE) -> None:
    """Wait until no process has the folder `output` on its command line: its launcher was killed, and they normally end
    by themselves within seconds.

    Raises UserError: still_running, when some are left after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    announced = False
    while orphans := _find_writers(output):
        if time.monotonic() > deadline:
            message = f"processes of an earlier run still write to {output}: {', '.join(map(str, orphans))}"
            raise UserError(Problem("still_running", message, None, "end them, or use another name="))
        if not announced:
            say(f"waiting for {len(orphans)} processes of the earlier run to end")
            announced = True
        time.sleep(0.2)


def _find_writers(output: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(output) in (process.info["cmdline"] or ())
    ]
