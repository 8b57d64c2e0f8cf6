"""What starts a job on a real Slurm again: dead nodes, and being requeued; and what does not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from launch.slurm.jobs import JobFolder
from tests.slurm.cluster import Cluster, until
from tests.slurm.runs import cause, log, seconds_until_free
from tests.slurm.stand_ins import SLEEPS, sleepers, stand_in_overrides

pytestmark = pytest.mark.slow


def both_sleep(slurm: Cluster, home: Path, job: str, restarts: int) -> None:
    """Wait until both nodes' ranks run, after so many restarts."""
    folder = JobFolder.of(home / "runs", "demo", "again")
    until(
        lambda: any(
            (attempt / "start.json").is_file() for attempt in folder.attempts(job, restarts)
        ),
        90,
    )
    until(lambda: len(sleepers(slurm)) >= 4, 60)


def test_what_starts_a_job_again_and_what_does_not(slurm: Cluster, home: Path) -> None:
    """`scontrol requeue`; the death of the first node, where the batch script is; and a rank that is
    killed, which is an error of the job's own. (test_losses has the rest.)
    """
    run = home / "runs" / "demo" / "again"
    [job] = slurm.submit(
        *stand_in_overrides(home, "again", SLEEPS, "nodes=2", "cluster.heartbeat=8"), cwd=home
    )
    both_sleep(slurm, home, job, 0)
    nodes = slurm.hosts(job)
    slurm.run("scontrol", "requeue", job)
    seconds_until_free(slurm, "scontrol requeue", time.monotonic(), *nodes)
    assert cause(run) == f"job {job} was requeued (scontrol requeue)" and not sleepers(slurm)

    both_sleep(slurm, home, job, 1)
    nodes = slurm.hosts(job)
    slurm.kill_node(nodes[0])
    try:
        seconds_until_free(slurm, "the first node dead", time.monotonic(), nodes[1])
        until(lambda: slurm.fields(job)["ExcNodeList"] == nodes[0], 10)
        assert (cause(run) or "").startswith(f"node {nodes[0]} was lost"), cause(run)
        slurm.set_down(nodes[0])
        both_sleep(slurm, home, job, 2)
    finally:
        slurm.start_node(nodes[0])

    lost, nodes = nodes[0], slurm.hosts(job)
    assert lost not in nodes
    # the dead node took the job's log with it, so the next start reports how it ended
    assert f"node {lost} was lost" in log(home, "again") and "requeued (1 of 5 times)" in log(
        home, "again"
    )
    rank = next(process for process in psutil.process_iter(["cmdline"]) if is_rank(process, run))
    os.kill(rank.pid, signal.SIGKILL)
    seconds_until_free(slurm, "a rank killed", time.monotonic(), *nodes)
    assert slurm.wait(job, 30) == "FAILED"
    assert slurm.fields(job)["Restarts"] == "2" and "SIGKILL" in str(cause(run)), cause(run)
    assert not sleepers(slurm)


def is_rank(process: psutil.Process, run: Path) -> bool:
    argv = process.info["cmdline"] or []
    return (
        "accelerate.commands.launch" in argv
        and str(run / "model") in argv
        and argv[argv.index("--machine_rank") + 1] == "1"
    )
