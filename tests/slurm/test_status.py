"""`status`, `logs` and `stop` of jobs on a real Slurm, with a stand-in for the trainer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.files import write_json
from launch.slurm.jobs import JobFolder
from launch.slurm.queue import folder_tag
from tests.slurm.cluster import Cluster, until
from tests.slurm.stand_ins import STAGE, stand_in_overrides

pytestmark = pytest.mark.slow

GREETS = "echo hello from the trainer; sleep 600"


def states(slurm: Cluster, home: Path, **more: str) -> dict[str, dict[str, Any]]:
    done = slurm.launch("status", "--json", cwd=home, **more)
    assert done.returncode == 0, done.stderr
    return {run["run"]: run for run in json.loads(done.stdout)}


def test_a_run_from_pending_to_its_end(slurm: Cluster, home: Path) -> None:
    options = "cluster.options=['--begin=now+1hour','--time=30']"
    [job] = slurm.submit(*stand_in_overrides(home, "waits", GREETS), "nodes=2", options, cwd=home)
    commented = options.replace("'--time=30'", "'--time=30','--comment=my own | thing'")
    [never] = slurm.submit(*stand_in_overrides(home, "never", GREETS), commented, cwd=home)
    tag = folder_tag(JobFolder.of(home / "runs", "demo", "never").path)
    shown = slurm.run("squeue", "--noheader", f"--jobs={never}", "--Format=Comment:|")
    assert shown == f"my own | thing {tag}|"
    # as a plugin of the cluster may do
    slurm.run("scontrol", "update", f"JobId={never}", "Comment=another")
    runs = states(slurm, home)
    assert (runs["demo/waits"]["state"], runs["demo/waits"]["job"]["reason"]) == (
        "pending",
        "BeginTime",
    )
    assert runs["demo/waits"]["job"]["nodes"] == 2 and runs["demo/never"]["job_id"] == never

    stopped = slurm.launch("stop", "never", cwd=home)
    assert (
        stopped.stdout == f"cancelled job {never}, pending (BeginTime)\ndemo/never is stopped\n"
    ), stopped.stderr
    assert states(slurm, home)["demo/never"]["state"] == "ended"
    logs = slurm.launch("logs", "never", cwd=home)
    assert (
        logs.stdout == f"demo/never has not started: job {never} is cancelled, without a log\n"
    ), logs.stderr

    follower = subprocess.Popen(
        [sys.executable, "-m", "launch", "logs", "waits", "--follow"],
        cwd=home,
        env=slurm.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert follower.stdout is not None
        assert (
            follower.stdout.readline()
            == f"demo/waits has not started: job {job}, pending (BeginTime)\n"
        )
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        rank = home / "runs" / "demo" / "waits" / "nodes" / "1" / "logs" / "launcher.log"
        until(lambda: rank.is_file() and "hello" in rank.read_text(), 90)
        running = states(slurm, home)["demo/waits"]
        assert running["state"] == "running" and running["pid"], running
        assert running["job"]["hosts"].startswith("n[")
        assert 0 < running["job"]["seconds_left"] <= 1800

        slurm.run("scontrol", "requeue", job)
        until(lambda: slurm.state(job) == "PENDING", 60)
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+1hour")
        requeued = states(slurm, home)["demo/waits"]
        assert requeued["state"] == "requeued" and requeued["job"]["restarts"] == 1
        stopped = slurm.launch("stop", "waits", cwd=home)
        assert stopped.stdout.startswith(f"cancelled job {job}, requeued"), (
            stopped.stdout + stopped.stderr
        )
        rest, _ = follower.communicate(timeout=60)
        assert follower.returncode == 0 and "CANCELLED" not in rest
    finally:
        follower.kill()
    assert states(slurm, home)["demo/waits"]["state"] == "stopped"
    assert slurm.run("squeue", "-h", "-j", job) == ""

    # once squeue has forgotten the job that never started
    forgetful = home / "forgetful"
    forgetful.mkdir()
    (forgetful / "squeue").write_text("#!/bin/sh\n")
    (forgetful / "squeue").chmod(0o755)
    path = f"{forgetful}:{slurm.environ['PATH']}"
    known = f"Slurm no longer knows job {never}: it was last seen "
    if slurm.keeps_accounts:
        known = f"job {never}, cancelled by user {os.geteuid()}"
    until(lambda: states(slurm, home, PATH=path)["demo/never"]["cause"].startswith(known), 30)


def test_what_does_not_run_is_not_stopped(slurm: Cluster, home: Path) -> None:
    written = slurm.launch("submit", *STAGE, "name=rendered", "dry_run=true", cwd=home)
    assert written.returncode == 0, written.stderr
    refused = slurm.launch("stop", "rendered", cwd=home)
    assert refused.returncode == 2 and "[not_running]" in refused.stderr
    assert "demo/rendered" not in states(slurm, home)


def test_a_job_that_a_record_names_is_not_cancelled_unless_its_script_is_the_runs(
    slurm: Cluster, home: Path
) -> None:
    """Of another run, of another folder of runs, and of no run at all, under each of the records
    that name a job.
    """
    later = "cluster.options=['--begin=now+1hour']"
    [own] = slurm.submit(*stand_in_overrides(home, "victim", GREETS), later, cwd=home)
    script = home / "mine.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --begin=now+1hour\nsleep 600\n")
    other = slurm.run("sbatch", "--parsable", f"--output={home}/mine.log", str(script))
    jobs = home / "runs" / ".jobs" / "demo"
    commands = {own: jobs / "victim" / "job.sbatch", other: script}

    def forge(name: str, number: str, kind: str) -> None:
        folder = JobFolder(jobs / name)
        folder.path.mkdir()
        folder.write_script("#!/bin/bash\n")
        if kind == "array":
            folder.record_submission(number, commands[number])
        else:
            tag = folder_tag(commands[number].parent)
            seen = {"cluster": "lab", "tag": tag, "submitted": "1", "restarts": -1}
            write_json(folder.path / f"job-{number}.json", {"job_id": number, **seen})

    for number, kinds in ((own, ("array", "note")), (other, ("note",))):
        for kind in kinds:
            forge(f"{kind}-{number}", number, kind)
            refused = slurm.launch("stop", f"{kind}-{number}", cwd=home)
            assert refused.returncode == 2 and "[job_mismatch]" in refused.stderr, (
                refused.stdout + refused.stderr
            )
    copied = home / "copied" / "runs"
    shutil.copytree(jobs / "victim", copied / ".jobs" / "demo" / "victim")
    JobFolder(copied / ".jobs" / "demo" / "victim").record_submission(own, commands[own])
    refused = slurm.launch("stop", "victim", cwd=home / "copied")
    assert refused.returncode == 2 and "[job_mismatch]" in refused.stderr, (
        refused.stdout + refused.stderr
    )
    assert slurm.state(own) == slurm.state(other) == "PENDING"
    stopped = slurm.launch("stop", "victim", cwd=home)
    assert stopped.stdout.startswith(f"cancelled job {own}"), stopped.stdout + stopped.stderr
