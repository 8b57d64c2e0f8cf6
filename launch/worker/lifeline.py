"""Ties a rank's life to that of the process that started it."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks Linux to send this process SIGKILL when its parent ends; elsewhere does nothing.

    torch elastic gives every rank a session of its own, so killing the launcher's process group alone would leave
    the ranks holding their GPUs. Forked children do not inherit this.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request: no signal will come
        os.kill(os.getpid(), signal.SIGKILL)
