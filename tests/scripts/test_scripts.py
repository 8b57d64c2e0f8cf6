"""The shell scripts: what they say and do when something is missing, and that a second call does
nothing.

`setup` runs for real in a copy of the few files that it reads; only pip is a stand-in (a real
install takes minutes and is what `.ci/run` does before this suite can run).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.paths import ROOT

SCRIPTS = [
    ROOT / name
    for name in (
        "scripts/setup",
        "scripts/quickstart",
        "scripts/test",
        "scripts/sft_then_dpo",
        ".ci/run",
    )
]
BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="no bash on this machine")

# Stands where pip would be in .venv: writes down what it was asked, and does what the test's file
# says.
PIP = """
import os, pathlib, sys
log = pathlib.Path(os.environ["PIP_LOG_FILE"])
with log.open("a") as file:
    print(*sys.argv[1:], file=file)
sys.exit(int(os.environ.get("PIP_EXIT", "0")))
"""


class Clone:
    """A folder with what setup reads, and a .venv whose pip only writes down what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pip_log = folder / "pip.log"
        (folder / "scripts").mkdir(parents=True)
        for name in ("scripts/setup", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)

    def with_venv(self) -> Clone:
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(self.folder / ".venv")], check=True
        )
        [packages] = (self.folder / ".venv" / "lib").glob("python*/site-packages")
        (packages / "pip.py").write_text(PIP)
        return self

    def setup(self, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {
            "PATH": os.environ["PATH"],
            "PIP_LOG_FILE": str(self.pip_log),
            "GIT_CEILING_DIRECTORIES": "/",
        }
        return subprocess.run(
            [str(self.folder / "scripts" / "setup")],
            env={**environ, **variables},
            cwd=self.folder.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def installed(self) -> list[str]:
        return self.pip_log.read_text().splitlines() if self.pip_log.exists() else []


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_parses_and_can_be_executed(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize(
    "name",
    ["docs", "golden", "own-words", "pictures", "quickstart", "setup", "sft_then_dpo", "test"],
)
def test_help_prints_the_usage_and_does_nothing(name: str, option: str, tmp_path: Path) -> None:
    script = ROOT / "scripts" / name
    starts = [] if script.read_bytes().startswith(b"#!/usr/bin/env bash") else [sys.executable]
    shown = subprocess.run(
        [*starts, str(script), option],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0 and not shown.stderr
    assert f"scripts/{name}" in shown.stdout and len(shown.stdout.splitlines()) < 40
    assert "#" not in shown.stdout and "readonly" not in shown.stdout


def test_quickstart_ends_with_ones_own_data_before_gpus() -> None:
    text = (ROOT / "scripts" / "quickstart").read_text(encoding="utf-8")
    _, _, end = text.partition("cat <<END")
    commands = re.findall(r"\$\(typed\) (\w+ ?\S*)", end)
    assert commands == ["status runs=$PWD/runs", "new mine", "plan stage=sft_25pct"]


def test_shellcheck_has_nothing_to_say() -> None:
    found = shutil.which(
        "shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if found is None:
        pytest.skip("shellcheck is not installed (the dev group brings it)")
    done = subprocess.run([found, *map(str, SCRIPTS)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_torch_is_installed_first_and_all_under_constraints(clone: Clone) -> None:
    done = clone.with_venv().setup()
    assert done.returncode == 0, done.stderr
    torch, rest = clone.installed()
    assert torch.endswith("--constraint constraints.txt torch==2.13.0")
    assert rest.endswith(
        "--constraint constraints.txt --editable .[train,open-instruct,eval,rl,dev]"
    )
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_second_call_does_nothing_and_is_fast(clone: Clone) -> None:
    clone.with_venv().setup()
    before = clone.installed()
    started = time.monotonic()
    done = clone.setup()
    assert time.monotonic() - started < 5
    assert (done.returncode, clone.installed()) == (0, before)
    assert "installing" not in done.stdout


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_dependency_installs_again(clone: Clone, name: str) -> None:
    clone.with_venv().setup()
    with (clone.folder / name).open("a") as file:
        file.write("# changed\n")
    clone.setup()
    assert len(clone.installed()) == 4


def test_a_moved_clone_installs_again(clone: Clone, tmp_path: Path) -> None:
    clone.with_venv().setup()
    clone.folder = clone.folder.rename(tmp_path / "elsewhere")
    clone.pip_log = clone.folder / "pip.log"
    clone.setup()
    assert len(clone.installed()) == 4


def test_a_failed_install_is_no_finished_one(clone: Clone) -> None:
    done = clone.with_venv().setup(PIP_EXIT="1")
    assert done.returncode == 2
    assert "installing failed" in done.stderr
    assert clone.setup().returncode == 0
    assert len(clone.installed()) == 3  # torch, which failed; then torch and the rest


def test_a_venv_whose_python_is_gone_is_made_anew(clone: Clone, tmp_path: Path) -> None:
    (clone.folder / ".venv" / "bin").mkdir(parents=True)
    (clone.folder / ".venv" / "bin" / "python").symlink_to(tmp_path / "gone")
    done = clone.setup(PYTHON=str(tmp_path / "gone"))
    assert "has no working Python any more" in done.stdout
    assert done.returncode == 2
    assert "no Python found" in done.stderr


def fake_python(path: Path, body: str) -> str:
    path.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c '{body}\nimport sys; exec(sys.argv[2])' \"$@\"\n"
    )
    path.chmod(0o755)
    return str(path)


def test_an_old_python_is_named(clone: Clone, tmp_path: Path) -> None:
    python = fake_python(tmp_path / "python3.9", "import sys; sys.version_info = (3, 9, 2)")
    done = clone.setup(PYTHON=python)
    assert done.returncode == 2
    assert f"{python} is Python 3.9, and 3.11 or newer is needed" in done.stderr
    assert not (clone.folder / ".venv").exists()


def test_debians_missing_ensurepip_is_named_with_its_package(clone: Clone, tmp_path: Path) -> None:
    python = fake_python(tmp_path / "python3", 'import sys; sys.modules["ensurepip"] = None')
    done = clone.setup(PYTHON=python)
    assert done.returncode == 2
    assert f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in done.stderr


def in_git(clone: Clone, url: str) -> None:
    """Make the clone a git repository with a submodule at `url`."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(clone.folder), *words], check=True, capture_output=True)

    git("init", "--quiet")
    (clone.folder / ".gitmodules").write_text(
        f'[submodule "external/open-instruct"]\n\tpath = external/open-instruct\n\turl = {url}\n'
    )
    git("add", ".gitmodules")
    git("update-index", "--add", "--cacheinfo", "160000," + "1" * 40 + ",external/open-instruct")
    (clone.folder / "external" / "open-instruct").mkdir(parents=True)


def test_an_unreachable_submodule_is_no_error_and_tried_once(clone: Clone, tmp_path: Path) -> None:
    in_git(clone.with_venv(), str(tmp_path / "nowhere"))
    first = clone.setup()
    assert first.returncode == 0, first.stderr
    assert "could not be fetched" in first.stdout and "git submodule update --init" in first.stdout
    second = clone.setup()
    assert (second.returncode, second.stdout) == (0, "")


def test_a_submodule_that_hangs_is_ended_with_what_it_started(clone: Clone, tmp_path: Path) -> None:
    in_git(clone.with_venv(), str(tmp_path / "nowhere"))
    script = clone.folder / "scripts" / "setup"
    script.write_text(script.read_text().replace("SUBMODULE_SECONDS=20", "SUBMODULE_SECONDS=1"))
    hanging = tmp_path / "bin"
    hanging.mkdir()
    (hanging / "git").write_text(
        "#!/bin/sh\n"
        'case "$*" in *submodule*) sleep 300 & echo $! >"$CHILD"; wait ;; esac\n'
        f'exec {shutil.which("git")} "$@"\n'
    )
    (hanging / "git").chmod(0o755)
    started = time.monotonic()
    child = tmp_path / "child"
    done = clone.setup(PATH=f"{hanging}{os.pathsep}{os.environ['PATH']}", CHILD=str(child))
    assert done.returncode == 0, done.stderr
    assert "could not be fetched" in done.stdout
    assert time.monotonic() - started < 30
    # ended, and waited for by whoever adopted it or not yet
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(int(child.read_text())).status() == psutil.STATUS_ZOMBIE


def test_a_checkout_of_ones_own_leaves_the_submodule_alone(clone: Clone, tmp_path: Path) -> None:
    in_git(clone.with_venv(), str(tmp_path / "nowhere"))
    done = clone.setup(OPEN_INSTRUCT_DIR=str(tmp_path / "mine"))
    assert done.returncode == 0
    assert "getting open-instruct" not in done.stdout


COUNTS = """
def count(name):
    with open("runs", "a") as file:
        print(name, file=file)
"""
PASSES = """
from tests.counts import count

def test_passes():
    count("passes")
"""
SLOW = """
import pytest
from tests.counts import count

@pytest.mark.slow
def test_slow():
    count("slow")
"""
FLAKY = """
import os

def test_passes_later():
    late = os.path.exists("late")
    open("late", "w").close()
    assert late
"""


@pytest.mark.parametrize("flaky", [(), ("tests/test_flaky.py::test_passes_later",)])
def test_what_failed_is_repeated_and_nothing_else(tmp_path: Path, flaky: tuple[str, ...]) -> None:
    for name in ("scripts", "tests", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "test", tmp_path / "scripts" / "test")
    commands = {
        "scripts/setup": "#!/bin/sh\n",
        ".venv/bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    files = {
        "pytest.ini": "[pytest]\nmarkers =\n  slow\n  slurm\n  equivalence\n  planted\n  thorough\n",
        "tests/__init__.py": "",
        "tests/counts.py": COUNTS,
        "tests/test_cannot_be_imported.py": "import no_such_module\n",
        "tests/test_passes.py": PASSES,
        "tests/test_slow.py": SLOW,
    }
    if flaky:
        files["tests/test_flaky.py"] = FLAKY
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [str(tmp_path / "scripts" / "test")],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode != 0
    assert "those once more" in done.stdout
    assert (tmp_path / "runs").read_text().split() == ["passes"]
    assert tuple(re.findall(r"flaky, failed once and then passed: (.*)", done.stdout)) == flaky
