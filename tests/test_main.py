"""The first line that somebody types: under a Python that lacks the packages, or is too old, it is a sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch.resources import ROOT

NO_PACKAGES = (sys.executable, "-S", "-E")  # -S: without site-packages, as a Python that nothing is installed in
OLD = """import runpy, sys
sys.version_info = (3, 9, 2)
sys.path.insert(0, '.')
runpy.run_module('launch', run_name='__main__')"""


def start(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The package as it lies in a clone, without an environment."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    return tmp_path


@pytest.mark.parametrize("line", ["plan stage=demo", "status", "stage=demo", "check stage=demo", "tune stage=sft"])
def test_a_python_without_the_packages(clone: Path, line: str) -> None:
    def refusal() -> str:
        done = start(clone, *NO_PACKAGES, "-m", "launch", *line.split())
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert sys.executable in done.stderr
        return done.stderr

    assert f"{sys.executable} -m pip install tulu-launch" in refusal()
    (clone / "scripts").mkdir()
    (clone / "scripts/setup").touch()
    assert f"install what launch requires: {clone / 'scripts/setup'}" in refusal()
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/activate").touch()
    assert f"source {clone / '.venv/bin/activate'}" in refusal()


def test_what_needs_no_package_answers(clone: Path) -> None:
    for line in ("version", ""):
        assert start(clone, *NO_PACKAGES, "-m", "launch", *line.split()).returncode == 0


def test_a_python_that_is_too_old() -> None:
    done = start(ROOT, sys.executable, "-c", OLD)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"launch needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}\n"
