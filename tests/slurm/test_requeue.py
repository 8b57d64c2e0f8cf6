"""Whether a job is requeued, how, and how its next start begins: mostly without a Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launch.execution.record import lock
from launch.execution.record.checkpoints import Checkpoint
from launch.planning.plan import Plan
from launch.slurm.allocation import Allocation
from launch.slurm.job_log import JobLog
from launch.slurm.jobs import JobFolder
from launch.slurm.node.recovery import choose_end_delay, recover
from launch.slurm.node.task import NodeContext, NodeTask
from launch.slurm.peers import LostNode, NodeFailure, Peers
from launch.slurm.queue import JobRecord, parse_job_record
from launch.slurm.requeue import (
    cancel_job,
    claim_decision,
    count_requeues,
    is_this_attempt,
    read_decision,
    requeue,
    write_decision,
)
from launch.slurm.requeue_policy import (
    find_hardware_fault,
    last_checkpoint,
    plan_restart,
    requeue_obstacle,
    retry_obstacle,
)
from launch.slurm.signals import NodeSignals
from tests.conftest import planned
from tests.execution.record.records import write_run
from tests.messages import values_of
from tests.slurm.cluster import Cluster, until

ALLOCATION = Allocation(job_id="7", number=7, restarts=0, node_rank=0, hosts=("n1", "n2"))
SILENT = LostNode(1, NodeFailure("no heartbeat for 21 s"), is_silent=True)
SHOWN = (
    "JobId=7 JobName=a b State UserId=me(1) JobState=RUNNING Reason=None Dependency=(null) "
    "Requeue=1 Restarts=2 "
    "Partition=main AllocNode:Sid=login:1 ReqNodeList=(null) ExcNodeList=n[3-4] NodeList=n[1-2] "
    "BatchHost=n1 "
    "Command=/home/me/Requeue=0/job.sbatch WorkDir=/home/me"
)


def plan(runs: Path, *overrides: str) -> Plan:
    stage = ("stage=demo", "trainer=trl_sft", "nodes=2", "name=x", f"runs='{runs}'", *overrides)
    return planned(*stage)


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(Path(f"checkpoint-{number}"), "step", number, (), marked=False)


def test_what_slurm_shows_of_a_job() -> None:
    record = parse_job_record(SHOWN)
    assert (record.state, record.restarts, record.may_requeue, record.partition) == (
        "RUNNING",
        2,
        True,
        "main",
    )
    assert is_this_attempt(record, replace(ALLOCATION, restarts=2))
    # it has been started elsewhere meanwhile, or waits for that: not this node's any more
    assert not is_this_attempt(record, replace(ALLOCATION, restarts=1))
    assert not is_this_attempt(replace(record, state="PENDING"), replace(ALLOCATION, restarts=2))
    # an id that was inherited from the job that this one was submitted in
    assert not is_this_attempt(replace(record, number=6), replace(ALLOCATION, restarts=2))


ARRAY = """#!/bin/bash
#SBATCH --array=0-2
#SBATCH --nodes=1
#SBATCH --requeue
#SBATCH --output=/dev/null
sleep 600
"""


def requeued(allocation: Allocation, script: Path, lost: str) -> tuple[bool, list[str]]:
    """With SIGTERM as it was afterwards: the process that asks is about to end, and this one is
    not.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        return requeue(allocation, script, lost)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.slow
def test_a_task_of_an_array_is_requeued_and_cancelled_alone(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm gives the last one the array's own number, by which its commands mean every task. Of a
    job that only the lost node fits Slurm itself says so.
    """
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "job.sbatch"
    script.write_text(ARRAY)
    array = slurm.run("sbatch", "--parsable", str(script))
    tasks = [f"{array}_{task}" for task in range(3)]

    def record(task: int) -> JobRecord:
        return parse_job_record(slurm.run("scontrol", "--oneliner", "show", "job", tasks[task]))

    def excluded(task: int) -> str:
        return slurm.fields(tasks[task])["ExcNodeList"]

    def states() -> list[str]:
        return [record(task).state for task in range(3)]

    def place(task: int) -> Allocation:
        return Allocation(tasks[task], record(task).number, restarts=0, node_rank=0, hosts=("n1",))

    until(lambda: states() == ["RUNNING"] * 3, 30)
    assert place(2).number == int(array)
    again, messages = requeued(place(2), script, lost="n1")
    assert again and "it starts without n1" in messages[0], messages
    until(lambda: states() == ["RUNNING", "RUNNING", "PENDING"], 30)
    assert [excluded(task) for task in range(3)] == ["(null)", "(null)", "n1"]
    cancel_job(place(1))
    until(lambda: states() == ["RUNNING", "CANCELLED", "PENDING"], 30)

    slurm.run("scontrol", "update", "NodeName=n1", "AvailableFeatures=only", "ActiveFeatures=only")
    by_hand = slurm.run("sbatch", "--parsable", "--array=0", "--constraint=only", str(script))
    try:
        tasks[0] = f"{by_hand}_0"
        until(lambda: record(0).state == "RUNNING", 30)
        again, messages = requeued(place(0), script, lost="n1")
        assert again and "node configuration is not available" in messages[0], messages
        assert "n1 is not excluded" in messages[0], messages
        until(lambda: record(0).state == "PENDING", 30)
        assert excluded(0) == "(null)"
    finally:
        slurm.run("scancel", array, by_hand)
        slurm.run("scontrol", "update", "NodeName=n1", "AvailableFeatures=", "ActiveFeatures=")


def test_of_several_survivors_one_decides(tmp_path: Path) -> None:
    assert [claim_decision(tmp_path) for _ in range(3)] == [True, False, False]
    assert read_decision(tmp_path) == []
    write_decision(tmp_path, ["node n1 was lost", "requeued"], requeued=True)
    assert read_decision(tmp_path) == ["node n1 was lost", "requeued"]
    assert read_decision(tmp_path / "nosuch") == []


def test_only_launchs_own_requeues_count(tmp_path: Path) -> None:
    """Neither a preemption nor `scontrol requeue` does, nor a job with the same id of a cluster
    that was rebuilt.
    """
    folder = JobFolder(tmp_path)
    starts = [
        (0, "100", True),
        (1, "200", None),
        (2, "300", True),
        (3, "400", False),
        (0, "50", True),
        (4, "60", True),
    ]
    for restarts, started, requeued in starts:
        attempt = folder.attempt("7", restarts, started)
        attempt.mkdir()
        if requeued is not None:
            write_decision(attempt, [], requeued=requeued)
    counts = [
        count_requeues(folder, replace(ALLOCATION, restarts=restarts)) for restarts in range(5)
    ]
    assert counts == [0, 1, 1, 2, 2]


def test_when_a_job_is_not_requeued(tmp_path: Path) -> None:
    saving, three, six = plan(tmp_path, "recipe.checkpoint_steps=3"), checkpoint(3), checkpoint(6)

    def obstacle(
        restarts: int, before: Checkpoint | None, now: Checkpoint | None, of: Plan = saving
    ) -> str | None:
        return requeue_obstacle(of, restarts, lost=None, before=before, now=now)

    assert obstacle(0, None, three) is obstacle(4, three, six) is None
    assert values_of(str(obstacle(5, three, six))) == ["5", "cluster.requeues=5"]
    assert obstacle(1, three, three) is not None  # it would be ended there every time
    assert values_of(str(obstacle(0, None, None))) == ["recipe.checkpoint_steps=3"]
    never = plan(tmp_path, "cluster.requeues=0")
    assert obstacle(0, None, three, never) is not None
    # a node is lost whatever the run has come to, and often enough
    assert requeue_obstacle(saving, 0, lost=SILENT, before=None, now=None) is None
    alone = replace(SILENT, met_others=False)
    assert "share" in str(requeue_obstacle(saving, 0, lost=alone, before=None, now=None))
    assert requeue_obstacle(saving, 5, lost=SILENT, before=three, now=six) is not None


GPU, LINK = (
    NodeFailure("RuntimeError: ECC", "gpu_fault"),
    NodeFailure("rank 3: NCCL error", "nccl_remote"),
)
ENDED, OWN = (
    NodeFailure("interrupted by SIGINT"),
    NodeFailure("rank 1: out of memory", "out_of_memory"),
)


@pytest.mark.parametrize(
    ("failures", "node"),
    [
        ({0: GPU}, 0),
        ({0: LINK, 1: ENDED, 2: GPU}, 2),
        ({0: LINK, 1: LINK, 2: ENDED}, -1),
        ({0: LINK, 1: OWN}, None),  # the error of node 1 broke its links
        ({0: NodeFailure("rank 0 was killed by SIGKILL", "killed"), 1: LINK}, None),
        ({0: OWN}, None),
        ({1: ENDED}, None),
    ],
)
def test_which_faults_are_the_hardwares(failures: dict[int, NodeFailure], node: int | None) -> None:
    assert find_hardware_fault(failures) == node


def test_faults_of_the_hardware_are_counted_apart(tmp_path: Path) -> None:
    assert retry_obstacle(plan(tmp_path), 1) is None
    assert (
        retry_obstacle(plan(tmp_path), 2)
        == "it was started again 2 times after such faults, and cluster.retries=2"
    )
    assert retry_obstacle(plan(tmp_path, "cluster.retries=0"), 0) is not None
    assert retry_obstacle(plan(tmp_path, "cluster.requeues=0"), 0) == "cluster.requeues=0"
    folder = JobFolder(tmp_path)
    for restarts, is_retry in enumerate((True, False, True, False, False)):
        attempt = folder.attempt("7", restarts, "1")
        attempt.mkdir()
        write_decision(attempt, [], requeued=True, is_retry=is_retry)
    fifth = replace(ALLOCATION, restarts=5)
    assert (count_requeues(folder, fifth), count_requeues(folder, fifth, retries=True)) == (3, 2)


def test_a_restart_with_nothing_to_resume_starts_over(tmp_path: Path) -> None:
    messages: list[str] = []
    fresh = plan(tmp_path, "recipe.checkpoint_steps=3")
    assert last_checkpoint(fresh) is None
    assert plan_restart(fresh, messages.append) is fresh and not messages
    write_run(fresh.folder, steps=2)
    # little is lost: it starts again by itself
    assert plan_restart(fresh, messages.append) is fresh and not messages
    steps = [{"schema_version": 1, "step": step, "loss": 1.0, "seconds": 400.0} for step in (1, 2)]
    (fresh.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)), encoding="utf-8")
    assert plan_restart(fresh, messages.append).config.restart
    assert "13 min 20 s of training), with no checkpoint yet" in messages[0] and messages[
        0
    ].endswith("it starts over")


def test_the_lock_of_a_machine_that_died_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_plan = plan(tmp_path)
    path = lock.lock_path(run_plan.folder)
    path.parent.mkdir(parents=True)
    holder = replace(lock.this_process(), host="n9", machine="another boot")
    path.write_text(json.dumps({"schema_version": 1, **asdict(holder)}), encoding="utf-8")
    almost = time.time() - lock.STALE + 2
    os.utime(path, (almost, almost))
    messages: list[str] = []
    began = time.monotonic()
    plan_restart(run_plan, messages.append)
    assert 1 < time.monotonic() - began < 20 and "n9" in messages[0]
    assert lock.find_holder(path) is None


def first_node(run_plan: Plan, attempt: Path) -> NodeContext:
    task = NodeTask(run_plan, lambda ranks, display: 0)
    peers = Peers(attempt, 0, ALLOCATION.hosts, 20.0, lambda lost: None)
    log = JobLog(attempt.parent / "job-7.log", 0)
    return NodeContext(task, ALLOCATION, attempt, peers, NodeSignals(lambda: None), log)


def test_the_warning_ends_only_a_run_that_gains_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has warn_before=120 seconds, of which the last 30 are for the tear-down."""
    run_plan, messages = plan(tmp_path, "recipe.checkpoint_steps=3"), []
    monkeypatch.setattr("launch.slurm.node.recovery.notify", messages.append)
    write_run(run_plan.folder, steps=100, total=200)
    node = first_node(run_plan, tmp_path / "7.0")
    with lock.run_lock(run_plan.folder, messages.append):
        assert choose_end_delay(node, None) == 90.0  # there is nothing to resume from
        assert "recipe.checkpoint_steps=3" in messages[-1]
        monkeypatch.setattr(
            "launch.slurm.node.recovery.last_checkpoint", lambda plan: checkpoint(3)
        )
        assert choose_end_delay(node, None) == 0.0
        assert (
            choose_end_delay(replace(node, allocation=replace(ALLOCATION, node_rank=1)), None)
            is None
        )
        write_run(run_plan.folder, steps=170, total=200)
        assert choose_end_delay(node, None) == 90.0 and "about 30 s remain" in messages[-1]


@pytest.mark.parametrize(
    ("rank", "code", "lost", "line"),
    [
        (0, 0, SILENT, "exit 0 0"),  # a lost node is not waited for
        (0, 0, None, ""),
        (1, 1, LostNode(0, NodeFailure("no heartbeat for 21 s"), is_silent=True), ""),
        (1, 1, SILENT, ""),
    ],
)
def test_a_run_that_is_done_is_neither_requeued_nor_cancelled(  # noqa: PLR0917
    rank: int,
    code: int,
    lost: LostNode | None,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that fell silent near the end made another one cancel the job of a run that was DONE."""
    for action in ("requeue", "cancel_job"):
        monkeypatch.setattr(f"launch.slurm.node.recovery.{action}", lambda *_: pytest.fail("acts"))
    run_plan = plan(tmp_path)
    run_plan.folder.mkdir(parents=True)
    (run_plan.folder / "DONE").write_text("{}")
    mailbox = tmp_path / "mailbox-7-1"
    mailbox.touch()
    allocation = replace(ALLOCATION, node_rank=rank, mailbox=mailbox)
    node = replace(first_node(run_plan, tmp_path / "7.0"), allocation=allocation)
    node.peers.lost = lost
    assert not recover(node, code, None if code == 0 else NodeFailure("broken pipe"), None)
    assert mailbox.read_text().strip() == line and not (tmp_path / "7.0").exists()


SIGNALLED = """
import signal, subprocess, sys, time
from launch.slurm.signals import NodeSignals
signals = NodeSignals(lambda: print("warned", flush=True))
with signals.handled():
    child = subprocess.Popen(["sleep", "60"])
    try:
        signals.ready()
        print(child.pid, flush=True)
        while True:
            time.sleep(0.1)
    except SystemExit as end:
        print("left", end.code, signals.time_limit_near, signals.terminated, child.poll(), flush=True)
        child.kill()
        raise
"""


def test_the_warning_ends_this_process_and_not_what_it_started() -> None:
    process = subprocess.Popen([sys.executable, "-c", SIGNALLED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    os.kill(child, signal.SIGUSR2)  # Slurm signals every process of the step
    os.kill(process.pid, signal.SIGUSR2)
    assert process.stdout.readline() == "warned\n"
    assert process.stdout.readline() == "left 130 True False None\n"
    assert process.wait(20) == 130


def test_a_signal_from_outside_is_distinguished_from_its_own() -> None:
    process = subprocess.Popen([sys.executable, "-c", SIGNALLED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.stdout.readline() == "left 130 False True None\n"
    assert process.wait(20) == 130
