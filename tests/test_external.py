"""What other programs print, and the log of what was run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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


ALLOCATE = "data = bytearray(20 << 30)"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits the data")
@pytest.mark.parametrize(
    "program",
    [
        ALLOCATE,
        "text = 'x' * (20 << 30)",
        "rows = [0] * (3 << 30)",
        "import jinja2; jinja2.Template('{{ \"x\" * (20 * 1024 ** 3) }}').render()",
        f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {ALLOCATE!r}]))",
    ],
)
def test_a_program_gets_no_more_memory_than_its_limit(program: str) -> None:
    done = run_command([sys.executable, "-c", program], memory=1 << 30)
    assert done.returncode != 0 and "MemoryError" in done.stderr
    assert run_command([sys.executable, "-c", "print(1)"], memory=1 << 30).stdout == "1\n"


def test_a_timeout_ends_what_the_program_started() -> None:
    """A child that holds the pipes would be waited for otherwise."""
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sh", "-c", "sleep 300 & sleep 300"], timeout=0.5, own_session=True)
    assert time.monotonic() - began < 100
