"""`detach=true`: run the supervisor in a session of its own, which survives the terminal.

The detached process is a fork that continues where this one was, so that an early error is printed
on the terminal and sets the exit code. When the run has started, its output goes to logs/launch.log
and the waiting process exits.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, refusal
from launch.execution.display import PlainDisplay
from launch.execution.record.run import command_for
from launch.files import open_unlinked
from launch.terminal import echo

_STARTED = b"started "


class DetachedDisplay(PlainDisplay):
    """Prints on the terminal until the run starts, then into the log.

    `announce` is called when the run starts.
    """

    def __init__(self, stream: TextIO, log: Path, announce: Callable[[], None]) -> None:
        super().__init__(stream)
        self._log = log
        self._announce = announce
        self._lines: list[str] = []  # lines that were printed before the start
        self._started = False

    def start(self, total: int | None) -> None:
        super().start(total)
        if self._started:
            return
        self._started = True
        sys.stdout.flush()
        sys.stderr.flush()
        with open(self._log, "a", encoding="utf-8", opener=open_unlinked) as file:
            for text in self._lines:
                echo(text, file=file)
            file.flush()
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        self._announce()

    def say(self, text: str) -> None:
        super().say(text)
        if not self._started:
            self._lines.append(text)


def run_detached(
    run: Callable[[Callable[[Path], PlainDisplay]], int], describe: Callable[[Path, int], str]
) -> int:
    """Call `run` in a detached process, with a function that makes a run's display from its folder.

    This function returns in two processes:

    - in this one, with 0 when the run has started, after printing `describe(folder, pid)`; or with
      the exit code of a run that ended before it started;
    - in the detached process, with the run's exit code.

    Raises UserError: no_detach, on systems without fork.
    """
    if sys.platform == "win32" or not hasattr(os, "fork"):
        cure = "leave detach out, and start the run from a terminal that stays open"
        raise refusal("no_detach", "this system cannot detach a run", "detach", cure)
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return _wait_for_start(child, read_end, describe)
    os.close(read_end)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)

    announced: list[Path] = []  # only the first run of a pipeline is announced

    def make_display(folder: Path) -> PlainDisplay:
        def announce() -> None:
            if not announced:
                os.write(write_end, _STARTED + os.fsencode(folder))
                os.close(write_end)
            announced.append(folder)

        return DetachedDisplay(sys.stdout, folder / "logs" / "launch.log", announce)

    return run(make_display)


def _wait_for_start(child: int, read_end: int, describe: Callable[[Path, int], str]) -> int:
    """Wait until the child reports that it has started, or ends; return the exit code."""
    try:
        with os.fdopen(read_end, "rb") as pipe:
            report = pipe.read()
    except KeyboardInterrupt:
        os.kill(child, signal.SIGINT)
        os.waitpid(child, 0)
        return EXIT_INTERRUPTED
    if report.startswith(_STARTED):
        folder = Path(os.fsdecode(report.removeprefix(_STARTED)))
        echo(describe(folder, child))
        return EXIT_DONE
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def describe_detached_run(folder: Path, pid: int) -> str:
    """Return the lines that tell the user how to follow and stop a detached run."""
    return (
        f"started as process {pid}: {folder}\n"
        f"  follow it: {command_for('logs', folder, '--follow')}\n"
        f"  stop it:   {command_for('stop', folder)}"
    )
