"""Jobs on a real Slurm, with a stand-in for the trainer: what ends a job, and what is left of
it.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.slurm.jobs import JobFolder, find_live_jobs
from launch.slurm.queue import folder_tag
from launch.slurm.schedule import SubmissionStep
from launch.slurm.slurm_cli import query_slurm
from launch.slurm.submission import submit_all
from tests.execution.supervise.fake import script
from tests.slurm.cluster import Cluster, environment, launch, until
from tests.slurm.runs import log
from tests.slurm.stand_ins import ON_TWO, SLEEPS, STAGE, sleepers, stand_in_overrides
from tests.slurm.test_schedule import SFT, planned_job

pytestmark = pytest.mark.slow


# of the second node's interpreter, which ends when the first node has begun to start its ranks
BROKEN = """
import os, time
from pathlib import Path
if os.environ.get("SLURM_NODEID") == "1":
    while not list(Path(FOLDER).rglob("start.json")):
        time.sleep(0.1)
    os._exit(1)
"""


def started(slurm: Cluster, home: Path, name: str, nodes: int = 2) -> None:
    """Wait until every node's stand-in sleeps."""
    until(lambda: len(list((home / "runs" / "demo" / name).rglob("launcher.log"))) == nodes, 60)
    until(lambda: len(sleepers(slurm)) >= 2 * nodes, 60)


def test_a_node_that_fails_ends_the_job_and_is_named(slurm: Cluster, home: Path) -> None:
    """By its ranks, or, in the other job, because its Python ends before it can say anything."""
    does = (
        f'touch "{home}/rank-$rank"\nif [ "$rank" = 1 ]; then\n'
        f'  until [ -e "{home}/rank-0" ]; do sleep 0.1; done\n'
        '  echo "RuntimeError: no luck" >&2; exit 7\nfi\nsleep 600'
    )
    [job] = slurm.submit(*stand_in_overrides(home, "fails", does, *ON_TWO), cwd=home)
    broken = home / "broken"
    broken.mkdir()
    jobs = home / "runs" / ".jobs" / "demo" / "no-python"
    (broken / "sitecustomize.py").write_text(BROKEN.replace("FOLDER", repr(str(jobs))))
    path = f"cluster.env.PYTHONPATH='{broken}:{environment()['PYTHONPATH']}'"
    overrides = stand_in_overrides(
        home, "no-python", SLEEPS, "nodes=2", "cluster.options=['--nodelist=n3,n4']", path
    )
    [other] = slurm.submit(*overrides, cwd=home)
    assert slurm.wait(job, 90) == "FAILED", log(home, "fails")
    failed = json.loads((home / "runs" / "demo" / "fails" / "FAILED").read_text())
    assert "node n2" in failed["cause"] + " ".join(failed.get("detail", ())), failed
    assert (home / "runs" / "demo" / "fails" / "nodes" / "1" / "FAILED").is_file()

    assert slurm.wait(other, 90) == "FAILED", log(home, "no-python")
    failed = json.loads((home / "runs" / "demo" / "no-python" / "FAILED").read_text())
    assert failed["cause"].startswith("the launcher on node n4 ended: Exited with exit code 1")
    assert failed["exit_code"] == 1, failed
    assert not sleepers(slurm)


def test_two_jobs_of_a_node_and_scancel_leaves_nothing(slurm: Cluster, home: Path) -> None:
    names = ["first", "second"]
    jobs = [
        slurm.submit(*stand_in_overrides(home, name, SLEEPS, *ON_TWO), cwd=home)[0]
        for name in names
    ]
    until(lambda: len(sleepers(slurm)) == 8, 90)
    folders = [JobFolder.of(home / "runs", "demo", name) for name in names]
    starts = [
        json.loads((folder.attempts(job, 0)[-1] / "start.json").read_text())
        for folder, job in zip(folders, jobs, strict=True)
    ]
    assert starts[0]["host"] == starts[1]["host"] and starts[0]["port"] != starts[1]["port"]

    overrides = [*STAGE, "name=first", "cluster.cpus_per_rank=1", "nodes=2"]
    # the user's default for squeue
    again = slurm.launch("submit", *overrides, cwd=home, SQUEUE_PARTITION="low")
    assert again.returncode == 2 and f"job {jobs[0]}, running" in again.stderr, again.stderr

    slurm.run("scancel", *jobs)
    for job in jobs:
        assert slurm.wait(job, 60) == "CANCELLED"
    until(lambda: not sleepers(slurm), 30)


def test_a_stall_is_looked_at_on_every_node(slurm: Cluster, home: Path) -> None:
    """Node 0's guard has the clock; where the ranks of the other nodes are is what says which of
    them hangs.
    """
    hangs = """
    event("phase", phase="import", pid=os.getpid())
    def waits_for_the_others(): time.sleep(600)
    def reads_a_dead_disk(): time.sleep(600)
    (reads_a_dead_disk if RANK else waits_for_the_others)()
    """
    program = script(home, hangs)
    does = f"RANK=$rank exec {sys.executable} {shlex.quote(str(program))}"
    overrides = stand_in_overrides(home, "stalls", does, *ON_TWO, "guards.stall.importing=4")
    [job] = slurm.submit(*overrides, cwd=home)
    assert slurm.wait(job, 90) == "FAILED", log(home, "stalls")
    run = home / "runs" / "demo" / "stalls"
    failed = json.loads((run / "FAILED").read_text())
    assert failed["cause_id"] == "stall" and failed["exit_code"] == 3, failed
    if any("could not be inspected" in line for line in failed["detail"]):
        pytest.skip("py-spy may not look into other processes here")
    assert any(
        line.startswith("rank 0 is in waits_for_the_others (trainer.py:")
        for line in failed["detail"]
    ), failed
    assert any(
        line.startswith("rank 1 is in reads_a_dead_disk (trainer.py:") for line in failed["detail"]
    ), failed
    assert not any("interrupted" in line for line in failed["detail"]), failed
    assert failed["stacks"] == [
        str(run / "stacks" / "rank-0.txt"),
        str(run / "nodes" / "1" / "stacks" / "rank-1.txt"),
    ]
    assert "reads_a_dead_disk" in Path(failed["stacks"][1]).read_text()


def test_a_node_that_dies_takes_the_job_down(slurm: Cluster, home: Path) -> None:
    overrides = stand_in_overrides(
        home, "dies", SLEEPS, *ON_TWO, "cluster.heartbeat=8", "cluster.requeues=0"
    )
    [job] = slurm.submit(*overrides, cwd=home)
    started(slurm, home, "dies")
    slurm.kill_node("n2")
    began = time.monotonic()
    run = home / "runs" / "demo" / "dies"
    until((run / "FAILED").is_file, 40)
    until(lambda: not sleepers(slurm), 40 - (time.monotonic() - began))
    failed = json.loads((run / "FAILED").read_text())
    assert failed["cause"].startswith("node n2 was lost: no heartbeat for"), failed
    until(
        lambda: slurm.state(job) in ("COMPLETING", "FAILED"),
        30 - (time.monotonic() - began),
    )
    slurm.start_node("n2")
    slurm.wait(job, 60)


def test_what_slurm_refuses_is_said_and_not_submitted(slurm: Cluster, home: Path) -> None:
    before = slurm.run("squeue", "-h", "-t", "all", "-o", "%A")
    refused = slurm.launch("submit", *STAGE, "cluster.constraint=nosuch", cwd=home)
    assert refused.returncode == 2
    assert "[sbatch_refused]" in refused.stderr and "nvalid feature" in refused.stderr, (
        refused.stderr
    )
    overridden = slurm.launch(
        "submit", *STAGE, "cluster.constraint=nosuch", "allow=[sbatch_refused]", cwd=home
    )
    # by sbatch itself
    assert overridden.returncode == 2 and "ignored by allow: " in overridden.stderr, (
        overridden.stderr
    )
    many = slurm.launch("submit", *STAGE, "nodes=16", "recipe.per_device_batch_size=1", cwd=home)
    assert many.returncode == 2 and "[sbatch_refused]" in many.stderr, many.stderr
    assert "sinfo --Node --long" in many.stderr, many.stderr
    assert slurm.run("squeue", "-h", "-t", "all", "-o", "%A") == before

    slurm.run("scontrol", "update", "nodename=n[2-4]", "state=drain", "reason=repair")
    try:
        [job] = slurm.submit(*STAGE, "nodes=2", "recipe.per_device_batch_size=1", cwd=home)
        assert slurm.state(job) == "PENDING"
    finally:
        slurm.run("scontrol", "update", "nodename=n[2-4]", "state=resume")
    slurm.run("scancel", job)


def test_a_job_that_can_never_start_is_reported(slurm: Cluster, home: Path) -> None:
    overrides = [*STAGE, "name=never", "cluster.partition=closed", "cluster.cpus_per_rank=1"]
    refused = slurm.launch("submit", *overrides, cwd=home)
    assert refused.returncode == 2 and "[account_not_admitted]" in refused.stderr, refused.stderr
    allow = "allow=[account_not_admitted,time_beyond_partition,sbatch_refused]"
    allowed = slurm.launch("submit", *overrides, allow, "cluster.time='2:00:00'", cwd=home)
    assert allowed.returncode == 0, allowed.stderr
    # PartitionConfig until the scheduler has considered it
    assert re.search(
        r"it can never start: Slurm's reason is Partition(Config|TimeLimit)\b", allowed.stdout
    ), allowed.stdout
    assert (
        "limits:    02:00:00 on 1 node of partition closed, requeued at most 5 times"
        in allowed.stdout
    )


def test_a_failure_half_way_cancels_what_was_submitted(
    slurm: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    folders = [JobFolder(home / "half" / name) for name in ("good", "bad")]
    comment = f"#SBATCH --comment={folder_tag(folders[0].path)}"
    folders[0].write_script(f"#!/bin/bash\n#SBATCH --output=/dev/null\n{comment}\nsleep 600\n")
    folders[1].write_script("#!/bin/bash\n#SBATCH --partition=nosuch\nsleep 600\n")
    job = planned_job(home, *SFT)
    with pytest.raises(UserError, match="sbatch_refused"):
        submit_all([SubmissionStep((replace(job, folder=folder),)) for folder in folders])
    assert "cancelled" in capsys.readouterr().err
    until(lambda: not find_live_jobs(folders[0]), 30)


def test_a_controller_that_is_away(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "slurm.conf"
    text = Path(slurm.environ["SLURM_CONF"]).read_text()
    conf.write_text(
        "\n".join(
            "SlurmctldPort=9" if "SlurmctldPort" in line else line for line in text.splitlines()
        )
    )
    for name, value in {**slurm.environ, "SLURM_CONF": str(conf)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("launch.slurm.slurm_cli._PAUSES", (0.1,))
    with pytest.raises(UserError, match="slurm_unresponsive"):
        query_slurm(["squeue", "--noheader"], timeout=1.0)


def test_node_outside_of_a_job(home: Path) -> None:
    alone = launch("node", "stage=demo", cwd=home, environ=environment())
    assert alone.returncode == 2 and "[no_allocation]" in alone.stderr
