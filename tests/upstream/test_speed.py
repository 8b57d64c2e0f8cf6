"""A plan from the lock imports nothing heavy, and starts nothing."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "transformers", "accelerate", "trl", "numpy", "rich", "yaml"}


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, launch.upstream.resolve, launch.upstream.rules.argv; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & {name.partition(".")[0] for name in shown}
    assert "launch.upstream.capture.start" not in shown
