"""The demo's data and model, built once for all files and workers of a test session, and folders
that have a copy.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.demo import DEMO_KEY
from launch.demo.ensure import ensure_model, ensure_rows
from launch.evaluation.suites import ensure_demo_suite
from launch.worker.held_out import LOSS, ROWS, write_task

FEW = 12


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` fills in the first worker that asks for `name`; the others wait
    for it.
    """
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


def write_few_questions(cache: Path, folder: Path) -> Path:
    """Write a task of the demo's first FEW questions into a folder: how likely are their answers?
    Return the folder.
    """
    suite = ensure_demo_suite(cache)
    rows = [
        json.loads(row) for row in (suite / ROWS).read_text(encoding="utf-8").splitlines()[:FEW]
    ]
    turns = [[message["content"] for message in row["messages"]] for row in rows]
    docs = [{"prompt": question, "answer": answer, "text": answer} for question, answer in turns]
    write_task(folder, "likelihood", LOSS, docs)
    return folder


def _build(folder: Path) -> None:
    for kind in ("chats", "preferences"):
        ensure_rows(folder / f"{kind}-{DEMO_KEY}", kind)
    ensure_model(folder / f"model-{DEMO_KEY}", sys.executable)
