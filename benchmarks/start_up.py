"""Compare the time of `launch plan` and `launch lint` with `accelerate launch --help`, in one run on
one machine.

    python benchmarks/start_up.py [--repeats 5] [--all] [--out benchmarks/start_up.json]

Every command runs once to warm the file cache and to compile, then the commands take turns. The
least times of the processor are compared, since other load makes the wall time longer. Exits with
1 if a ratio is above its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

SCRIPT = "accelerate launch open_instruct/finetune.py --learning_rate 1e-5 --logging_steps 1\n"
LAUNCH = [sys.executable, "-m", "launch"]
PLAN, LINT = "launch plan stage=sft_25pct gpus=8", "launch lint train.sh"
REFERENCE = "accelerate launch --help"
LIMITS = {PLAN: 0.25, LINT: 0.08}  # of the reference's processor time
PEERS = ("trl sft --help", "torchrun --help", "deepspeed --help")
PACKAGES = ("hydra-core", "accelerate", "trl", "torch", "deepspeed")


def run_seconds(
    command: Sequence[str], cwd: Path, environ: Mapping[str, str]
) -> tuple[float, float]:
    """Return the wall and the processor seconds of one run. Raises RuntimeError if it fails."""
    started = time.perf_counter()
    used = _children_seconds()
    done = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    processor = _children_seconds() - used
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} exited with {done.returncode}: {done.stderr[-500:]}"
        )
    return seconds, processor


def _children_seconds() -> float:
    """Return the processor seconds of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(
    commands: Mapping[str, Sequence[str]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the wall and the processor seconds of every repeat of every command; the commands take
    turns.
    """
    environ = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    processor: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        (cwd / "train.sh").write_text(SCRIPT, encoding="utf-8")
        for command in commands.values():
            run_seconds(command, cwd, environ)
        for _ in range(repeats):
            for name, command in commands.items():
                wall, used = run_seconds(command, cwd, environ)
                seconds[name].append(wall)
                processor[name].append(used)
    return seconds, processor


def _commands(others: Sequence[str]) -> dict[str, Sequence[str]]:
    """The commands by their names; one whose script is not installed is left out."""
    commands: dict[str, Sequence[str]] = {
        name: [*LAUNCH, *name.split()[1:]] for name in (PLAN, LINT)
    }
    for name in (REFERENCE, *others):
        script, *arguments = name.split()
        path = Path(sys.executable).parent / script
        if path.is_file():
            commands[name] = [str(path), *arguments]
    return commands


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def main() -> int:
    """Measure, print a table, write JSON if requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--all", action="store_true", help="measure trl, torchrun and deepspeed, too"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    commands = _commands(PEERS if options.all else ())
    if REFERENCE not in commands:
        parser.error("accelerate is not installed")
    seconds, processor = measure(commands, options.repeats)
    for name, values in seconds.items():
        spread = f"(median {statistics.median(values):.3f}, max {max(values):.3f})"
        used = f"{min(processor[name]):.3f} s of the processor"
        print(f"{min(values):7.3f} s  {spread}, {used}  {name}")
    ratios = {name: min(processor[name]) / min(processor[REFERENCE]) for name in LIMITS}
    for name, limit in LIMITS.items():
        print(f"{name}: {ratios[name]:.3f} of {REFERENCE} (at most {limit:.2f})")
    if options.out:
        record = {
            "schema_version": 3,
            "machine": {
                "platform": platform.platform(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            },
            "versions": _versions(),
            "command": " ".join(["python", "benchmarks/start_up.py", *sys.argv[1:]]),
            "repeats": options.repeats,
            "seconds": seconds,
            "processor_seconds": processor,
            "ratios": ratios,
        }
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return int(any(ratios[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
