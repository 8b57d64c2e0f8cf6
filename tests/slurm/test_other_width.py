"""Jobs on a real Slurm whose runs go on with fewer nodes: submitted again, and started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, until
from tests.slurm.runs import attempts, last_logged_step, losses

pytestmark = pytest.mark.slow

STEPS = 20
LINE = (
    *("stage=demo", "trainer=trl_sft", f"recipe.max_steps={STEPS}"),
    *("recipe.checkpoint_steps=3", "recipe.per_device_batch_size=8", "cluster.cpus_per_rank=1"),
)


@pytest.mark.thorough
def test_a_run_goes_on_with_fewer_nodes_and_one_job_at_a_time(slurm: Cluster, home: Path) -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")

    def submit(nodes: int) -> tuple[str, str]:
        """Submit the line with a number of nodes; return the job and the run's name."""
        done = slurm.launch("submit", *LINE, f"nodes={nodes}", "--json", cwd=home)
        assert done.returncode == 0, done.stdout + done.stderr
        [job] = json.loads(done.stdout)
        return job["job_id"], job["run"]

    def refuse(nodes: int, job: str) -> None:
        done = slurm.launch("submit", *LINE, f"nodes={nodes}", cwd=home)
        assert done.returncode == 2 and "[already_submitted]" in done.stderr, done.stderr
        assert f"job {job}" in done.stderr, done.stderr

    first, name = submit(2)
    run = home / "runs" / name
    until(lambda: any(run.glob("model/checkpoint-*/trainer_state.json")), 240)
    until(lambda: last_logged_step(run) > 3, 60)
    refuse(1, first)
    slurm.run("scancel", first)
    slurm.wait(first, 60)
    assert last_logged_step(run) < STEPS

    second, same = submit(1)
    log = home / "runs" / ".jobs" / name / f"job-{second}.log"
    assert same == name
    until(lambda: len(attempts(run)) == 2, 120)
    refuse(2, second)
    assert slurm.wait(second, 240) == "COMPLETED", log.read_text()
    begun, resumed = attempts(run)
    assert (begun["ranks"], resumed["ranks"]) == (2, 1)
    assert int(resumed["resumed_from"].removeprefix("checkpoint-")) >= 3
    assert list(losses(run)) == list(range(1, STEPS + 1))
    assert json.loads((run / "DONE").read_text())["steps"] == STEPS


@pytest.mark.thorough
def test_a_job_that_is_started_again_goes_on_with_the_nodes_that_it_gets(
    slurm: Cluster, home: Path
) -> None:
    """Two nodes to one: one of them is down, and the waiting job is told to need no more."""
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    line = (*LINE, "recipe.seed=7", "nodes=2")
    done = slurm.launch("submit", *line, "--json", cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    [submitted] = json.loads(done.stdout)
    job, name = submitted["job_id"], submitted["run"]
    run = home / "runs" / name
    log = home / "runs" / ".jobs" / name / f"job-{job}.log"
    until(lambda: any(run.glob("model/checkpoint-*/trainer_state.json")), 240)
    until(lambda: last_logged_step(run) > 3, 60)
    slurm.run("scontrol", "requeuehold", job)
    until(lambda: slurm.state(job) == "PENDING", 60)
    slurm.run("scontrol", "update", f"JobId={job}", "NumNodes=1", "NumTasks=1")
    slurm.run("scontrol", "release", job)
    assert slurm.wait(job, 300) == "COMPLETED", log.read_text()
    begun, resumed = attempts(run)
    assert (begun["ranks"], resumed["ranks"]) == (2, 1)
    assert int(resumed["resumed_from"].removeprefix("checkpoint-")) >= 3
    assert list(losses(run)) == list(range(1, STEPS + 1))
    assert json.loads((run / "DONE").read_text())["steps"] == STEPS
