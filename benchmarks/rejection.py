"""Time from pressing return to the word that a flag is misspelt, for the same typo, in one run on
one machine.

    python benchmarks/rejection.py [--repeats 3] [--out benchmarks/rejection.json]

`--learnin_rate` for `--learning_rate`, given to this launcher, to TRL's command, to open-instruct's
own script (needs OPEN_INSTRUCT_DIR), and the like for accelerate's own flags. Each command runs
once to warm the file cache, then they take turns. A command that does not reject the typo is an
error here. What is not installed is left out, by name.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

TYPO = "learnin_rate"
SCRIPTS = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("trl", "transformers", "accelerate", "torch", "hydra-core", "axolotl")


def commands(script: Path) -> dict[str, Sequence[str]]:
    """The commands to time by name; `script` holds a shell command with the typo."""
    found: dict[str, Sequence[str]] = {
        "launch plan": [sys.executable, "-m", "launch", "plan", "stage=sft", f"flags.{TYPO}=1e-5"],
        "launch lint": [sys.executable, "-m", "launch", "lint", str(script)],
        "trl sft": [
            str(SCRIPTS / "trl"),
            "sft",
            "--model_name_or_path",
            "x",
            "--use_cpu",
            "true",
            f"--{TYPO}",
            "1",
        ],
        "accelerate launch (its own flag)": [
            str(SCRIPTS / "accelerate"),
            "launch",
            "--num_proceses",
            "1",
            "x.py",
        ],
        "axolotl train": [str(SCRIPTS / "axolotl"), "train", "x.yaml", f"--{TYPO}", "1"],
    }
    checkout = os.environ.get("OPEN_INSTRUCT_DIR")
    if checkout:
        said = [
            "--push_to_hub",
            "false",
            "--try_launch_beaker_eval_jobs",
            "false",
            f"--{TYPO}",
            "1",
        ]
        found["open-instruct finetune.py"] = [
            sys.executable,
            f"{checkout}/open_instruct/finetune.py",
            *said,
        ]
    return {name: argv for name, argv in found.items() if Path(argv[0]).is_file()}


def seconds(name: str, argv: Sequence[str], cwd: str) -> float:
    """Wall seconds until the command has refused. Raises RuntimeError when it did not, or not for
    the typo.
    """
    path = [str(ROOT), os.environ.get("OPEN_INSTRUCT_DIR", ""), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "HF_HUB_OFFLINE": "1",
    }
    began = time.perf_counter()
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    typo = "num_proceses" if name.startswith("accelerate") else TYPO
    if done.returncode == 0 or typo not in done.stderr + done.stdout:
        raise RuntimeError(
            f"{name} did not reject the typo (exit code {done.returncode}): {done.stderr[-600:]}"
        )
    return took


def main() -> None:
    """Measure, print a table, write JSON when asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as cwd:
        script = Path(cwd) / "train.sh"
        script.write_text(
            f"accelerate launch open_instruct/finetune.py --{TYPO} 1e-5\n", encoding="utf-8"
        )
        timed = commands(script)
        for name, argv in timed.items():
            seconds(name, argv, cwd)
        for _ in range(asked.repeats):
            for name, argv in timed.items():
                times.setdefault(name, []).append(seconds(name, argv, cwd))
    for name, values in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        print(
            f"{statistics.median(values):7.3f} s  (min {min(values):.3f}, max {max(values):.3f})  "
            f"{name}"
        )
    if asked.out:
        versions = {}
        for package in PACKAGES:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[package] = metadata.version(package)
        record = {
            "schema_version": 1,
            "machine": {
                "platform": platform.platform(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            },
            "versions": versions,
            "command": "python benchmarks/rejection.py",
            "repeats": asked.repeats,
            "seconds": times,
        }
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
