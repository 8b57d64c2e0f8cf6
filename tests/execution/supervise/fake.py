"""Runs fake trainers under the real supervisor: small scripts that speak the channel's protocol."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from launch.execution.display import PlainDisplay
from launch.execution.facts import GuardContext
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from launch.execution.supervise.processes import ServerProgram
from launch.execution.supervise.supervisor import Execution, supervise
from launch.execution.supervise.watch import WatchConfig
from tests.paths import ROOT

# What the worker does first: its output and its events go into the channel of its rank.
CONNECT = """
import json, os, signal, subprocess, sys, time
os.chdir(os.path.dirname(os.path.abspath(__file__)))
RANK = int(os.environ.get("RANK", "0"))
CHANNEL = os.environ["LAUNCH_CHANNEL"]
fd = os.open(f"{CHANNEL}/rank-{RANK}.out", os.O_WRONLY)
os.dup2(fd, 1); os.dup2(fd, 2)
sys.stdout.reconfigure(line_buffering=True)
EVENTS = os.open(f"{CHANNEL}/rank-{RANK}.events", os.O_WRONLY | os.O_NONBLOCK)
def event(kind, **data):
    whole = {"schema_version": 1, "kind": kind, "time": time.time(), "rank": RANK, **data}
    os.write(EVENTS, json.dumps(whole).encode() + b"\\n")
"""


@dataclass(frozen=True)
class Finished:
    """What came of a run: its outcome, folder and what the terminal showed."""

    outcome: Outcome
    folder: RunFolder
    shown: str

    def log(self, rank: int = 0) -> bytes:
        return (self.folder.logs / f"rank-{rank}.log").read_bytes()

    def metrics(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in self.folder.metrics.read_text(encoding="utf-8").splitlines()
        ]

    def events(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.folder.events.read_text(encoding="utf-8").splitlines()
        ]


def script(folder: Path, body: str, name: str = "trainer.py") -> Path:
    """A fake trainer's file: CONNECT, then `body`."""
    path = folder / name
    path.write_text(CONNECT + textwrap.dedent(body), encoding="utf-8")
    return path


def run(
    folder: Path,
    body: str,
    *,
    before: Sequence[str] = (),
    ranks: Sequence[int] = (0,),
    env: Mapping[str, str] | None = None,
    server: ServerProgram | None = None,
) -> Finished:
    """Runs `python BEFORE trainer.py` to its end under the supervisor."""
    run_folder = RunFolder(folder / "run")
    run_folder.create()
    argv = (sys.executable, *before, str(script(folder, body)))
    shown = io.StringIO()
    watched = WatchConfig(guard_context=GuardContext(ranks=tuple(ranks)))
    execution = Execution(argv=argv, env=env or {}, watch_config=watched, server=server)
    outcome = supervise(execution, run_folder, PlainDisplay(shown))
    run_folder.finish(outcome)
    return Finished(outcome, run_folder, shown.getvalue())


_SUPERVISOR = """
import signal
import sys
from pathlib import Path
from launch.execution.record.folder import RunFolder
from launch.execution.display import display_for
from launch.execution.supervise.supervisor import Execution, supervise
from launch.execution.supervise.watch import WatchConfig
from launch.execution.facts import GuardContext
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever runs the tests may ignore it, as nohup does
folder = Path(sys.argv[1])
run = RunFolder(folder / "run")
run.create()
watched = WatchConfig(guard_context=GuardContext(ranks=tuple(range(int(sys.argv[2])))))
outcome = supervise(
    Execution(argv=tuple(sys.argv[3:]), watch_config=watched, env={"FAKE": sys.argv[1]}),
    run, display_for(sys.stdout),
)
run.finish(outcome)
sys.exit(outcome.exit_code)
"""


def supervisor_command(
    folder: Path, body: str, before: Sequence[str] = (), ranks: int = 1
) -> list[str]:
    """A supervisor of its own around the fake trainer, to be run from ROOT.

    Every process of the run has FAKE=<folder> in its environment: `alive` finds them.
    """
    path = script(folder, body)
    return [
        sys.executable,
        "-c",
        _SUPERVISOR,
        str(folder),
        str(ranks),
        sys.executable,
        *before,
        str(path),
    ]


def start_supervisor(
    folder: Path, body: str, before: Sequence[str] = (), ranks: int = 1
) -> subprocess.Popen[bytes]:
    """Starts `supervisor_command`; what it shows goes to `shown.txt`."""
    with (folder / "shown.txt").open("wb") as shown:
        return subprocess.Popen(
            supervisor_command(folder, body, before, ranks),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=subprocess.STDOUT,
        )


def alive(folder: Path) -> list[psutil.Process]:
    """The living processes of the run in `folder`: by their environment, so wherever they are in
    the tree.
    """
    processes = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("FAKE") == str(folder)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> float:
    """Waits until `condition` holds and returns how long that took; fails when it never does."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it never happened"
        time.sleep(0.02)
    return time.monotonic() - began
