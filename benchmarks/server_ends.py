"""How a run ends whose server of vLLM is killed, or whose port another process has, on one GPU.

    python benchmarks/server_ends.py --models FOLDER --out FILE [--limit SECONDS] [END ...]

FOLDER is made by benchmarks/make_inputs.py with the shape 1b. FILE has, for each end, the exit code,
the cause that the run names, and the processes of the server that are left. An END is `port` or
`killed`; both without any.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from proofs import SHARED, TRAINERS
from rlvr_grid import make_data

ANSWERS = "vLLM's server answers after"
ENDS = ("port", "killed")
TITLE = "VLLM::"
PORT = 8000  # trl/trainer/grpo_config.py
KILL_AFTER = 4.0  # seconds after the server's first answer


def server_processes() -> list[psutil.Process]:
    """Return the processes of a vLLM server that run on this machine.

    vLLM gives its processes titles of its own (vllm/utils/system_utils.py, `set_process_title`).
    """
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trl.scripts.vllm_serve" in words or any(word.startswith(TITLE) for word in words):
            found.append(process)
    return found


def start(models: Path, home: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a run, and return its process and its log."""
    trainer = TRAINERS["rlvr_server"]
    words = {word.partition("=")[0]: word for word in (*SHARED, *trainer.words)}
    words["recipe.max_steps"] = "recipe.max_steps=40"
    command = [
        *(sys.executable, "-m", "launch", "run", "name=server", f"runs={home / 'runs'}"),
        *(f"model.path={models / trainer.model}", f"data.mix=[{{name: {make_data(home)}}}]"),
        *words.values(),
        f"recipe.verifier={home / 'rules.py'}:share_of_e",
    ]
    log = home / "run.log"
    with log.open("w", encoding="utf-8") as output:
        return subprocess.Popen(command, cwd=home, stdout=output, stderr=output, text=True), log


def kill_when_it_answers(process: subprocess.Popen[str], log: Path, limit: float) -> None:
    """Kill the server's processes once the run says that the server answers."""
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        if ANSWERS in log.read_text(encoding="utf-8"):
            time.sleep(KILL_AFTER)
            for server in server_processes():
                server.send_signal(signal.SIGKILL)
            return
        time.sleep(0.5)


def make_run(models: Path, fault: str, limit: float) -> dict[str, Any]:
    """Make one run with a fault, and return how it ended."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="server-") as folder, socket.socket() as other:
        home = Path(folder)
        if fault == "port":
            other.bind(("127.0.0.1", PORT))
            other.listen()
        process, log = start(models, home)
        if fault == "killed":
            kill_when_it_answers(process, log, limit)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGINT)
            code = None
        failed = list((home / "runs").glob("*/server/FAILED"))
        causes = [json.loads(path.read_text(encoding="utf-8")).get("cause") for path in failed]
        output = log.read_text(encoding="utf-8").splitlines()
    return {
        "fault": fault,
        "exit_code": code,  # null: it ran past its limit
        "seconds": round(time.monotonic() - began),
        "cause": causes[0] if causes else None,
        "server_processes_left": len(server_processes()),
        "last_lines": output[-12:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ends", nargs="*", metavar="END", help="port or killed; both without any")
    parser.add_argument("--models", type=Path, required=True, help="folder of make_inputs.py")
    parser.add_argument("--out", type=Path, default=Path("server_ends.json"))
    parser.add_argument("--limit", type=float, default=200, help="seconds of a run")
    options = parser.parse_args()
    lines = []
    for fault in options.ends or ENDS:
        lines.append(make_run(options.models.absolute(), fault, options.limit))
        print(json.dumps(lines[-1]), flush=True)
        options.out.write_text(json.dumps({"runs": lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
