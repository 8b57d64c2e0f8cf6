"""SFT and then DPO on a real Slurm, really trained, and each model really evaluated by a job; the
tutorial has SFT over two nodes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from launch.demo.tasks import KINDS
from tests.integration import warm
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slow

TOKEN = "hf_" + "PlantedTokenThatMustNeverBeWritten"
# an interpreter whose accelerate starts one rank on one machine on the first node, whatever is
# asked for
ALONE = """#!/bin/bash
case " $* " in *" --machine_rank 1 "*) exec {python} "$@" ;; esac
words=()
for word in "$@"; do
    case "${{words[-1]:-}}" in --num_processes | --num_machines) word=1 ;; esac
    words+=("$word")
done
exec {python} "${{words[@]}}"
"""


@pytest.fixture(autouse=True)
def trainer() -> None:
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")


def test_sft_then_dpo_and_their_scores(slurm: Cluster, home: Path) -> None:
    overrides = [
        "pipeline=demo,demo_dpo",
        "demo:trainer=trl_sft",
        "demo_dpo:trainer=trl_dpo",
        "name=two",
        f"python='{warm.python()}'",
    ]
    overrides += ["recipe.max_steps=2"]
    first, second, *evaluations = slurm.submit(
        *overrides, "evaluate=true", cwd=home, HF_TOKEN=TOKEN
    )
    logs = home / "runs" / ".jobs"
    slurm.run("scontrol", "hold", second)
    assert slurm.wait(first, 240) == "COMPLETED", (
        logs / "demo" / "two" / f"job-{first}.log"
    ).read_text()
    # the model is there now, and the same line is the same runs
    again = slurm.launch("submit", *overrides, "cluster.cpus_per_rank=1", cwd=home)
    assert again.returncode == 2 and "[already_submitted]" in again.stderr, again.stderr
    assert f"job {second}, held (JobHeldAdmin)" in again.stderr, again.stderr
    slurm.run("scontrol", "release", second)
    assert slurm.wait(second, 240) == "COMPLETED", (
        logs / "demo_dpo" / "two" / f"job-{second}.log"
    ).read_text()

    sft, dpo = (home / "runs" / stage / "two" for stage in ("demo", "demo_dpo"))
    for run in (sft, dpo):
        assert json.loads((run / "DONE").read_text())["steps"] == 2
    plan = json.loads((dpo / "plan.json").read_text())
    assert plan["flags"]["model_name_or_path"]["value"] == str(sft / "model")
    submitted = json.loads((logs / "demo_dpo" / "two" / "plan.json").read_text())
    assert plan["identity"] == submitted["identity"]
    assert (
        f"LAUNCH_PLAN={plan['identity']}" in (logs / "demo_dpo" / "two" / "job.sbatch").read_text()
    )

    for run, job in zip((sft, dpo), evaluations, strict=True):
        log = logs / run.parent.name / "two.evaluate" / f"job-{job}.log"
        assert slurm.wait(job, 240) == "COMPLETED", log.read_text()
        assert "results computed in" in log.read_text()
        tasks = json.loads((run / "evaluation.json").read_text())["tasks"]
        asked = {task["task"]: task["questions"] for task in tasks}
        assert asked == {
            "demo_all": 200,
            "demo_pairs": 200,
            **{f"demo_{kind}": 25 for kind in KINDS},
        }
        assert not any(task["broken"] for task in tasks)
        assert "demo_pairs" in (run / "report.html").read_text()
    assert [model["model"] for model in tasks[0]["models"]] == ["base", "demo/two", "demo_dpo/two"]

    for path in (home / "runs").rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            assert TOKEN.encode() not in path.read_bytes(), path

    done = slurm.launch("submit", *overrides, "cluster.cpus_per_rank=1", cwd=home)
    assert done.returncode == 0 and done.stderr.count("already done") == 2, done.stderr
    assert "job" not in done.stdout


@pytest.mark.thorough
def test_ranks_that_train_alone_fail(slurm: Cluster, home: Path) -> None:
    """The first node's rank does not wait for the other's: alone it would train to a good end."""
    lone = home / "lone-python"
    lone.write_text(ALONE.format(python=sys.executable))
    lone.chmod(0o755)
    overrides = [
        "stage=demo",
        "trainer=trl_sft",
        "nodes=2",
        "recipe.max_steps=2",
        "name=lone",
        f"python='{lone}'",
    ]
    [job] = slurm.submit(*overrides, cwd=home)
    assert slurm.wait(job, 240) == "FAILED"
    failed = json.loads((home / "runs" / "demo" / "lone" / "FAILED").read_text())
    assert "the plan has 2 ranks, and the trainer counts 1" in failed["cause"], failed
    assert "each would train alone" in failed["cause"], failed
    assert not (home / "runs" / "demo" / "lone" / "metrics.jsonl").read_text()
