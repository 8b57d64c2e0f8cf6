"""The first line that somebody types: under a Python that lacks the packages, or is too old, it is
a sentence.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch.__main__ import _missing_package, main
from launch.resources import ROOT

# -S: without site-packages, as a Python that nothing is installed in
NO_PACKAGES = (sys.executable, "-S", "-E")
OLD = """import runpy, sys
sys.version_info = (3, 9, 2)
sys.path.insert(0, '.')
runpy.run_module('launch', run_name='__main__')"""


def start(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        argv, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The package as it lies in a clone, without an environment."""
    shutil.copytree(
        ROOT / "launch", tmp_path / "launch", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    return tmp_path


@pytest.mark.parametrize(
    "line", ["plan stage=demo", "status", "stage=demo", "check stage=demo", "tune stage=sft"]
)
def test_a_python_without_the_packages(clone: Path, line: str) -> None:
    done = start(clone, *NO_PACKAGES, "-m", "launch", *line.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{sys.executable} -m pip install tulu-launch" in done.stderr


def test_a_missing_package_has_the_cure_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.__main__.ROOT", tmp_path)

    def cure() -> str:
        message, _, cure = str(_missing_package(ModuleNotFoundError(name="yaml.nodes"))).rpartition(
            "; "
        )
        assert message == f"this Python ({sys.executable}) lacks the package yaml"
        return cure

    assert (
        cure() == f"install it with what it requires: {sys.executable} -m pip install tulu-launch"
    )
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/setup").touch()
    assert cure() == f"install what launch requires: {tmp_path / 'scripts/setup'}"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    assert cure() == f"activate this clone's environment: source {tmp_path / '.venv/bin/activate'}"
    assert _missing_package(ModuleNotFoundError(name="launch.gone")) is None, (
        "a fault of launch's own"
    )


def test_what_needs_no_package_answers(clone: Path) -> None:
    for line in ("version", ""):
        assert start(clone, *NO_PACKAGES, "-m", "launch", *line.split()).returncode == 0


def test_a_python_that_is_too_old() -> None:
    done = start(ROOT, sys.executable, "-c", OLD)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"launch needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}\n"
    )


_INTERRUPTED_IMPORT = """
import runpy, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
sys.argv[1:] = [sys.argv[1]]
runpy.run_module("launch", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["launch.commands.verbs", "launch.config.line", "launch.files"])
def test_an_interrupt_while_modules_are_imported_prints_no_traceback(module: str) -> None:
    command = [sys.executable, "-c", _INTERRUPTED_IMPORT, module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_file_that_cannot_be_written_is_a_sentence(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever verb meets it: a merge in a folder that has become read-only, a full disk."""

    def fail(arguments: list[str]) -> int:
        raise OSError(number, os.strerror(number), *arguments)

    monkeypatch.setattr("launch.__main__._run_verb", fail)
    for path in ("/data/run/.merged.x", None):
        assert main([] if path is None else [path]) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"launch: {path or 'a file'} cannot be written: ")
        assert message.endswith("[not_writable]\n") and os.strerror(number) in message


def test_another_error_of_a_file_is_a_fault_of_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> int:
        raise OSError(errno.EIO, "Input/output error", "/data/x")

    monkeypatch.setattr("launch.__main__._run_verb", fail)
    with pytest.raises(OSError, match="Input/output error"):
        main([])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_an_output_that_is_full_is_a_sentence() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "launch", "help", "keys"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert "Traceback" not in done.stderr and done.returncode != 0
    assert "a file cannot be written" in done.stderr
