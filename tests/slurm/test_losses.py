"""Jobs on a real Slurm whose runs are interrupted, each in another way: every loss is that of a run
that is not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.slurm.jobs import JobFolder
from tests.slurm.cluster import Cluster, environment, until
from tests.slurm.runs import attempts, cause, last_logged_step, log, losses, seconds_until_free
from tests.slurm.stand_ins import ECC

pytestmark = pytest.mark.slow

TOKEN = "hf_" + "AnotherPlantedTokenThatIsWrittenNowhere"

# A sitecustomize.py: a rank's GPU fails once a file is there. (`accelerate launch` has the rank's
# file further behind.)
FAILING_GPU = """
import os, sys, threading, time

def fail():
    while not os.path.exists({order!r}):
        time.sleep(0.1)
    os.remove({order!r})
    os.write(2, {printed!r})
    os._exit(1)

program = [word for word in sys.orig_argv[1:] if not word.startswith("-")]
if program and program[0].endswith("launch/worker/entry.py"):
    threading.Thread(target=fail, daemon=True).start()
"""


@pytest.fixture(autouse=True)
def trainer() -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")


def train_beside(slurm: Cluster, home: Path, run: Path, nodes: str, overrides: list[str]) -> str:
    """Start the run that nothing interrupts, meanwhile and on other nodes; return its job."""
    options = f"cluster.options=['--nodelist={nodes}']"
    [job] = slurm.submit(*overrides, f"name={run.name}-uninterrupted", options, cwd=home)
    return job


def same_losses(slurm: Cluster, home: Path, run: Path, steps: int, whole: str) -> None:
    """The finished run's losses are those of the run, job `whole`, that nothing interrupts."""
    name = f"{run.name}-uninterrupted"
    assert slurm.wait(whole, 240) == "COMPLETED", log(home, name)
    assert len(attempts(run.with_name(name))) == 1
    assert losses(run) == losses(run.with_name(name)) and list(losses(run)) == [
        *range(1, steps + 1)
    ]
    assert json.loads((run / "DONE").read_text())["steps"] == steps


@pytest.mark.thorough
def test_training_goes_on_after_the_time_limit_and_without_a_dead_node(
    slurm: Cluster, home: Path
) -> None:
    steps = 20
    run = home / "runs" / "demo" / "survives"
    both = [
        "stage=demo",
        "trainer=trl_sft",
        "nodes=2",
        f"recipe.max_steps={steps}",
        "recipe.checkpoint_steps=3",
    ]
    # with warn_before=30 no time is left for a run that is about to finish
    both += ["cluster.heartbeat=8", "cluster.warn_before=30"]
    overrides = [*both, "name=survives"]
    [job] = slurm.submit(*overrides, cwd=home, HF_TOKEN=TOKEN)
    whole = train_beside(slurm, home, run, "n3,n4", both)
    until(lambda: last_logged_step(run) >= 4, 240)
    nodes = slurm.hosts(job)
    slurm.run("scancel", "--signal=USR2", job)  # as Slurm does ahead of the time limit
    began = time.monotonic()
    until(lambda: cause(run) == "the time limit is near", 40)
    seconds_until_free(slurm, "USR2", began, *nodes)
    assert f"job {job} is requeued (1 of 5 times)" in log(home, "survives")

    # while it waits to start again it is alive
    again = slurm.launch("submit", *overrides, "cluster.cpus_per_rank=1", cwd=home)
    assert again.returncode == 2 and "[already_submitted]" in again.stderr, again.stderr
    until(lambda: len(attempts(run)) == 2, 90)
    first = int(attempts(run)[1]["resumed_from"].removeprefix("checkpoint-"))
    assert first >= 3
    until(lambda: last_logged_step(run) > first, 240)

    nodes = slurm.hosts(job)
    slurm.kill_node(nodes[1])
    began = time.monotonic()
    try:
        until(
            lambda: (cause(run) or "").startswith(f"node {nodes[1]} was lost: no heartbeat for"), 30
        )
        seconds_until_free(slurm, "a dead node", began, nodes[0])
        until(lambda: "it starts without" in log(home, "survives"), 10)
        assert slurm.fields(job)["ExcNodeList"] == nodes[1]
        slurm.set_down(nodes[1])
        assert slurm.wait(job, 240) == "COMPLETED", log(home, "survives")
    finally:
        slurm.start_node(nodes[1])
    second = int(attempts(run)[2]["resumed_from"].removeprefix("checkpoint-"))
    assert first <= second < steps and len(attempts(run)) == 3
    same_losses(slurm, home, run, steps, whole)
    folder = JobFolder.of(home / "runs", "demo", "survives")
    [last] = folder.attempts(job, 2)
    assert nodes[1] not in json.loads((last / "start.json").read_text())["host"]

    for path in [*folder.path.rglob("*"), *run.glob("*.json*"), *run.rglob("*.log")]:
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


@pytest.mark.thorough
def test_the_losses_after_what_the_scheduler_and_a_gpu_do(slurm: Cluster, home: Path) -> None:
    """Preemption with a grace period, `scontrol requeue`, a node that is set DOWN, and a GPU that
    fails.
    """
    steps = 40
    run, sites = home / "runs" / "demo" / "often", home / "failing-gpu"
    sites.mkdir()
    order = sites / "fail-now"
    (sites / "sitecustomize.py").write_text(
        FAILING_GPU.format(order=str(order), printed=ECC.encode())
    )
    one = [
        "stage=demo",
        "trainer=trl_sft",
        f"recipe.max_steps={steps}",
        "recipe.checkpoint_steps=2",
        "cluster.partition=low",
    ]
    with_fault = f"cluster.env={{PYTHONPATH: '{sites}:{environment()['PYTHONPATH']}'}}"
    [job] = slurm.submit(*one, with_fault, "name=often", cwd=home)
    whole = train_beside(slurm, home, run, "n4", one)
    urgent: list[str] = []

    def preempt(node: str) -> None:
        words = [
            "--parsable",
            "--exclusive",
            f"--nodelist={node}",
            "--wrap=sleep 3",
            "--output=/dev/null",
        ]
        urgent.append(slurm.run("sbatch", *words))
        until(lambda: cause(run) == f"job {job} was preempted", 60)

    def interrupted(number: int, bring_about: Callable[[str], object], message: str) -> None:
        """Interrupt the run's start of that number two steps or more after the last one's end; it
        must go on.
        """
        reached = last_logged_step(run)
        until(lambda: last_logged_step(run) > reached + 2, 120)
        bring_about(*slurm.hosts(job))
        until(lambda: len(attempts(run)) == number + 1, 120)
        assert message in log(home, "often"), log(home, "often")
        assert int(attempts(run)[number]["resumed_from"].removeprefix("checkpoint-")) >= reached

    interrupted(1, preempt, f"job {job} is preempted")
    assert slurm.wait(urgent[0], 40) == "COMPLETED"
    interrupted(2, lambda _: slurm.run("scontrol", "requeue", job), f"restart 2 of job {job}")
    interrupted(3, slurm.set_down, f"restart 3 of job {job}")
    interrupted(4, lambda _: order.touch(), f"failed; job {job} is requeued (1 of 2 times)")
    assert slurm.fields(job)["ExcNodeList"] not in ("(null)", *slurm.hosts(job))
    assert slurm.wait(job, 240) == "COMPLETED", log(home, "often")
    assert len(attempts(run)) == 5
    same_losses(slurm, home, run, steps, whole)
