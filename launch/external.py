"""Runs other programs to their end, and logs each with its duration (`LAUNCH_LOG=debug`)."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launch.errors import refusal
from launch.redact import process_redactor
from launch.terminal import clean_text

LEVELS = ("debug", "info", "warning", "error")
_VARIABLE = "LAUNCH_LOG"
_LAST_OUTPUT = 5.0  # seconds for the output of a program that was killed
_LONGEST = 300  # characters of a command in the log
_logger = logging.getLogger("launch")


class _Formatter(logging.Formatter):
    """Formats a record without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return clean_text(super().format(record))


def configure_logging(environ: Mapping[str, str]) -> None:
    """Log to stderr from the level in `LAUNCH_LOG`; without it, nothing is logged.

    Raises UserError: unknown_log_level.
    """
    level = environ.get(_VARIABLE, "").lower()
    if not level:
        return
    if level not in LEVELS:
        message = f"{level!r} is not a log level"
        raise refusal("unknown_log_level", message, _VARIABLE, f"set it to {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    _logger.handlers = [handler]
    _logger.setLevel(level.upper())
    _logger.propagate = False


@dataclass
class Call:
    """One call of another program, while it is being made."""

    outcome: str = "did not start"


@contextmanager
def logged_call(argv: Sequence[str]) -> Iterator[Call]:
    """Log the call when the block ends, with how long it took; the block sets the outcome."""
    began = time.monotonic()
    call = Call()
    try:
        yield call
    finally:
        if _logger.isEnabledFor(logging.DEBUG):
            masked = process_redactor().redact_argv(list(argv))
            command = shlex.join(masked).replace("\n", " ")
            if len(command) > _LONGEST:
                command = f"{command[:_LONGEST]}..."
            _logger.debug("%.3f s, %s: %s", time.monotonic() - began, call.outcome, command)


def run_command(
    argv: Sequence[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    own_session: bool = False,
    cwd: Path | None = None,
    memory: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program without input and return what it prints; bytes that are not UTF-8 are replaced.

    `timeout` is in seconds. `env` has the program's variables; without it, it gets this process's.
    With `own_session` Ctrl-C does not reach the program, and the timeout ends what it started too.
    `memory` is the number of bytes that each of its processes may have (on Linux).

    Raises OSError (it cannot be started), subprocess.TimeoutExpired, and with `check`
    subprocess.CalledProcessError.
    """
    with logged_call(argv) as call:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=env,
            cwd=cwd,
            start_new_session=own_session,
        )
        if memory is not None:
            limit_memory(process.pid, memory)
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException as error:
            _kill(process, group=own_session)
            if isinstance(error, subprocess.TimeoutExpired):
                call.outcome = f"timed out after {timeout:g} s"
            raise
        call.outcome = f"exit code {process.returncode}"
    done = subprocess.CompletedProcess(list(argv), process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _kill(process: subprocess.Popen[str], *, group: bool) -> None:
    """Kill a program, with `group` all processes of its session, which may hold its pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL) if group else process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_LAST_OUTPUT)


def limit_memory(pid: int, size: int) -> None:
    """Limit the bytes of data of a process, and of those that it starts from now on.

    What it maps from files and a GPU's address space don't count. Only Linux has such a limit.
    """
    if sys.platform.startswith("linux"):
        import resource

        with contextlib.suppress(OSError, ValueError):  # it has ended, or has a lower limit
            resource.prlimit(pid, resource.RLIMIT_DATA, (size, size))


def template_memory() -> int:
    """Return the bytes of memory for a program that evaluates a chat template of a user.

    That is 12 GiB, or half of a smaller machine's memory, but at least 4 GiB.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(4 << 30, min(12 << 30, total // 2))


def failure_reason(process: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a failed program wrote to stderr; without one, its exit status."""
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {process.returncode}"


def wait_until(condition: Callable[[], bool], seconds: float | None, interval: float = 0.1) -> bool:
    """Wait until a condition holds, at most `seconds`, and return whether it does.

    `interval` is the number of seconds between two checks.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval)
    return True
