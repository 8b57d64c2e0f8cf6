"""Sets up a rank's process: its parent-death signal, temporary folder, GPU, and who may trace it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, MutableMapping

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61


def _set_on_linux(option: int, value: int) -> None:
    """Set an attribute of this process with prctl; do nothing on other systems."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def die_with_parent() -> None:
    """Have Linux send this process SIGKILL when its parent ends; do nothing on other systems.

    torch elastic gives every rank its own session, so killing only the launcher's process group
    would leave ranks that hold their GPUs. Forked children do not inherit the setting.
    """
    parent = os.getppid()
    _set_on_linux(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl: no signal will come
        os.kill(os.getpid(), signal.SIGKILL)


def restore_temporary_folder(environment: MutableMapping[str, str]) -> None:
    """Set TMPDIR as it was before the supervisor started the processes above this rank.

    The supervisor has these processes use its own folder.
    """
    folder = environment.pop("LAUNCH_TMPDIR", None)
    if folder is None:
        return
    environment["TMPDIR"] = folder
    if not folder:
        del environment["TMPDIR"]
    tempfile.tempdir = None  # forgets the folder that was chosen until now


def show_one_gpu(environment: MutableMapping[str, str]) -> None:
    """Show a rank that is alone only the first of the visible GPUs, as its plan has it.

    TRL would spread the model over all of them (device_map="auto", trl/trainer/utils.py:1351).
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "0")
    if environment.get("WORLD_SIZE", "1") == "1":
        environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]


def allow_inspection(environment: Mapping[str, str]) -> None:
    """Let the process LAUNCH_TRACER and its children (py-spy, when a run stalls) trace this
    process.

    With Yama's ptrace_scope 1, as on Ubuntu, only ancestors may do so otherwise, and py-spy is not
    one. Forked children do not inherit the setting.
    """
    tracer = environment.get("LAUNCH_TRACER", "")
    if tracer.isdigit():
        _set_on_linux(_PR_SET_PTRACER, int(tracer))  # fails without Yama, where it is not needed
