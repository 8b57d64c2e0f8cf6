"""A job that is preempted with a grace period: it is requeued, and its `requeues` stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, until
from tests.slurm.runs import log
from tests.slurm.stand_ins import sleepers, stand_in_overrides

pytestmark = pytest.mark.slow


def test_a_preempted_job_is_requeued(slurm: Cluster, home: Path) -> None:
    """Slurm sends SIGTERM when the grace period begins, and records a job that ends before its end
    as FAILED.
    """
    overrides = stand_in_overrides(
        home, "low", "exec sleep 600", "cluster.partition=low", "cluster.requeues=1"
    )
    [job] = slurm.submit(*overrides, cwd=home)
    until(lambda: len(sleepers(slurm)) == 1, 180)
    [node] = slurm.run("squeue", "-h", "-j", job, "-o", "%N").split()
    urgent = slurm.run(
        "sbatch",
        "--parsable",
        "--exclusive",
        f"--nodelist={node}",
        "--wrap=sleep 3",
        "--output=/dev/null",
    )
    try:
        until(lambda: slurm.state(urgent) == "RUNNING", 40)
        assert f"job {job} is preempted" in log(home, "low") and slurm.state(job) == "PENDING"
        failed = json.loads((home / "runs" / "demo" / "low" / "FAILED").read_text())
        assert failed["cause"] == f"job {job} was preempted"
        until(lambda: len(sleepers(slurm)) == 1, 120)  # it started again
        assert "restart 1 of job" in log(home, "low")
    finally:
        slurm.run("scancel", job, urgent)
        until(lambda: not slurm.run("squeue", "-h", "-j", f"{job},{urgent}"), 40)
