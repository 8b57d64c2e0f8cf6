"""A real Slurm of four nodes on this machine, for the tests, and a stand-in for what a node
starts.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.integration import warm
from tests.paths import ROOT

LAB = Path(__file__).parent / "lab"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

# Runs the lines of the file STAND_IN instead of `accelerate launch`, once per node; anything else runs
# the real interpreter.
STAND_IN = """#!/bin/bash
rank=0
words=" $* "
case $words in *accelerate.commands.launch*) ;; *) exec {python} "$@" ;; esac
case $words in *" --machine_rank 1 "*) rank=1 ;; esac
. "$STAND_IN"
"""


def why_not() -> str | None:
    """What keeps a Slurm from running on this machine, None if nothing does."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a Slurm for the tests needs root on Linux"
    missing = [name for name in NEEDED if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"no Slurm: {', '.join(missing)} not installed (apt-get install slurm-wlm munge)"
    if subprocess.run(["unshare", "-mu", "true"], capture_output=True, check=False).returncode:
        return "a Slurm for the tests needs namespaces of its own (unshare -mu)"
    return None


def environment() -> dict[str, str]:
    """This process's variables, without those of an enclosing Slurm job."""
    kept = {
        key: os.environ[key]
        for key in os.environ
        if not key.startswith(("SLURM_", "SBATCH_", "LAUNCH_"))
    }
    return {**kept, "PATH": _PATH, "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Cluster:
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {**environment(), "SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}

    @property
    def keeps_accounts(self) -> bool:
        """Whether slurmdbd and a database were installed, so that limits of accounts and QOS are
        enforced.
        """
        return (self.folder / "etc" / "slurmdbd.conf").exists()

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def launch(self, *argv: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
        return launch(*argv, cwd=cwd, environ={**self.environ, **more})

    def submit(self, *overrides: str, cwd: Path, **more: str) -> list[str]:
        """The ids of the jobs."""
        done = self.launch(
            "submit", *overrides, "cluster.cpus_per_rank=1", "--json", cwd=cwd, **more
        )
        assert done.returncode == 0, done.stdout + done.stderr
        import json

        return [run["job_id"] for run in json.loads(done.stdout)]

    def fields(self, job_id: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        values: dict[str, str] = {}
        for word in self.run("scontrol", "show", "job", job_id).split():
            name, _, value = word.partition("=")
            values.setdefault(name, value)
        return values

    def state(self, job_id: str) -> str:
        return self.fields(job_id)["JobState"]

    def hosts(self, job_id: str) -> list[str]:
        return self.run("scontrol", "show", "hostnames", self.fields(job_id)["NodeList"]).split()

    def free(self, *names: str) -> bool:
        """Whether nodes hold no job, and none that is completing."""
        states = self.run("sinfo", "-h", "-N", "-o", "%N %t").splitlines()
        return all(f"{name} idle" in states for name in names)

    def set_down(self, name: str) -> None:
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")

    def wait(self, job_id: str, seconds: float) -> str:
        """The job's last state, once it has one and has let its nodes go."""
        states = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        until(
            lambda: self.state(job_id) not in states and not self.run("squeue", "-h", "-j", job_id),
            seconds,
        )
        return self.state(job_id)

    def kill_node(self, name: str) -> None:
        """What a machine that loses power looks like: its slurmd and every process of it, at once.

        srun has a second process, which kills the step on every node as soon as the first one is
        gone: so all are stopped before any is killed, and then the youngest first, because the
        kernel continues a stopped process group that loses its parent.
        """
        slurmd = psutil.Process(int((self.folder / "spool" / name / "slurmd.pid").read_text()))
        namespace = Path(f"/proc/{slurmd.pid}/ns/uts").readlink()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in sorted(
                psutil.process_iter(), key=psutil.Process.create_time, reverse=True
            ):
                with suppress(OSError, psutil.Error):
                    if Path(f"/proc/{process.pid}/ns/uts").readlink() == namespace:
                        process.send_signal(number)

    def clear(self) -> None:
        """Bring back dead nodes and cancel every job: what a failed test leaves must not fail the
        next one.
        """
        for pid_file in (self.folder / "spool").glob("*/slurmd.pid"):
            if not psutil.pid_exists(int(pid_file.read_text())):
                self.start_node(pid_file.parent.name)
        if self.run("squeue", "--noheader"):
            self.run("scancel", "--full", f"--user={os.geteuid()}")
            until(lambda: not self.run("squeue", "--noheader"), 60)

    def start_node(self, name: str) -> None:
        subprocess.run(
            [str(LAB / "node.sh"), str(self.folder), name],
            env=environment(),
            check=True,
            timeout=60,
        )
        until(lambda: name in self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split(), 60)


def launch(*argv: str, cwd: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launch", *argv],
        cwd=cwd,
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until `holds`, at most `seconds` of a machine that has nothing else to do."""
    began = time.monotonic()
    while not holds():
        patience = seconds * min(4.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        assert time.monotonic() - began < patience, f"not within {patience:.0f} s"
        time.sleep(0.2)


def _free_ports() -> int:
    """A port whose 400 neighbours above are probably free: those that the daemons listen on are."""
    ports = range(26_800, 32_000, 400)
    for first in random.sample(ports, len(ports)):  # two that start at once must not take the same
        sockets = []
        try:
            for port in range(first, first + 10):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for bound in sockets:
                bound.close()
    raise AssertionError("no free ports for a Slurm")


@contextmanager
def running() -> Iterator[Cluster]:
    """The cluster, from start to stop; its sockets want a short path that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
    try:
        environ = {**environment(), "LAB_PORT": str(_free_ports())}
        started = subprocess.run(
            [str(LAB / "start.sh"), str(folder)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert started.returncode == 0, started.stdout + started.stderr
        yield Cluster(folder)
    finally:
        subprocess.run(
            [str(LAB / "stop.sh"), str(folder)], env=environment(), check=False, timeout=90
        )
        shutil.rmtree(folder, ignore_errors=True)


def stand_in(home: Path, name: str, does: str) -> list[str]:
    """Return the overrides with which a run does what the lines of bash say in place of `accelerate
    launch`; `$rank` is the node's.

    All runs have the same interpreter, in which the trainer's own parser is asked in a process that
    has imported it.
    """
    lines = home / f"{name}.sh"
    lines.write_text(does)
    python = home / "python"
    if not python.exists():
        python.write_text(STAND_IN.format(python=warm.python_with_cold_ranks()))
        python.chmod(0o755)
    return [f"python='{python}'", f"cluster.env.STAND_IN='{lines}'"]
