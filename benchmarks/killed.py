"""A run that is killed by SIGKILL after a checkpoint, and resumed, on one GPU.

    python benchmarks/killed.py --models FOLDER [--trainer TRAINER] [--out FILE] [--limit SECONDS]

FOLDER is made by benchmarks/make_inputs.py with the trainer's shape. TRAINER is one of proofs.py.
FILE has the losses of the killed run and of the one that went on, which computes the steps after
the checkpoint a second time, the step that it went on from, and its evidence.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from proofs import ROOT, SHARED, TRAINERS, mixture, read_versions

CHECKPOINT = 6  # the step of the only checkpoint before the last


def read_steps(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's steps, but one that is still being written."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def start(command: list[str], home: Path, log: str) -> subprocess.Popen[bytes]:
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")])
    with (home / log).open("wb") as output:
        return subprocess.Popen(command, cwd=home, env=environ, stdout=output, stderr=output)


def kill_after_checkpoint(process: subprocess.Popen[bytes], runs: Path, limit: float) -> None:
    """Kill the launcher and all its descendants once two steps have followed the checkpoint."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"the run ended by itself, exit code {process.returncode}")
        if any(read_steps(run)[CHECKPOINT + 1 :] for run in runs.glob("*/killed")):
            break
        time.sleep(0.05)
    launcher = psutil.Process(process.pid)
    for one in [*launcher.children(recursive=True), launcher]:
        one.send_signal(signal.SIGKILL)
    process.wait()


def losses_of(run: Path) -> dict[int, float | None]:
    return {row["step"]: row.get("loss") for row in read_steps(run)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=Path, required=True, help="folder of make_inputs.py")
    parser.add_argument("--trainer", default="olmo_core_finetune", choices=TRAINERS)
    parser.add_argument("--out", type=Path, default=Path("killed.json"))
    parser.add_argument("--limit", type=float, default=270, help="seconds of a run")
    options = parser.parse_args()
    trainer = TRAINERS[options.trainer]
    content: dict[str, Any] = {"versions": read_versions(), "trainer": options.trainer}

    def note(**facts: Any) -> None:
        content.update(facts)
        print(json.dumps(facts), flush=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        home = Path(folder)
        every = (*SHARED, *trainer.words, f"recipe.checkpoint_steps={CHECKPOINT}")
        words = {word.partition("=")[0]: word for word in every}
        command = [
            *(sys.executable, "-m", "launch", "run", "name=killed", f"runs={home / 'runs'}"),
            f"model.path={options.models.absolute() / trainer.model}",
            mixture(options.models.absolute(), home, trainer.data),
            *words.values(),
        ]
        began = time.monotonic()
        kill_after_checkpoint(start(command, home, "killed.log"), home / "runs", options.limit)
        run = next((home / "runs").glob("*/killed"))
        note(killed_after_seconds=round(time.monotonic() - began), losses_killed=losses_of(run))
        began = time.monotonic()
        code = start(command, home, "resumed.log").wait(options.limit)
        log = (home / "resumed.log").read_text(encoding="utf-8", errors="replace").splitlines()
        note(exit_code=code, seconds=round(time.monotonic() - began), last_lines=log[-12:])
        attempts = (run / "attempts.jsonl").read_text(encoding="utf-8").splitlines()
        items = json.loads((run / "evidence.json").read_text(encoding="utf-8"))["items"]
        note(
            losses_resumed=losses_of(run),
            resumed_from=[json.loads(line).get("resumed_from") for line in attempts],
            evidence={item["what"]: item.get("verdict") for item in items},
        )


if __name__ == "__main__":
    main()
