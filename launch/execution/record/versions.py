"""Read what a run runs with: packages and Python of the trainer's interpreter, platform, GPUs, commits."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.external import run_command
from launch.host.interpreter import InterpreterError, inventory
from launch.host.nvidia import Gpu, find_gpus

_TIMEOUT = 30  # seconds


def read_versions(python: str) -> dict[str, Any]:
    """Return what is installed for the interpreter `python`, and the machine. `problems`: what could not be read."""
    versions: dict[str, Any] = {"platform": platform.platform(), "machine": platform.machine()}
    problems: list[str] = []
    try:
        installed = inventory(python)
        versions |= {"python": installed.python, "packages": installed.packages}
    except InterpreterError as error:
        problems.append(f"packages: {error}")
    gpus = find_gpus(os.environ)
    if not gpus.why:
        versions["gpus"] = [{"name": gpu.name, "memory": _memory(gpu)} for gpu in gpus.present]
        versions["driver"] = gpus.present[0].driver if gpus.present else None
    elif gpus.installed:
        problems.append(gpus.why)
    return versions | ({"problems": problems} if problems else {})


def _memory(gpu: Gpu) -> str:
    return "[N/A]" if gpu.total is None else f"{gpu.total:.0f} MiB"


def read_git_state(folder: Path, must_hold: str = "") -> dict[str, Any]:
    """Return the commit of the git work tree whose top is `folder`, and whether it has uncommitted changes.

    `must_hold` is a path below the top, without which this is another repository. Without git, or outside of a
    repository, `commit` is None and `why` gives the reason.
    """
    unknown: dict[str, Any] = {"commit": None, "dirty": None}
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    top, problem = _run([*git, "rev-parse", "--show-toplevel"])
    if top is None:
        return unknown | {"why": problem}
    root = Path(top.strip())
    if root.resolve() != folder.resolve() or (must_hold and not (root / must_hold).exists()):
        return unknown | {"why": "not the top of a git work tree"}
    commit, problem = _run([*git, "rev-parse", "HEAD"])
    if commit is None:
        return unknown | {"why": problem}
    changes, _ = _run([*git, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"])
    return {"commit": commit.strip(), "dirty": None if changes is None else bool(changes.strip())}


def _run(argv: Sequence[str]) -> tuple[str | None, str]:
    """Return what a command prints, or None and why it failed."""
    try:
        process = run_command(argv, timeout=_TIMEOUT)
    except FileNotFoundError:
        return None, "not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, type(error).__name__
    if process.returncode:
        return None, (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return process.stdout, ""
