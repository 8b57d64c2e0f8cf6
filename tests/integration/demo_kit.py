"""The demo's data and model, built once for all files and workers of a test session, and folders that have a copy."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.demo import DEMO_KEY
from launch.demo.ensure import ensure_model, ensure_rows


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` fills in the first worker that asks for `name`; the others wait for it."""
    base = factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = session / name
    with (session / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / ".made").touch()
    return folder


def give_demo(factory: pytest.TempPathFactory, home: Path) -> Path:
    """Copy the demo to where runs that start in `home` look for it; return `home`."""
    shutil.copytree(make_once(factory, "demo-kit", _build), home / "runs" / ".cache" / "demo")
    return home


def _build(folder: Path) -> None:
    for kind in ("chats", "preferences"):
        ensure_rows(folder / f"{kind}-{DEMO_KEY}", kind)
    ensure_model(folder / f"model-{DEMO_KEY}", sys.executable)
