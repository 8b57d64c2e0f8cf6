"""A plan from the lock imports nothing heavy, and starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = {"torch", "transformers", "accelerate", "trl", "numpy", "rich", "yaml"}


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, launch.upstream.resolve, launch.upstream.rules.argv; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not HEAVY & {name.partition(".")[0] for name in shown}
    assert "launch.upstream.capture.start" not in shown


def test_a_plan_and_lint_read_no_help(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "accelerate launch open_instruct/finetune.py --learning_rate 1e-5\n", encoding="utf-8"
    )
    for arguments in (["plan", "stage=demo", "device=cpu"], ["lint", str(script)]):
        code = (
            f"import sys; from launch.__main__ import main; main({arguments}); print(*sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        modules = done.stdout.splitlines()[-1].split()
        assert (
            "launch.upstream.resolve" in modules and "launch.upstream.help_text" not in modules
        ), done.stderr
