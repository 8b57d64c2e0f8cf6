"""What supervision costs: the same command bare and supervised, in pairs, on one machine.

    python benchmarks/overhead.py [--pairs 5] [--steps 60] [--trainer trl_sft] [--processes 1] [--together] [--out FILE]

Bare is the run folder's command.sh (`accelerate launch ...`) in a shell, its output in a file;
supervised is `python -m launch run` of the same plan. The two take turns, and each pair begins with
the other one. Three times are compared: the training loop by the trainer's own clock, the trainer's
command as a whole, and everything that the user waits for (planning, preflight and record
included). On a machine that does other work too, the pairs differ by more than supervision costs:
the CPU time of the supervising processes, read from the system, does not. It is told of the whole
command and of the training loop alone.

OMP_NUM_THREADS=1 leaves the supervising processes a core of two, as every machine with GPUs does.

With --together the two of a pair run at the same time, each bound to one core, and change cores
from pair to pair: what else the machine does meets both. The supervising processes then share the
core of their trainer, which is the worst case: elsewhere there is another one for them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from launch.trials.bench.verdict import paired_ratio  # noqa: E402

STAGES = {
    "trl_sft": "demo",
    "finetune": "demo",
    "trl_dpo": "demo_dpo",
    "dpo_tune_cache": "demo_dpo",
}
PACKAGES = ("torch", "transformers", "accelerate", "trl", "psutil")
_BEFORE_THE_TRAINER = 30.0  # seconds, at most
# what transformers' Trainer prints at its end
_RUNTIME = re.compile(r"'train_runtime': '?([\d.]+)")


def supervised(
    home: Path, words: list[str], name: str, core: int | None = None
) -> dict[str, float]:
    """Run the plan under the supervisor; seconds of the loop, of the trainer's command and of
    everything. `core`: that all of it is bound to.
    """
    log = home / f"{name}.log"
    began = time.perf_counter()
    with log.open("wb") as out:
        command = [*_bound(core), sys.executable, "-m", "launch", "run", *words, f"name={name}"]
        process = psutil.Popen(
            command, cwd=home, stdout=out, stderr=subprocess.STDOUT, env=_environment()
        )
        spent = _cpu_until_end(process)
    whole = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {process.returncode}: {log.read_text()[-2000:]}"
        )
    folder = next((home / "runs").glob(f"*/{name}"))
    done = json.loads((folder / "DONE").read_text(encoding="utf-8"))
    times = {"whole": whole, "command": done["seconds"], "cpu_of_supervision": spent[-1][1]}
    times["cpu_of_supervision_in_the_loop"] = _within(spent, *_loop_began_and_ended(folder))
    return times | _loop(folder / "logs" / "rank-0.log")


def _cpu_until_end(process: psutil.Popen) -> list[tuple[float, float]]:
    """CPU seconds of the launcher and its reaper themselves, without the trainer, ten times a
    second: when (unix seconds), and how many so far.
    """
    spent: dict[int, float] = {}
    looks = [(time.time(), 0.0)]
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            for one in [process, *process.children()]:
                words = " ".join(one.cmdline())
                if "reaper.py" in words or one.pid == process.pid:
                    times = one.cpu_times()
                    spent[one.pid] = times.user + times.system
        looks.append((time.time(), sum(spent.values())))
        time.sleep(0.1)
    return looks


def _loop_began_and_ended(folder: Path) -> tuple[float, float]:
    """When training began and the trainer turned to saving its model, unix seconds."""
    events = [
        json.loads(line)
        for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    phases = {event["phase"]: event["time"] for event in events if event["kind"] == "phase"}
    return phases["training"], phases["save"]


def _within(spent: list[tuple[float, float]], began: float, ended: float) -> float:
    """CPU seconds between two moments."""
    during = [seconds for moment, seconds in spent if began <= moment <= ended]
    return during[-1] - during[0]


def _bound(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "--cpu-list", str(core)]


def bare(home: Path, like: str, name: str, core: int | None = None) -> dict[str, float]:
    """Run the command.sh of the run `like` in a shell, its output folder renamed to that of
    `name`.
    """
    folder = next((home / "runs").glob(f"*/{like}"))
    script = home / f"{name}.sh"
    text = (folder / "command.sh").read_text(encoding="utf-8")
    script.write_text(text.replace(str(folder), str(folder.with_name(name))), encoding="utf-8")
    log = home / f"{name}.log"
    began = time.perf_counter()
    with log.open("wb") as out:
        subprocess.run(
            [*_bound(core), "bash", str(script)],
            cwd=home,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=True,
        )
    took = time.perf_counter() - began
    return {"whole": took, "command": took} | _loop(log)


def _loop(log: Path) -> dict[str, float]:
    found = _RUNTIME.search(log.read_text(encoding="utf-8", errors="replace"))
    return {"loop": float(found[1])} if found else {}


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def measure(home: Path, words: list[str], pairs: int, together: bool) -> list[dict[str, Any]]:
    """The pairs, after one run that makes data and caches."""
    supervised(home, words, "warm")
    measured = []
    for number in range(pairs):
        pair: dict[str, Any] = {"load_before": os.getloadavg()[0]}
        if together:
            pair |= _side_by_side(home, words, number)
            measured.append(pair)
            print(json.dumps(pair), flush=True)
            continue
        for how in ("supervised", "bare") if number % 2 else ("bare", "supervised"):
            name = f"{how}-{number}"
            pair[how] = bare(home, "warm", name) if how == "bare" else supervised(home, words, name)
        measured.append(pair)
        print(json.dumps(pair), flush=True)
    return measured


def _side_by_side(home: Path, words: list[str], number: int) -> dict[str, dict[str, float]]:
    """A pair at the same time. What the launcher does before its trainer starts is let pass
    first.
    """
    first, second = number % 2, 1 - number % 2
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(supervised, home, words, f"supervised-{number}", first)
        until = time.monotonic() + _BEFORE_THE_TRAINER
        while (
            not list((home / "runs").glob(f"*/supervised-{number}/logs/*"))
            and time.monotonic() < until
        ):
            time.sleep(0.02)
        other = pool.submit(bare, home, "warm", f"bare-{number}", second)
        return {"bare": other.result(), "supervised": one.result()}


def summary(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Supervised / bare - 1, by what was timed: median, least, greatest, and `bench`'s 95%
    interval; the share of CPU time.
    """
    found: dict[str, Any] = {}
    for key in ("loop", "command", "whole"):
        ratio = paired_ratio(
            [pair["supervised"][key] / pair["bare"][key] for pair in pairs if key in pair["bare"]]
        )
        if ratio is not None:
            found[key] = {"median": ratio.median - 1, "min": ratio.least - 1, "max": ratio.most - 1}
            if ratio.low is not None and ratio.high is not None:
                found[key] |= {"low": ratio.low - 1, "high": ratio.high - 1}
    for name, of in (("cpu_of_supervision", "whole"), ("cpu_of_supervision_in_the_loop", "loop")):
        shares = [pair["supervised"][name] / pair["supervised"][of] for pair in pairs]
        found[f"{name}_by_wall_time"] = {"median": statistics.median(shares), "max": max(shares)}
    return found


def main() -> int:
    """Measure, print, and write JSON when asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--trainer", choices=STAGES, default="trl_sft")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--together", action="store_true", help="both of a pair at the same time, each on its core"
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    words = [f"stage={STAGES[asked.trainer]}", f"trainer={asked.trainer}", "device=cpu"]
    words += [f"processes={asked.processes}", f"recipe.max_steps={asked.steps}"]
    with tempfile.TemporaryDirectory() as folder:
        pairs = measure(Path(folder), words, asked.pairs, asked.together)
    result = summary(pairs)
    for name, values in result.items():
        print(f"{name}: " + ", ".join(f"{key} {value:+.2%}" for key, value in values.items()))
    if asked.out:
        record = {
            "schema_version": 1,
            "machine": {
                "platform": platform.platform(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            },
            "versions": {name: metadata.version(name) for name in PACKAGES},
            "command": f"python benchmarks/overhead.py --pairs {asked.pairs} --steps {asked.steps} "
            f"--trainer {asked.trainer} --processes "
            f"{asked.processes}{' --together' if asked.together else ''}",
            "plan": words,
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
            "pairs": pairs,
            "supervised_by_bare_minus_1": result,
        }
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
