"""Ends a rank with its parent process, lets the supervisor inspect it, and gives it its own temporary folder back."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, MutableMapping

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61


def die_with_parent() -> None:
    """Have Linux send this process SIGKILL when its parent ends; do nothing on other systems.

    torch elastic gives every rank its own session, so killing only the launcher's process group would leave ranks that
    hold their GPUs. Forked children do not inherit the setting.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl: no signal will come
        os.kill(os.getpid(), signal.SIGKILL)


def restore_temporary_folder(environment: MutableMapping[str, str]) -> None:
    """Set TMPDIR as it was before the supervisor had the processes above this rank use its own folder."""
    folder = environment.pop("LAUNCH_TMPDIR", None)
    if folder is None:
        return
    environment["TMPDIR"] = folder
    if not folder:
        del environment["TMPDIR"]
    tempfile.tempdir = None  # what was chosen until now


def allow_inspection(environment: Mapping[str, str]) -> None:
    """Let the process LAUNCH_TRACER and its children (py-spy, when a run stalls) trace this process.

    With Yama's ptrace_scope 1, as on Ubuntu, only ancestors may do so otherwise, and py-spy is not one. Forked children
    do not inherit the setting.
    """
    tracer = environment.get("LAUNCH_TRACER", "")
    if sys.platform.startswith("linux") and tracer.isdigit():
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(tracer)), 0, 0, 0)  # fails without Yama, where it is not needed
