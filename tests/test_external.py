"""What other programs print, and the log of what was run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.external import run_command


def test_output_that_is_not_utf8_is_replaced() -> None:
    done = run_command(
        [sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'a\\xffb'); print(input())"]
    )
    assert done.stdout == "a\N{REPLACEMENT CHARACTER}b"
    assert done.returncode == 1 and "EOFError" in done.stderr  # it has no input


def test_failures_are_raised() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_command([sys.executable, "-c", "raise SystemExit(3)"], check=True)
    with pytest.raises(subprocess.TimeoutExpired):
        run_command([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)
    with pytest.raises(FileNotFoundError):
        run_command(["no-such-program"])


def _launch(tmp_path: Path, level: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LAUNCH_LOG": level, "HF_TOKEN": "hf_" + "a" * 34}
    python = tmp_path / "python"  # another one than launch's own, so that a plan asks it
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    plan = ["plan", "stage=demo", "trainer=trl_sft", f"python={python}"]
    argv = [sys.executable, "-m", "launch", *plan]
    return subprocess.run(
        argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )


def test_the_log_has_each_call_and_its_time(tmp_path: Path) -> None:
    done = _launch(tmp_path, "debug")
    calls = [line for line in done.stderr.splitlines() if " DEBUG " in line]
    assert any("exit code 0: " in line and " -c " in line for line in calls), done.stderr
    assert "hf_aaa" not in done.stderr
    assert not any(" DEBUG " in line for line in _launch(tmp_path, "").stderr.splitlines())


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    done = _launch(tmp_path, "loud")
    assert done.returncode == 2
    assert (
        "LAUNCH_LOG" in done.stderr
        and "debug" in done.stderr
        and "unknown_log_level" in done.stderr
    )
