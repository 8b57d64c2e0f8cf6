"""Real runs that diverge or leave nothing, and the table's rows: those of signals are in
test_teardown.py.
"""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.conftest import launch_in
from tests.integration.faults import check, rows
from tests.integration.reports import read_report
from tests.paths import ROOT

pytestmark = pytest.mark.slow


def launch(home: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    line = ("run", "stage=demo", "trainer=trl_sft", "processes=1", *words)
    done = launch_in(home, *line)
    return done, time.monotonic() - began


def test_a_real_run_whose_loss_becomes_nan(home: Path) -> None:
    done, took = launch(
        home,
        "name=nan",
        "recipe.learning_rate=1e30",
        "recipe.max_steps=40",
        "recipe.warmup_ratio=0.0",
    )
    check("a real TRL run with a learning rate of 1e30", done.stdout, done.returncode, took)
    folder = home / "runs" / "demo" / "nan"
    assert (folder / "FAILED").is_file()
    text = read_report(folder).text
    assert json.loads((folder / "FAILED").read_text())["cause"] in text
    assert re.search(r"loss is nan at step \d", text)
    assert text.count("non_finite") > 1, "the guard and its measurements"


@pytest.mark.thorough
def test_a_real_run_that_diverges(home: Path) -> None:
    words = [
        "recipe.learning_rate=0.5",
        "recipe.max_steps=40",
        "recipe.warmup_ratio=0.0",
        "guards.non_finite=false",
    ]
    words += [
        "guards.divergence.window=2",
        "guards.divergence.factor=1.2",
        "guards.divergence.margin=0.5",
    ]
    done, took = launch(home, "name=diverges", *words)
    check("a real TRL run that diverges", done.stdout, done.returncode, took)
    text = read_report(home / "runs" / "demo" / "diverges").text
    assert "stopped stopped after" in text and "best step" in text


def test_a_trainer_that_leaves_no_model(home: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *accelerate.commands.launch*) exit 0;; esac\nexec '
        f'{sys.executable} "$@"\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    done, took = launch(home, "name=nothing", f"python={python}", "report=false")
    assert not (home / "runs" / "demo" / "nothing" / "report.html").exists()
    check("a trainer that ends without a model", done.stdout + done.stderr, done.returncode, took)


def test_every_row_of_the_table_has_its_test() -> None:
    files = (
        *Path(__file__).parent.glob("test_faults*.py"),
        ROOT / "tests/execution/supervise/test_teardown.py",
    )
    sources = "".join(path.read_text(encoding="utf-8") for path in files)
    assert len(rows()) >= 20
    assert [name for name in rows() if f'"{name}"' not in sources] == []
