"""Ties a rank's life to that of the process that started it, and lets the supervisor look into it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61


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


def allow_inspection(environment: Mapping[str, str]) -> None:
    """Lets the process LAUNCH_TRACER and its children (py-spy, when a run stalls) trace this one.

    Where Yama's ptrace_scope is 1, as on Ubuntu, only a parent may otherwise; py-spy is none. Forked children do not
    inherit this.
    """
    tracer = environment.get("LAUNCH_TRACER", "")
    if sys.platform.startswith("linux") and tracer.isdigit():
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(tracer)), 0, 0, 0)  # refused without Yama, where nothing is needed
