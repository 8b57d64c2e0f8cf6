"""A warm rank is to its launcher and to its trainer what a cold one is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.integration import warm
from tests.worker.ranks import ENTRY

pytestmark = pytest.mark.slow

TELL = """
import json, os, sys
kept = {name: value for name, value in os.environ.items() if name not in ("_", "SHLVL", "PWD", "OLDPWD")}
print(json.dumps([sys.argv, sys.path, os.getcwd(), kept, __name__, sys.stdin.read()], sort_keys=True))
"""
SLEEP = """
import os, pathlib, time
pathlib.Path("new").write_text(str(os.getpid()))
os.rename("new", "pid")
time.sleep(600)
"""
ENDINGS = {
    "import sys; sys.exit(3)": 3,
    "import sys; sys.exit('why')": 1,
    "raise ValueError": 1,
    "import os; os._exit(7)": 7,
    "import os; os.kill(os.getpid(), 9)": -9,
    "import signal, os; signal.raise_signal(15)": -15,
}


@pytest.fixture(autouse=True)
def libraries() -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")


def command(python: str, folder: Path, code: str) -> list[str]:
    script = folder / "trainer.py"
    script.write_text(code, encoding="utf-8")
    return [python, "-u", str(ENTRY), "--script", str(script), "--", "--flag", "a b"]


def test_it_sees_what_a_cold_rank_sees(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tmp_path / "mine"),
        "OWN": "ü 1",
    }
    seen = []
    for python in (sys.executable, warm.python()):
        argv = command(python, tmp_path, TELL)
        ran = subprocess.run(
            argv,
            cwd=tmp_path,
            env=environ,
            input="typed",
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        seen.append(json.loads(ran.stdout))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("code", "status"), ENDINGS.items())
def test_it_ends_as_a_cold_rank_ends(code: str, status: int, tmp_path: Path) -> None:
    ran = subprocess.run(
        command(warm.python(), tmp_path, code), cwd=tmp_path, capture_output=True, check=False
    )
    assert ran.returncode == status, ran.stderr


def test_it_does_not_outlive_the_process_that_stands_for_it(tmp_path: Path) -> None:
    client = subprocess.Popen(command(warm.python(), tmp_path, SLEEP), cwd=tmp_path)
    began = time.monotonic()
    while not (tmp_path / "pid").exists():
        assert client.poll() is None and time.monotonic() - began < 300
        time.sleep(0.05)
    rank = psutil.Process(int((tmp_path / "pid").read_text()))
    assert rank.pid != client.pid
    client.send_signal(signal.SIGKILL)
    client.wait()
    rank.wait(timeout=300)
