"""Runs other programs to their end, and logs each with its duration (`LAUNCH_LOG=debug`)."""

from __future__ import annotations

import logging
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from launch.errors import refusal
from launch.redact import process_redactor
from launch.terminal import clean

LEVELS = ("debug", "info", "warning", "error")
_VARIABLE = "LAUNCH_LOG"
_LONGEST = 300  # characters of a command in the log
_logger = logging.getLogger("launch")


class _Formatter(logging.Formatter):
    """Formats a record without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


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
) -> subprocess.CompletedProcess[str]:
    """Run a program without input and return what it prints; bytes that are not UTF-8 are replaced.

    `timeout` is in seconds. `env` has the program's variables; without it, it gets this process's.
    With `own_session` Ctrl-C does not reach the program.

    Raises OSError (it cannot be started), subprocess.TimeoutExpired, and with `check`
    subprocess.CalledProcessError.
    """
    with logged_call(argv) as call:
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
                env=env,
                start_new_session=own_session,
                check=False,
            )
        except subprocess.TimeoutExpired:
            call.outcome = f"timed out after {timeout:g} s"
            raise
        call.outcome = f"exit code {done.returncode}"
    if check:
        done.check_returncode()
    return done


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
