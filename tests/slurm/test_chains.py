"""Chains, arrays and rollouts on a real Slurm: what waits for what, and what becomes of it when a
job fails.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration import warm
from tests.slurm.cluster import Cluster, until
from tests.slurm.stand_ins import stand_in_overrides
from tests.thorough import mark_others
from tests.trials.records import check

pytestmark = pytest.mark.slow

# a real interpreter, except for what the lines of bash do; `$words` are what it is asked
PYTHON = """#!/bin/bash
words=" $* "
{does}
exec {python} "$@"
"""


def interpreter(home: Path, name: str, does: str) -> str:
    path = home / f"{name}-python"
    path.write_text(PYTHON.format(does=does, python=warm.python_with_cold_ranks()))
    path.chmod(0o755)
    return f"python='{path}'"


def job_log(home: Path, run: str, job: str) -> str:
    return (home / "runs" / ".jobs" / run / f"job-{job}.log").read_text()


@pytest.mark.thorough
def test_tokenised_by_a_job_ahead(slurm: Cluster, home: Path, open_instruct: Path) -> None:
    overrides = ["stage=demo", "trainer=finetune", "nodes=2", "recipe.max_steps=2", "name=tokens"]
    overrides += ["tokenize_first=true", f"upstream.dir={open_instruct}"]
    first, second = slurm.submit(*overrides, cwd=home)
    assert slurm.run("squeue", "-h", "-j", first, "-o", "%D %C") == "1 1"  # one node, of the two
    assert slurm.wait(first, 240) == "COMPLETED", job_log(home, "demo/tokens.tokenize", first)
    assert "nothing was trained" in job_log(home, "demo/tokens.tokenize", first)
    slurm.run("scancel", second)

    # what is tokenised is not tokenised again
    again = slurm.launch(
        "submit", *overrides, "cluster.cpus_per_rank=1", "dry_run=true", "--json", cwd=home
    )
    assert [run["run"] for run in json.loads(again.stdout)] == ["demo/tokens"], again.stderr


def test_a_first_link_that_fails_takes_the_rest_down(
    slurm: Cluster, home: Path, open_instruct: Path
) -> None:
    python = interpreter(
        home, "no-tokens", 'case $words in *cache_dataset_only*) echo "no luck"; exit 7 ;; esac'
    )
    overrides = [
        "pipeline=demo,demo_dpo",
        "demo:trainer=finetune",
        "demo_dpo:trainer=dpo_tune_cache",
        "name=untokenised",
    ]
    overrides += [
        "demo:recipe.seed=5",
        "tokenize_first=true",
        python,
        f"upstream.dir={open_instruct}",
    ]
    jobs = slurm.submit(*overrides, "evaluate=true", cwd=home)
    assert len(jobs) == 6
    assert slurm.wait(jobs[0], 120) == "FAILED"
    for job in jobs[1:]:
        assert slurm.wait(job, 60) == "CANCELLED"
    assert not (home / "runs" / "demo" / "untokenised").exists()


def test_a_pipeline_is_stopped_by_its_name(slurm: Cluster, home: Path, open_instruct: Path) -> None:
    overrides = [
        "pipeline=demo,demo_dpo",
        "demo:trainer=finetune",
        "demo_dpo:trainer=dpo_tune_cache",
        "name=held",
    ]
    overrides += [
        "tokenize_first=true",
        "cluster.options=['--begin=now+1hour']",
        f"upstream.dir={open_instruct}",
    ]
    jobs = slurm.submit(*overrides, cwd=home)
    stopped = slurm.launch("stop", "held", cwd=home)
    assert stopped.returncode == 0 and stopped.stdout.endswith("pipelines/held is stopped\n"), (
        stopped.stderr
    )
    assert {line.split()[2].rstrip(",") for line in stopped.stdout.splitlines()[:-1]} == set(jobs)
    assert slurm.run("squeue", "-h", "-j", ",".join(jobs)) == ""


def test_a_sweep_is_an_array(slurm: Cluster, home: Path) -> None:
    go, began = home / "go", home / "began"
    does = f'touch "{began}"; until [ -e "{go}" ]; do sleep 0.2; done; exit 3'
    overrides = stand_in_overrides(home, "sweep", does)
    overrides = [
        "--multirun",
        *(word for word in overrides if not word.startswith("name=")),
        "recipe.seed=1,2",
    ]
    # from within another job, which Slurm has requeued; defaults for sbatch are the user's own
    around = {
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "3",
        "SLURM_NODEID": "0",
        "LAUNCH_HOSTS": "n4",
    }
    ids = slurm.submit(
        *overrides, "cluster.array_limit=1", cwd=home, SBATCH_TIMELIMIT="17", **around
    )
    array = ids[0].partition("_")[0]
    assert set(slurm.run("squeue", "-h", "-j", array, "-o", "%l").split()) == {"17:00"}
    assert ids == [f"{array}_0", f"{array}_1"]

    def run_statuses() -> dict[str, dict[str, Any]]:
        runs = json.loads(slurm.launch("status", "--json", cwd=home).stdout)
        return {run["job_id"]: run for run in runs if run["job_id"] in ids}

    until(began.exists, 90)
    before = run_statuses()
    assert before[ids[0]]["state"] == "running"
    assert (before[ids[1]]["state"], before[ids[1]]["job"]["reason"]) == (
        "pending",
        "JobArrayTaskLimit",
    )
    # the second task has yet to read its run's script
    second = [
        word for word in overrides if word != "--multirun" and not word.startswith("recipe.seed")
    ] + ["recipe.seed=2"]
    scripts = {
        path: path.read_text() for path in (home / "runs" / ".jobs" / "demo").glob("*/*.sbatch")
    }
    for requested, job in (
        (overrides, ids[0]),
        (second, ids[1]),
        ([*second, "dry_run=true"], ids[1]),
    ):
        refused = slurm.launch(
            "submit", *requested, "cluster.cpus_per_rank=1", "cluster.setup=['exit 1']", cwd=home
        )
        assert refused.returncode == 2 and f"job {job}, " in refused.stderr, refused.stderr
    assert scripts == {path: path.read_text() for path in scripts}

    go.touch()
    for job in ids:
        assert slurm.wait(job, 120) == "FAILED"
        run = home / before[job]["folder"]
        assert json.loads((run / "FAILED").read_text())["exit_code"] != 0
        assert str(run) in job_log(home, f"demo/{run.name}", job)
        assert "restart" not in job_log(home, f"demo/{run.name}", job)
    assert {
        path.name for path in (home / "runs" / ".jobs" / "demo" / run.name).glob("job-*.log")
    } == {f"job-{job}.log"}


# an sbatch that takes the first job, and not the next one
ONE_ONLY = """#!/bin/bash
case " $* " in *" --test-only "*) exec {real} "$@" ;; esac
if [ -e {folder}/taken ]; then
    echo "sbatch: error: Batch job submission failed: Job violates QOS policy" >&2
    exit 1
fi
touch {folder}/taken
exec {real} "$@"
"""


@pytest.mark.parametrize(
    "argv",
    mark_others(
        [
            ("submit --multirun recipe.seed=1,2 nodes=1,2 cluster.array_limit=1",),
            ("rollout processes=1,2 device=cpu submit=all steps=3 recipe.max_steps=6 name=half",),
            ("submit pipeline=demo,demo_dpo demo_dpo:trainer=trl_dpo name=half",),
        ],
        kept=[("submit pipeline=demo,demo_dpo demo_dpo:trainer=trl_dpo name=half",)],
    ),
    ids=["arrays", "rollout", "pipeline"],
)
def test_what_slurm_stops_half_way_leaves_no_job(
    slurm: Cluster, home: Path, tmp_path: Path, argv: str
) -> None:
    before = set(slurm.run("squeue", "-h", "-o", "%A").split())
    real = shutil.which("sbatch", path=slurm.environ["PATH"])
    wrapper = tmp_path / "sbatch"
    wrapper.write_text(ONE_ONLY.format(real=real, folder=tmp_path))
    wrapper.chmod(0o755)
    stage = ["demo:trainer=trl_sft"] if "pipeline=" in argv else ["stage=demo", "trainer=trl_sft"]
    path = f"{tmp_path}:{slurm.environ['PATH']}"
    # a job for later: it must not have begun when it is cancelled
    options = "cluster.options=['--begin=now+600']"
    line = [*argv.split(), *stage, "cluster.cpus_per_rank=1", options]
    done = slurm.launch(*line, cwd=home, PATH=path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "[sbatch_refused]" in done.stderr and "Job violates QOS policy" in done.stderr
    assert " already submitted" in done.stderr, done.stderr
    assert (tmp_path / "taken").exists()
    until(lambda: set(slurm.run("squeue", "-h", "-o", "%A").split()) <= before, 30)
    # nothing is in the way of another try
    again = slurm.launch(*line, "--json", cwd=home)
    assert again.returncode == 0, again.stdout + again.stderr
    slurm.run("scancel", *(set(slurm.run("squeue", "-h", "-o", "%A").split()) - before))


WIDE = (
    *(
        "stage=demo",
        "trainer=trl_sft",
        "device=cpu",
        "processes=1,2,2x2",
        "recipe.per_device_batch_size=4",
    ),
    *(
        "recipe.max_steps=6",
        "steps=3",
        "name=wide",
        "submit=all",
        "cluster.cpus_per_rank=1",
        "--json",
    ),
)


def rollout(slurm: Cluster, home: Path, *more: str) -> dict[str, Any]:
    done = slurm.launch("rollout", *WIDE, *more, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    check(record)
    return record


def read(home: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(
        (home / "runs" / "demo" / "rollout-wide" / "rollout.json").read_text()
    )
    check(record)
    return record


@pytest.mark.thorough
def test_a_rollout_stops_at_a_red_width_and_goes_on_from_there(slurm: Cluster, home: Path) -> None:
    """At the second width the trainer fails: the third one is taken off the queue. Asked for again,
    without that fault, the first width is kept and the others run, the last one over two nodes.
    """
    pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    python = interpreter(
        home, "narrow", 'case $words in *"--num_processes 2 "*) echo "no luck"; exit 7 ;; esac'
    )
    handed = rollout(slurm, home, python)
    assert [width["state"] for width in handed["runs"]] == ["submitted"] * 3 and handed[
        "state"
    ] == "submitted"
    jobs = [width["job_id"] for width in handed["runs"]]
    refused = slurm.launch("rollout", *WIDE, cwd=home)
    assert refused.returncode == 2 and "[already_submitted]" in refused.stderr, refused.stderr
    assert read(home)["state"] in ("submitted", "running")
    logs = [
        f"demo/{Path(width['folder']).relative_to(home / 'runs' / 'demo')}"
        for width in handed["runs"]
    ]
    assert slurm.wait(jobs[0], 240) == "COMPLETED", job_log(home, logs[0], jobs[0])
    assert slurm.wait(jobs[1], 120) == "FAILED"
    assert slurm.wait(jobs[2], 60) == "CANCELLED"
    red = read(home)
    assert [width["state"] for width in red["runs"]] == ["done", "failed", "planned"]
    assert [gate["id"] for gate in red["runs"][1]["gates"] if gate["verdict"] == "fail"] == [
        "finished_steps"
    ]
    assert "cpu2 failed: finished_steps; not widened to cpu2x2" in job_log(home, logs[1], jobs[1])

    handed = rollout(slurm, home)
    assert [width["state"] for width in handed["runs"]] == ["done", "submitted", "submitted"]
    for width, log in zip(handed["runs"][1:], logs[1:], strict=True):
        assert slurm.wait(width["job_id"], 240) == "COMPLETED", job_log(home, log, width["job_id"])
    green = read(home)
    assert green["state"] == "done", green
    assert [width["label"] for width in green["runs"]] == ["cpu1", "cpu2", "cpu2x2"]
    wide = green["runs"][2]
    assert (wide["batch"]["width"], wide["batch"]["accumulation"], wide["measured"]["steps"]) == (
        4,
        4,
        3,
    )
    verdicts = {gate["id"]: gate["verdict"] for gate in wide["gates"]}
    proofs = ("evidence_complete", "all_ranks_step", "same_data", "loss_parity")
    assert {id: verdicts[id] for id in proofs} == dict.fromkeys(proofs, "pass")
    assert (Path(wide["folder"]) / "nodes" / "1" / "DONE").is_file()
