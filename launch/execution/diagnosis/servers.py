"""Find why the server beside a run's ranks ended: its first error, which is not the last one printed.

vLLM's server prints the error of its engine's process, and then that the engine could not be
started (vllm/v1/engine/utils.py). Its lines begin with the name and the id of their process.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Sequence

from launch.execution.diagnosis.advice import Situation, cure_for_errors
from launch.execution.diagnosis.causes import DETAIL_LINES, Cause
from launch.execution.diagnosis.tracebacks import parse_error
from launch.terminal import printable

_MAX_LINE = 400  # characters of a line that is kept
# `(EngineCore pid=123) ERROR 11-28 18:04:11 [core.py:1234] `
_PREFIX = re.compile(r"^(?:\(\w+ pid=\d+\) ?)?(?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt)(?:: |$)")
_CONSEQUENCE = "Engine core initialization failed"


class ServerLog:
    """Keeps the first error of what a server prints."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=DETAIL_LINES - 1)
        self._error: str | None = None  # the first one, or the consequence of one

    def add(self, lines: Sequence[str]) -> None:
        for line in lines:
            text = _PREFIX.sub("", line)[:_MAX_LINE]
            self._last.append(printable(text))
            if _ERROR.match(text) and (self._error is None or _CONSEQUENCE in self._error):
                self._error = text

    def find_cause(self, failure: str, situation: Situation) -> Cause:
        """Return the cause of a run that its server ended. `failure`: what the server did."""
        line = f"vLLM's server {failure}"
        cure = None
        if self._error is not None:
            error = parse_error(self._error)
            line += f": {printable(str(error))}"
            cured = cure_for_errors([error], situation)
            cure = cured[1] if cured is not None else None
        return Cause(line, tuple(self._last), cure=cure)


def describe_exit(status: int) -> str:
    """Describe the exit status of a server, which is negative for a signal."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
