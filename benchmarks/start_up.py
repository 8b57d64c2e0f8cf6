"""Wall time of `launch plan` beside what its users start today, in one run on one machine.

    python benchmarks/start_up.py [--repeats 5] [--out benchmarks/start_up.json]

Each command runs once to warm the file cache, then the commands take turns; medians are compared. A command whose
package is not installed is left out. The floor is a bare Hydra application with six groups.
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

PLAN = [sys.executable, "-m", "launch", "plan", "stage=sft_25pct", "gpus=8"]
SCRIPTS = Path(sys.executable).parent
PEERS = {
    "accelerate": [str(SCRIPTS / "accelerate"), "launch", "--help"],
    "trl": [str(SCRIPTS / "trl"), "sft", "--help"],
    "torch": [str(SCRIPTS / "torchrun"), "--help"],
    "deepspeed": [str(SCRIPTS / "deepspeed"), "--help"],
}
SHARE = 0.25  # of `accelerate launch --help`, that `launch plan` may take


def seconds(command: Sequence[str], cwd: str) -> float:
    """Wall seconds of one run. Raises RuntimeError when it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    return took


def measure(commands: dict[str, Sequence[str]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every repeat of every command, one after the other in turn."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as cwd:
        for command in commands.values():
            seconds(command, cwd)
        for _ in range(repeats):
            for name, command in commands.items():
                times[name].append(seconds(command, cwd))
    return times


def _installed(name: str) -> bool:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.version(name))
    return False


def main() -> int:
    """Measure, print a table, write JSON when asked; exit 1 when `launch plan` takes more than its share."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    commands: dict[str, Sequence[str]] = {"launch plan stage=sft_25pct gpus=8": PLAN}
    commands |= {
        f"{Path(argv[0]).name} {' '.join(argv[1:])}": argv for argv in PEERS.values() if Path(argv[0]).is_file()
    }
    times = measure(commands, asked.repeats)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        print(f"{medians[name]:7.3f} s  (min {min(values):.3f}, max {max(values):.3f})  {name}")
    reference = next(name for name in medians if name.startswith("accelerate"))
    share = next(iter(medians.values())) / medians[reference]
    print(f"launch plan takes {share:.1%} of accelerate launch --help (at most {SHARE:.0%})")
    if asked.out:
        record = {
            "schema_version": 1,
            "machine": {"platform": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()},
            "versions": {name: metadata.version(name) for name in ("hydra-core", *PEERS) if _installed(name)},
            "command": "python benchmarks/start_up.py",
            "repeats": asked.repeats,
            "seconds": times,
            "share_of_accelerate": share,
        }
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return int(share > SHARE)


if __name__ == "__main__":
    raise SystemExit(main())
