"""Why jobs of a real Slurm ended, in the words of Slurm."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.slurm.cluster import Cluster, until
from tests.slurm.runs import log
from tests.slurm.stand_ins import ECC, ON_TWO, SLEEPS, sleepers, stand_in_overrides
from tests.thorough import mark_others

pytestmark = pytest.mark.slow


def launchers(slurm: Cluster, job: str, node: str) -> list[psutil.Process]:
    """The processes of launch on a node of a job: the supervisor and its reaper."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            environ = process.environ()
            words = process.info["cmdline"] or []
            if environ.get("SLURM_JOB_ID") != job or environ.get("SLURMD_NODENAME") != node:
                continue
            if environ.get("SLURM_CONF") == slurm.environ["SLURM_CONF"] and "launch" in words[:4]:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@dataclass(frozen=True)
class End:
    """A way in which a job ends, and what is to be read of it."""

    name: str
    bring_about: Callable[[Cluster, str], object]
    cause: str  # the beginning of the cause; {} is the job
    state: str  # Slurm's
    exit_code: int
    overrides: tuple[str, ...] = ("cluster.options=['--nodelist=n1']",)
    does: str = SLEEPS
    printed: str = ""  # in the job's log; {} is the job
    cause_id: str | None = None


AN_HOUR = "cluster.time='01:00:00'"


def nothing(slurm: Cluster, job: str) -> None:
    """The job ends by itself."""


def send_launchers(node: str, number: signal.Signals) -> Callable[[Cluster, str], object]:
    """Send a signal to the launchers of a node."""

    def send(slurm: Cluster, job: str) -> None:
        for process in launchers(slurm, job, node):
            process.send_signal(number)

    return send


def end_in(seconds: int) -> Callable[[Cluster, str], object]:
    """Move a job's time limit, which Slurm looks at every 30 seconds."""

    def move(slurm: Cluster, job: str) -> None:
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
        slurm.run("scontrol", "update", f"JobId={job}", f"EndTime={end}")

    return move


# Those that Slurm brings about at its next look come first.
ENDS = [
    End(
        "timed-out",
        end_in(2),
        "job {} reached its time limit (",
        "TIMEOUT",
        130,
        (AN_HOUR, "cluster.warn_before=0"),
    ),
    # without a checkpoint it would only be again, so the run goes on until 30 s before the limit
    End(
        "warned",
        end_in(70),
        "the time limit is near",
        "FAILED",
        130,
        (AN_HOUR, "cluster.warn_before=40"),
        printed="job {} is not requeued: there is no complete checkpoint",
    ),
    End(
        "cancelled",
        lambda slurm, job: slurm.run("scancel", job),
        "job {} was cancelled",
        "CANCELLED",
        130,
    ),
    End(
        "signalled",
        lambda slurm, job: slurm.run("scancel", "--signal=USR1", job),
        "a signal was sent to job {}",
        "FAILED",
        130,
    ),
    End(
        "all-signalled",
        lambda slurm, job: slurm.run("scancel", "--full", "--signal=TERM", job),
        "",
        "FAILED",
        1,
    ),
    End("launcher-killed", send_launchers("n2", signal.SIGKILL),
        "the launcher on node n2 ended: Killed", "FAILED", 1, ON_TWO),
    # where another node fits, the job starts again there (test_losses)
    End(
        "gpu-fault",
        nothing,
        "AcceleratorError: CUDA error: uncorrectable ECC error",
        "FAILED",
        1,
        does=f"cat <<'END' >&2\n{ECC}END\nexit 7",
        printed="n1 cannot be excluded, so job {} is not started again",
        cause_id="gpu_fault",
    ),
]  # fmt: skip
FURTHER_ENDS = [
    End("crashed", send_launchers("n1", signal.SIGSEGV),
        "the launcher on node n1 ended: Segmentation fault", "FAILED", 1),
    End("first-aborted", send_launchers("n1", signal.SIGABRT),
        "the launcher on node n1 ended: Aborted", "FAILED", 1, ON_TWO),
    End("steps-killed", lambda slurm, job: slurm.run("scancel", "--signal=KILL", job),
        "job {} was cancelled", "CANCELLED", 130),
]  # fmt: skip


@pytest.mark.parametrize(
    "ends", mark_others([(ENDS,), (FURTHER_ENDS,)], kept=[(ENDS,)]), ids=["each", "further"]
)
def test_the_cause_is_what_slurm_knows(slurm: Cluster, home: Path, ends: Sequence[End]) -> None:
    jobs = {}
    for end in ends:
        overrides = stand_in_overrides(home, end.name, end.does, *end.overrides)
        [jobs[end.name]] = slurm.submit(*overrides, cwd=home)
    nodes = sum(2 if end.overrides == ON_TWO else 1 for end in ends if end.does == SLEEPS)
    until(lambda: len(sleepers(slurm)) == 2 * nodes, 120)
    for end in ends:
        end.bring_about(slurm, jobs[end.name])
    for end in ends:
        job = jobs[end.name]
        printed = log(home, end.name)
        assert slurm.wait(job, 120) == end.state, (end.name, printed)
        failed = read_failed(home, end.name)
        assert failed["cause"].startswith(end.cause.format(job)), (end.name, failed)
        assert failed["exit_code"] == end.exit_code, (end.name, failed)
        assert "SIGTERM" not in json.dumps(failed), failed
        assert end.printed.format(job) in log(home, end.name), (end.name, printed)
        assert failed.get("cause_id") == end.cause_id, failed
    assert not sleepers(slurm)
    done = slurm.launch("status", "--json", cwd=home)
    shown = {run["run"]: run for run in json.loads(done.stdout)}
    for end in ends:
        run = shown[f"demo/{end.name}"]
        assert run["cause"] == read_failed(home, end.name)["cause"], run


def read_failed(home: Path, name: str) -> dict[str, Any]:
    failed: dict[str, Any] = json.loads((home / "runs" / "demo" / name / "FAILED").read_text())
    return failed
