"""What a job on a real Slurm survives: its time limit, dead nodes, being requeued; and what it does not."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch.slurm.jobs import JobFolder
from tests.slurm.cluster import Cluster, until
from tests.slurm.stand_ins import SLEEPS, log, sleepers, stand_in_overrides

pytestmark = pytest.mark.slow

TOKEN = "hf_" + "AnotherPlantedTokenThatIsWrittenNowhere"
STEPS = 20


def fields(slurm: Cluster, job: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in slurm.run("scontrol", "show", "job", job).split():
        name, _, value = word.partition("=")
        values.setdefault(name, value)
    return values


def hosts(slurm: Cluster, job: str) -> list[str]:
    return slurm.run("scontrol", "show", "hostnames", fields(slurm, job)["NodeList"]).split()


def jsonl(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text().splitlines(keepends=True)
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def last_logged_step(run: Path) -> int:
    return max((line["step"] for line in jsonl(run / "metrics.jsonl")), default=0)


def cause(run: Path) -> str | None:
    try:
        return str(json.loads((run / "FAILED").read_text())["cause"])
    except OSError:
        return None


def free(slurm: Cluster, *names: str) -> bool:
    """Whether nodes hold no job, and none that is completing."""
    states = slurm.run("sinfo", "-h", "-N", "-o", "%N %t").splitlines()
    return all(f"{name} idle" in states for name in names)


def seconds_until_free(slurm: Cluster, fault: str, began: float, *names: str) -> None:
    """Wait until nodes are free and print how long that took."""
    until(lambda: free(slurm, *names), 30 - (time.monotonic() - began))
    print(f"{fault}: free after {time.monotonic() - began:.1f} s")


def test_training_goes_on_after_the_time_limit_and_without_a_dead_node(slurm: Cluster, home: Path) -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    run = home / "runs" / "demo" / "survives"
    both = ["stage=demo", "trainer=trl_sft", "nodes=2", f"recipe.max_steps={STEPS}", "recipe.checkpoint_steps=3"]
    # with warn_before=30 no time is left for a run that is about to finish
    both += ["cluster.heartbeat=8", "cluster.warn_before=30"]
    overrides = [*both, "name=survives"]
    [job] = slurm.submit(*overrides, cwd=home, HF_TOKEN=TOKEN)
    until(lambda: last_logged_step(run) >= 4, 240)
    nodes = hosts(slurm, job)
    slurm.run("scancel", "--signal=USR2", job)  # as Slurm does ahead of the time limit
    began = time.monotonic()
    until(lambda: cause(run) == "the time limit is near", 40)
    seconds_until_free(slurm, "USR2", began, *nodes)
    assert f"job {job} is requeued (1 of 5 times)" in log(home, "survives")

    # while it waits to start again it is alive
    again = slurm.launch("submit", *overrides, "cluster.cpus_per_rank=1", cwd=home)
    assert again.returncode == 2 and "[already_submitted]" in again.stderr, again.stderr
    until(lambda: len(jsonl(run / "attempts.jsonl")) == 2, 90)
    first = int(jsonl(run / "attempts.jsonl")[1]["resumed_from"].removeprefix("checkpoint-"))
    assert first >= 3
    until(lambda: last_logged_step(run) > first, 240)

    nodes = hosts(slurm, job)
    slurm.kill_node(nodes[1])
    began = time.monotonic()
    try:
        until(lambda: (cause(run) or "").startswith(f"node {nodes[1]} was lost: no heartbeat for"), 30)
        seconds_until_free(slurm, "a dead node", began, nodes[0])
        until(lambda: "it starts without" in log(home, "survives"), 10)
        assert fields(slurm, job)["ExcNodeList"] == nodes[1]
        slurm.run("scontrol", "update", f"NodeName={nodes[1]}", "State=DOWN", "Reason=test")
        assert slurm.wait(job, 240) == "COMPLETED", log(home, "survives")
    finally:
        slurm.start_node(nodes[1])
    attempts = jsonl(run / "attempts.jsonl")
    second = int(attempts[2]["resumed_from"].removeprefix("checkpoint-"))
    assert first <= second < STEPS and len(attempts) == 3
    [whole] = slurm.submit(*both, "name=uninterrupted", cwd=home)
    assert slurm.wait(whole, 240) == "COMPLETED", log(home, "uninterrupted")
    losses = {line["step"]: line["loss"] for line in jsonl(run / "metrics.jsonl")}
    uninterrupted = jsonl(home / "runs" / "demo" / "uninterrupted" / "metrics.jsonl")
    assert losses == {line["step"]: line["loss"] for line in uninterrupted} and list(losses) == [*range(1, STEPS + 1)]
    assert json.loads((run / "DONE").read_text())["steps"] == STEPS
    folder = JobFolder.of(home / "runs", "demo", "survives")
    [last] = folder.attempts(job, 2)
    assert nodes[1] not in json.loads((last / "start.json").read_text())["host"]

    for path in [*folder.path.rglob("*"), *run.glob("*.json*"), *run.rglob("*.log")]:
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


def both_sleep(slurm: Cluster, home: Path, job: str, restarts: int) -> None:
    """Wait until both nodes' ranks run, after so many restarts, and both supervisors have renewed their heartbeats.

    A node that died 0.4 s after the step began was once not noticed by the other: it must meet supervisors at work.
    """
    folder = JobFolder.of(home / "runs", "demo", "again")
    until(lambda: any((attempt / "start.json").is_file() for attempt in folder.attempts(job, restarts)), 90)
    until(lambda: len(sleepers(slurm)) >= 4, 60)
    [*_, attempt] = folder.attempts(job, restarts)
    until(lambda: len(list(attempt.glob("node-*.json"))) == 2, 30)
    first = {path: path.stat().st_mtime_ns for path in attempt.glob("node-*.json")}
    until(lambda: all(path.stat().st_mtime_ns != changed for path, changed in first.items()), 30)


def test_what_starts_a_job_again_and_what_does_not(slurm: Cluster, home: Path) -> None:
    """`scontrol requeue`, which preemption is too; a node set DOWN; the death of the first node, where the batch script
    is; and a rank that is killed, which is an error of the job's own."""
    run = home / "runs" / "demo" / "again"
    limited = stand_in_overrides(home, "limited", "sleep 500", "cluster.time='00:02:00'", "cluster.warn_before=40")
    [other] = slurm.submit(*limited, "cluster.options=['--nodelist=n4']", cwd=home)
    [job] = slurm.submit(*stand_in_overrides(home, "again", SLEEPS, "nodes=2", "cluster.heartbeat=8"), cwd=home)
    both_sleep(slurm, home, job, 0)
    nodes = hosts(slurm, job)
    slurm.run("scontrol", "requeue", job)
    seconds_until_free(slurm, "scontrol requeue", time.monotonic(), *nodes)
    assert cause(run) == "interrupted by SIGTERM" and not sleepers(slurm)

    both_sleep(slurm, home, job, 1)
    nodes = hosts(slurm, job)
    slurm.run("scontrol", "update", f"NodeName={nodes[1]}", "State=DOWN", "Reason=test")
    seconds_until_free(slurm, "a node set DOWN", time.monotonic(), nodes[0])
    until(lambda: free(slurm, nodes[1]), 60)  # its slurmd lives, and Slurm believes it (ReturnToService)

    both_sleep(slurm, home, job, 2)
    nodes = hosts(slurm, job)
    slurm.kill_node(nodes[0])
    try:
        seconds_until_free(slurm, "the first node dead", time.monotonic(), nodes[1])
        until(lambda: fields(slurm, job)["ExcNodeList"] == nodes[0], 10)
        assert (cause(run) or "").startswith(f"node {nodes[0]} was lost"), cause(run)
        slurm.run("scontrol", "update", f"NodeName={nodes[0]}", "State=DOWN", "Reason=test")
        both_sleep(slurm, home, job, 3)
    finally:
        slurm.start_node(nodes[0])

    lost, nodes = nodes[0], hosts(slurm, job)
    assert lost not in nodes
    # the dead node took the job's log with it, so the next start reports how it ended
    assert f"node {lost} was lost" in log(home, "again") and "requeued (1 of 5 times)" in log(home, "again")
    rank = next(process for process in psutil.process_iter(["cmdline"]) if is_rank(process, run))
    os.kill(rank.pid, signal.SIGKILL)
    seconds_until_free(slurm, "a rank killed", time.monotonic(), *nodes)
    assert slurm.wait(job, 30) == "FAILED"
    assert fields(slurm, job)["Restarts"] == "3" and "SIGKILL" in str(cause(run)), cause(run)
    assert not sleepers(slurm)

    # meanwhile the other one's time is up: without a checkpoint it would only be again
    assert slurm.wait(other, 60) == "FAILED"
    assert cause(run.with_name("limited")) == "the time limit is near"
    assert f"job {other} is not requeued: there is no complete checkpoint" in log(home, "limited")


ECC = """Traceback (most recent call last):
  File "trainer.py", line 80, in <module>
torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
"""


def test_after_a_fault_of_a_gpu_a_job_starts_again_on_other_nodes(slurm: Cluster, home: Path) -> None:
    """Without a node that is excluded by name no other one fits, and the job ends."""
    ecc = "cat <<'END' >&2\n" + ECC + "END\nexit 7"
    does = f'if [ "$(hostname)" = n1 ]; then\n{ecc}\nfi\n{SLEEPS}'
    named = stand_in_overrides(home, "named", ecc, "cluster.options=['--nodelist=n4']")
    [bound] = slurm.submit(*named, cwd=home)
    [job] = slurm.submit(*stand_in_overrides(home, "ecc", does, "nodes=2"), cwd=home)
    run, folder = home / "runs" / "demo" / "ecc", JobFolder.of(home / "runs", "demo", "ecc")
    until(lambda: len(folder.attempts(job, 0)) == 1 and (run / "FAILED").is_file(), 120)
    assert json.loads((run / "FAILED").read_text())["cause_id"] == "gpu_fault"
    until(lambda: any((attempt / "start.json").is_file() for attempt in folder.attempts(job, 1)), 120)
    assert fields(slurm, job)["ExcNodeList"] == "n1" and "n1" not in hosts(slurm, job)
    assert f"a GPU of n1 failed; job {job} is requeued (1 of 2 times)" in log(home, "ecc")
    slurm.run("scancel", job)
    assert slurm.wait(bound, 60) == "FAILED"
    assert f"n4 cannot be excluded, so job {bound} is not started again" in log(home, "named"), log(home, "named")


def is_rank(process: psutil.Process, run: Path) -> bool:
    argv = process.info["cmdline"] or []
    return (
        "accelerate.commands.launch" in argv
        and str(run / "model") in argv
        and argv[argv.index("--machine_rank") + 1] == "1"
    )
