"""Ends that a user or the system brings about: signals, a launcher that is killed, a slow tear-down."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.execution.supervise.fake import ROOT, alive, start_supervisor, wait_for
from tests.integration.demo_kit import give_demo
from tests.integration.faults import check, rows
from tests.integration.reports import read_report

pytestmark = pytest.mark.slow
SLOW = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
                 start_new_session=True)
event("phase", phase="training")
time.sleep(1)
open("ready", "w").close()
time.sleep(600)
"""


def shown(home: Path) -> str:
    return (home / "shown.txt").read_text(encoding="utf-8")


def test_a_tear_down_that_meets_deaf_processes(tmp_path: Path) -> None:
    supervisor = start_supervisor(tmp_path, SLOW)
    wait_for((tmp_path / "ready").exists)
    supervisor.send_signal(signal.SIGINT)
    took = wait_for(lambda: supervisor.poll() is not None)
    check("Ctrl-C, and processes that ignore SIGTERM", shown(tmp_path), supervisor.returncode, took)
    assert alive(tmp_path) == []


def test_a_second_ctrl_c(tmp_path: Path) -> None:
    supervisor = start_supervisor(tmp_path, SLOW)
    wait_for((tmp_path / "ready").exists)
    supervisor.send_signal(signal.SIGINT)
    time.sleep(0.5)
    supervisor.send_signal(signal.SIGINT)
    took = wait_for(lambda: supervisor.poll() is not None)
    check("a second Ctrl-C", shown(tmp_path), supervisor.returncode, took)
    assert alive(tmp_path) == []


def test_the_launcher_is_killed(tmp_path: Path) -> None:
    supervisor = start_supervisor(tmp_path, SLOW)
    wait_for((tmp_path / "ready").exists)
    supervisor.kill()
    supervisor.wait()
    took = wait_for(lambda: not alive(tmp_path))
    check("the launcher is killed by SIGKILL", shown(tmp_path), 0, took)


def test_the_reaper_is_killed(tmp_path: Path) -> None:
    import psutil

    supervisor = start_supervisor(tmp_path, SLOW)
    wait_for((tmp_path / "ready").exists)
    (reaper,) = psutil.Process(supervisor.pid).children()
    reaper.kill()
    took = wait_for(lambda: supervisor.poll() is not None)
    check("the process that supervises the run is killed", shown(tmp_path), supervisor.returncode, took)
    assert alive(tmp_path) == []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the real runs start: the demo's model and data are made once."""
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    return give_demo(tmp_path_factory, tmp_path_factory.mktemp("faults"))


def launch(home: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "launch", "run", "stage=demo", "trainer=trl_sft", "processes=1", *words]
    done = subprocess.run(
        command,
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done, time.monotonic() - began


def test_a_real_run_whose_loss_becomes_nan(home: Path) -> None:
    done, took = launch(home, "name=nan", "recipe.learning_rate=1e30", "recipe.max_steps=40", "recipe.warmup_ratio=0.0")
    check("a real TRL run with a learning rate of 1e30", done.stdout, done.returncode, took)
    folder = home / "runs" / "demo" / "nan"
    assert (folder / "FAILED").is_file()
    text = read_report(folder).text
    assert json.loads((folder / "FAILED").read_text())["cause"] in text
    assert re.search(r"loss is nan at step \d", text)
    assert text.count("non_finite") > 1, "the guard and its measurements"


def test_a_real_run_that_diverges(home: Path) -> None:
    words = ["recipe.learning_rate=0.5", "recipe.max_steps=40", "recipe.warmup_ratio=0.0", "guards.non_finite=false"]
    words += ["guards.divergence.window=2", "guards.divergence.factor=1.2", "guards.divergence.margin=0.5"]
    done, took = launch(home, "name=diverges", *words)
    check("a real TRL run that diverges", done.stdout, done.returncode, took)
    text = read_report(home / "runs" / "demo" / "diverges").text
    assert "stopped stopped after" in text and "best step" in text


def test_a_trainer_that_leaves_no_model(home: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *accelerate.commands.launch*) exit 0;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    done, took = launch(home, "name=nothing", f"python={python}", "report=false")
    assert not (home / "runs" / "demo" / "nothing" / "report.html").exists()
    check("a trainer that ends without a model", done.stdout + done.stderr, done.returncode, took)


def test_every_row_of_the_table_has_its_test() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_faults*.py"))
    assert len(rows()) >= 20
    assert [name for name in rows() if f'check("{name}"' not in sources] == []
