"""On a real (pseudo) terminal: drawn in place, and Ctrl-C typed there ends everything."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.execution.supervise.fake import ROOT, alive, supervisor_command

BODY = """
event("total_steps", steps=50)
event("phase", phase="training")
event("step", step=7, lr=5e-06, loss=1.25)
time.sleep(600)
"""


def _read_until(terminal: int, wanted: bytes, seconds: float = 60) -> bytes:
    """What the terminal showed until `wanted` came or its other side closed."""
    seen = b""
    deadline = time.monotonic() + seconds
    while wanted not in seen and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 1 << 16)
            except OSError:
                break
    return seen


@pytest.mark.skipif(shutil.which("setsid") is None, reason="needs setsid of util-linux")
def test_ctrl_c_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    supervisor = subprocess.Popen(
        # setsid --ctty gives it the terminal as its own, so that Ctrl-C becomes SIGINT as for a
        # person
        ["setsid", "--ctty", "--wait", *supervisor_command(tmp_path, BODY)],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    assert b"step 7/50" in _read_until(ours, b"step 7/50")
    assert alive(tmp_path)
    os.write(ours, b"\x03")
    seen = _read_until(ours, b"never shown", 30)
    assert supervisor.wait(30) == 130
    assert alive(tmp_path) == []
    assert b"interrupted by SIGINT: 1 process ended, none left" in seen
    os.close(ours)
