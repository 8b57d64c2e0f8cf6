"""`stop RUN`: ends a run from another terminal, as Ctrl-C does in its own."""

from __future__ import annotations

import os
import signal
import time

from launch.commands.arguments import run_words
from launch.errors import EXIT_DONE, EXIT_FAILED, Problem, UserError
from launch.lifecycle.lock import holder_of, lock_path, this_process
from launch.runtime.runs import resolve_run, run_name

USAGE = "launch stop RUN [runs=DIR]"
_PATIENCE = 30.0  # seconds; a tear-down takes 15 at most


def stop(words: list[str]) -> int:
    """Ask a run's launcher to end every process of it, and wait until it has.

    Raises UserError (`not_running`, `runs_elsewhere`, `unknown_run`, `ambiguous_run`, `usage`).
    """
    said = run_words("stop", words, {}, USAGE)
    if len(said.names) != 1:
        raise UserError(Problem("usage", "'stop' takes one run", "command line", USAGE))
    folder = resolve_run(said.names[0], said.runs)
    held = holder_of(lock_path(folder))
    if held is None:
        raise UserError(Problem("not_running", f"{run_name(folder)} is not running"))
    holder, here = held[0], this_process()
    if holder.machine != here.machine:
        message = f"{run_name(folder)} runs on {holder.host} as process {holder.pid}"
        raise UserError(Problem("runs_elsewhere", message, None, f"there: kill {holder.pid}"))
    os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if holder_of(lock_path(folder)) is None:
            print(f"{run_name(folder)} is stopped")
            return EXIT_DONE
        time.sleep(0.1)
    print(f"process {holder.pid} has not ended after {_PATIENCE:.0f} s")
    return EXIT_FAILED
