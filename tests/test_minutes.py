"""The table of `scripts/test --all`: from the files of real pytest sessions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.minutes import describe, minutes_by_folder

TEST = """
import pathlib, time

import pytest


@pytest.fixture
def slow():
    time.sleep(0.3)


def test_it(slow):
    assert pathlib
"""


def test_cases_and_minutes_are_added_up_by_folder_over_sessions(tmp_path: Path) -> None:
    for name in ("tests/__init__.py", "tests/one/__init__.py", "tests/one/deep/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    for name in ("tests/test_top.py", "tests/one/test_a.py", "tests/one/deep/test_b.py"):
        (tmp_path / name).write_text(TEST, encoding="utf-8")
    (tmp_path / "pytest.ini").touch()
    files = [tmp_path / "first.xml", tmp_path / "second.xml", tmp_path / "missing.xml"]
    for file, chosen in zip(files, (["tests/one"], ["tests/test_top.py"]), strict=False):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={file}",
            *chosen,
        ]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    rows = minutes_by_folder(files)
    assert [(folder, cases) for folder, cases, _ in rows] == [("one", 2), ("tests", 1)]
    assert rows[0][2] >= 2 * 0.3 / 60, "the fixture counts"
    assert [line.partition("minutes  ")[2] for line in describe(rows)] == [
        "one (2 cases)",
        "tests (1 cases)",
        "all (3 cases)",
    ]
