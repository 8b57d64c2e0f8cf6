"""In which order runs become jobs, and the scripts of what is not a run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.errors import UserError
from launch.execution.caches import find_tokenized_data, plan_cache_pass
from launch.execution.record.lock import run_lock
from launch.planning.build import build_plan
from launch.slurm.allocation import read_allocation
from launch.slurm.jobs import JobFolder, find_jobs
from launch.slurm.planned_jobs import (
    PlannedJob,
    plan_evaluation_job,
    plan_run_job,
    plan_tokenize_job,
)
from launch.slurm.queue import QueuedJob, folder_tag, parse_job_record
from launch.slurm.schedule import (
    SubmissionStep,
    TokenizeFirst,
    add_evaluations,
    as_arrays,
    as_chain,
)
from launch.slurm.script import render_sbatch
from launch.slurm.submission import job_environment
from launch.slurm.submission_report import describe_submission, report_json
from tests.conftest import Launch, composed, fixed_machine, planned
from tests.execution.record.records import append, event
from tests.execution.test_caches import data_set
from tests.slurm.test_script import shellcheck

SFT = ("stage=sft", "gpus=8")


def planned_job(home: Path, *overrides: str, is_pending: bool = False) -> PlannedJob:
    stage = composed(*overrides)
    return plan_run_job(replace(build_plan(stage, fixed_machine(home)), is_pending=is_pending))


def order(steps: Sequence[SubmissionStep]) -> list[tuple[list[str], tuple[int, ...]]]:
    return [([job.name for job in step.jobs], step.after) for step in steps]


def test_a_chain_tokenises_ahead_of_each_of_its_runs(tmp_path: Path) -> None:
    sft = planned_job(tmp_path, *SFT, "name=a")
    dpo = planned_job(tmp_path, "stage=dpo", "gpus=8", "name=b", is_pending=True)
    assert order(as_chain([sft, dpo], TokenizeFirst.auto)) == [
        (["sft/a.tokenize"], ()),
        (["sft/a"], (0,)),
        (["dpo/b.tokenize"], (1,)),
        (["dpo/b"], (2,)),
    ]
    assert order(as_chain([sft, dpo], TokenizeFirst.never)) == [(["sft/a"], ()), (["dpo/b"], (0,))]


def test_a_pipeline_has_the_same_names_when_its_first_model_is_there(
    tmp_path: Path, launch: Launch
) -> None:
    def runs(*overrides: str) -> list[str]:
        line = [
            "submit",
            "pipeline=demo,demo_dpo",
            "demo:trainer=trl_sft",
            "demo_dpo:trainer=trl_dpo",
            *overrides,
        ]
        return [run["run"] for run in json.loads(launch(*line, "dry_run=true", "--json").stdout)]

    before = runs()
    model = tmp_path / "runs" / before[0] / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    assert runs() == before
    other = runs("demo:recipe.seed=5")
    assert other[0] != before[0] and other[1] != before[1]


def test_a_dry_run_prints_commands_that_keep_the_order(launch: Launch) -> None:
    stages = ("demo:trainer=trl_sft", "demo_dpo:trainer=trl_dpo", "tokenize_first=false")
    _, first, second, _ = launch(
        "submit", "pipeline=demo,demo_dpo", *stages, "dry_run=true"
    ).stdout.splitlines()
    name = first.partition(":")[0]
    assert f" --dependency=afterok:<job of {name}> " in second and "--dependency" not in first
    swept = [
        "submit",
        "stage=demo",
        "trainer=trl_sft",
        "sweep=true",
        "recipe.seed=1,2",
        "dry_run=true",
    ]
    _, line, _ = launch(*swept).stdout.splitlines()
    assert line.endswith("array.sbatch") and line.count("demo/") == 2


def test_a_dry_run_leaves_what_a_living_run_reads(tmp_path: Path, launch: Launch) -> None:
    argv = ["submit", "stage=demo", "trainer=trl_sft", "name=x", "dry_run=true"]
    script = tmp_path / "runs" / ".jobs" / "demo" / "x" / "job.sbatch"
    assert launch(*argv).returncode == 0
    written = script.read_text()
    with run_lock(tmp_path / "runs" / "demo" / "x", print):
        refused = launch(*argv, "cluster.setup=['echo another']")
    assert "[run_is_locked]" in refused.stderr and script.read_text() == written
    assert launch(*argv, "cluster.setup=['echo another']").returncode == 0
    assert "echo another" in script.read_text()


def test_a_folder_is_of_one_run_of_a_line(tmp_path: Path, launch: Launch) -> None:
    argv = ["submit", "--multirun", "stage=demo", "trainer=trl_sft", "dry_run=true", "--json"]

    rates = "recipe.learning_rate=1e-5,0.00001,2e-5"
    shown = launch(*argv, rates)
    runs = [run["run"] for run in json.loads(shown.stdout)]
    assert len(set(runs)) == len(runs) == 2
    assert shown.stderr == f"launch: {runs[0]} is requested twice and submitted once\n"

    # one name, and one run on two partitions
    for more in ([rates, "name=x"], ["cluster.partition=a,b"]):
        before = sorted(tmp_path.rglob("*"))
        error = launch(*argv, *more).stderr
        values = (
            ("recipe.learning_rate=1e-05", "recipe.learning_rate=2e-05")
            if more[0] == rates
            else ("=a", "=b")
        )
        assert "[name_taken]" in error and all(value in error for value in values), error
        assert sorted(tmp_path.rglob("*")) == before
    twice = launch("submit", "pipeline=demo,demo", "demo:trainer=trl_sft", "name=x", "dry_run=true")
    assert "[duplicate_stage]" in twice.stderr


def test_who_tokenises_ahead(tmp_path: Path) -> None:
    def count(*overrides: str, tokenizing: TokenizeFirst = TokenizeFirst.auto) -> int:
        return len(as_chain([planned_job(tmp_path, *overrides)], tokenizing)) - 1

    olmo = (
        "stage=sft",
        "trainer=olmo_core_finetune",
        "model=olmo2_1b",
        "recipe.packing=bins",
        "gpus=1",
    )
    assert count(*olmo) == 1
    assert count(*SFT, "trainer=trl_sft") == 0  # it keeps no tokenised data
    assert count("stage=demo", "trainer=finetune") == 0  # nothing but CPUs would wait
    assert count("stage=demo", "trainer=finetune", tokenizing=TokenizeFirst.always) == 1
    with pytest.raises(UserError, match="no_cache_pass"):
        count(*SFT, "trainer=trl_sft", tokenizing=TokenizeFirst.always)


def test_the_job_that_tokenises_has_no_gpu(
    golden: Callable[[str, Sequence[str]], None], tmp_path: Path
) -> None:
    overrides = (
        "stage=sft_25pct",
        "nodes=4",
        "gpus=8",
        "cluster.partition=gpu",
        "cluster.time='24:00:00'",
        "name=x",
    )
    stage = composed(
        *overrides,
        "cluster.constraint=h100",
        "cluster.tokenize_partition=cpu",
        "cluster.tokenize_cpus=48",
    )
    plan = build_plan(stage, fixed_machine())
    script = plan_tokenize_job(plan_run_job(plan)).script
    script = replace(
        script, cwd="/my work", python="/venv/bin/python", exports={"LAUNCH_PLAN": "ID"}
    )
    golden("sbatch-tokenize", render_sbatch(script).splitlines())
    assert "gpu" not in "".join(
        line for line in render_sbatch(script).splitlines() if line.startswith("#SBATCH")
    )


def test_no_run_of_a_chain_waits_for_an_evaluation(tmp_path: Path) -> None:
    sft = planned_job(tmp_path, *SFT, "name=a", "evaluate=true")
    plain = planned_job(tmp_path, "stage=dpo", "gpus=8", "name=b", is_pending=True)
    dpo = planned_job(tmp_path, "stage=dpo", "gpus=8", "name=c", "evaluate=true", is_pending=True)
    done = planned_job(tmp_path, "stage=sft", "gpus=8", "name=done", "evaluate=true")
    steps = add_evaluations(as_chain([sft, plain, dpo], TokenizeFirst.never), [done])
    assert order(steps) == [
        (["sft/a"], ()),
        (["dpo/b"], (0,)),
        (["dpo/c"], (1,)),
        (["sft/done.evaluate"], ()),
        (["sft/a.evaluate"], (0,)),
        (["dpo/c.evaluate"], (2,)),
    ]
    tokenized_first = add_evaluations(as_chain([sft], TokenizeFirst.auto), [])
    assert order(tokenized_first)[1:] == [(["sft/a"], (0,)), (["sft/a.evaluate"], (1,))]


def test_the_evaluations_of_a_sweep_wait_each_for_their_own_run(tmp_path: Path) -> None:
    runs = [
        planned_job(tmp_path, *SFT, f"recipe.seed={n}", f"name=s{n}", "evaluate=true")
        for n in (1, 2)
    ]
    run_step, evaluations = add_evaluations(as_arrays(runs, TokenizeFirst.never), [])
    assert order([evaluations]) == [(["sft/s1.evaluate", "sft/s2.evaluate"], (0,))]
    assert evaluations.is_array and evaluations.is_taskwise and not run_step.is_taskwise


def test_the_job_that_evaluates_has_one_gpu(golden: Callable[[str, Sequence[str]], None]) -> None:
    overrides = (
        "stage=dpo",
        "nodes=4",
        "gpus=8",
        "cluster.partition=gpu",
        "cluster.requeues=3",
        "name=x",
    )
    plan = planned(*overrides, "evaluate=true")
    script = plan_evaluation_job(plan_run_job(plan)).script
    script = replace(
        script, cwd="/my work", python="/venv/bin/python", exports={"LAUNCH_PLAN": "ID"}
    )
    text = render_sbatch(script)
    shellcheck(text)
    assert (
        "-m launch eval \\\n        dpo/x \\\n        tasks=tulu3 \\\n        runs=/cwd/runs\n"
        in text
    )
    options = [
        line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")
    ]
    golden("sbatch-evaluate", options)


def test_a_sweep_is_an_array_of_each_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [planned_job(tmp_path, *SFT, f"recipe.seed={seed}", f"name=s{seed}") for seed in (1, 2)]
    wide = planned_job(tmp_path, "stage=sft", "gpus=4", "nodes=2", "name=wide")
    steps = as_arrays([runs[0], wide, runs[1]], TokenizeFirst.auto)
    assert order(steps) == [
        (["sft/s1.tokenize"], ()),
        (["sft/s1", "sft/s2"], (0,)),
        (["sft/wide"], (0,)),
    ]
    message = capsys.readouterr().err
    assert "2 different shapes" in message and "gpu8: 2, gpu2x4: 1" in message
    as_arrays(runs, TokenizeFirst.auto)
    assert capsys.readouterr().err == ""


def test_data_that_differs_is_tokenised_by_jobs_of_their_own(tmp_path: Path) -> None:
    overrides = [(*SFT, "recipe.max_seq_length=1024"), (*SFT, "recipe.max_seq_length=2048")]
    steps = as_arrays([planned_job(tmp_path, *each) for each in overrides], TokenizeFirst.auto)
    assert [step.after for step in steps] == [(), (), (0, 1)]
    assert all(step.jobs[0].is_singleton for step in steps[:2]) and steps[2].is_array


def test_the_script_of_an_array(
    golden: Callable[[str, Sequence[str]], None], tmp_path: Path
) -> None:
    runs = [
        planned_job(tmp_path, *SFT, f"recipe.seed={seed}", f"name=s{seed}") for seed in (1, 2, 3)
    ]
    runs = [
        replace(run, folder=JobFolder(tmp_path / ".jobs" / "sft" / f"it's {n}"))
        for n, run in enumerate(runs)
    ]
    cluster = replace(runs[0].script.cluster, array_limit=2)
    runs[0] = replace(runs[0], script=replace(runs[0].script, cluster=cluster))
    step = SubmissionStep(tuple(runs))
    step.write()
    text = step.folder.script.read_text()
    shellcheck(text)
    for run in runs:
        run.folder.write_script(f"echo {run.folder.path.name[-1]} $LAUNCH_TASK")
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12"}
    done = subprocess.run(
        ["bash", "-c", text],
        env={**environ, "SLURM_ARRAY_TASK_ID": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2 14 12_2\n"
    golden(
        "sbatch-array",
        text.replace(str(tmp_path), "/my runs")
        .replace(folder_tag(step.folder.path), "launch:TAG")
        .replace(step.folder.path.name, "ID")
        .splitlines(),
    )


def test_the_report_of_an_array(tmp_path: Path) -> None:
    runs = [planned_job(tmp_path, *SFT, f"recipe.seed={seed}", f"name=s{seed}") for seed in (1, 2)]
    report = report_json(as_arrays(runs, TokenizeFirst.auto), ["11", "12"], {})
    assert [(run["run"], run["job_id"], run["after"]) for run in report] == [
        ("sft/s1.tokenize", "11", []),
        ("sft/s1", "12_0", ["11"]),
        ("sft/s2", "12_1", ["11"]),
    ]
    assert report[2]["log"] == str(tmp_path / "runs" / ".jobs" / "sft" / "s2" / "job-12_1.log")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            (),
            (
                "200 steps are repeated after the loss of a node or the time limit (a checkpoint "
                "every "
                "200)"
            ),
        ),
        (
            ("recipe.checkpoint_steps=null",),
            "it writes no checkpoints; set recipe.checkpoint_steps",
        ),
        (
            ("recipe.max_steps=100",),
            "it ends after 100 steps and has no checkpoint before; set recipe.checkpoint_steps",
        ),
    ],
)
def test_the_report_names_the_limits_and_the_worst_loss(
    overrides: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    steps = as_chain(
        [planned_job(tmp_path, *SFT, "nodes=2", "name=a", *overrides)], TokenizeFirst.never
    )
    record = parse_job_record(
        "JobId=7 JobState=PENDING Reason=Priority Requeue=1 Partition=gpu TimeLimit=00:30:00 "
        "NumNodes=2-2"
    )
    lines = list(describe_submission(steps, ["7"], {"7": record}))
    assert lines[1] == "  limits:    00:30:00 on 2 nodes of partition gpu, requeued at most 5 times"
    assert lines[2].startswith("  at worst:  ") and lines[2].endswith(expected), lines[2]
    assert report_json(steps, ["7"], {"7": record})[0]["limits"]["reason"] == "Priority"
    closed = replace(record, reason="AccountNotAllowed")
    assert (
        "it can never start: Slurm's reason is AccountNotAllowed"
        in list(describe_submission(steps, ["7"], {"7": closed}))[1]
    )


@pytest.mark.parametrize(
    ("reason", "is_permanent"),
    [
        ("Priority", False),
        ("Resources", False),
        ("ReqNodeNotAvail", False),
        ("AssocMaxJobsLimit", False),
        ("Dependency", False),
        ("AccountNotAllowed", True),
        ("PartitionConfig", True),
        ("PartitionTimeLimit", True),
        ("QOSMaxNodePerJobLimit", True),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("BadConstraints", True),
    ],
)
def test_which_reasons_of_waiting_never_clear(reason: str, is_permanent: bool) -> None:
    record = parse_job_record(f"JobId=7 JobState=PENDING Reason={reason} Dependency=(null)")
    assert record.can_never_start == is_permanent


def test_a_task_of_an_array_knows_its_id() -> None:
    environ = {
        "SLURM_JOB_ID": "14",
        "SLURM_NODEID": "0",
        "LAUNCH_HOSTS": "n1",
        "LAUNCH_TASK": "14 12_1",
    }
    allocation = read_allocation(environ)
    assert (allocation.job_id, allocation.number) == ("12_1", 14)
    # submitted from within the array's job
    inherited = read_allocation({**environ, "SLURM_JOB_ID": "20"})
    assert (inherited.job_id, inherited.number) == ("20", 20)


def test_a_task_of_an_array_is_a_job_of_its_run(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "run")
    folder.write_script("")
    folder.record_submission("9")
    folder.record_submission("12_1", tmp_path / "array" / "array.sbatch")
    array, own, another = (folder_tag(tmp_path / name) for name in ("array", "run", "another"))
    job = QueuedJob("12_0", "RUNNING", "None", None, 0.0, 0, 1, "n1", array)
    queue = [job, replace(job, job_id="12_1"), replace(job, job_id="13", tag=own)]
    queue += [replace(job, job_id="12_1", tag=another)]
    found = [(job.job_id, job.tag) for job in find_jobs(folder, queue)]
    assert found == [("12_1", array), ("13", own)]


def test_a_job_inherits_nothing_of_the_job_around_it() -> None:
    of_the_shell = {
        "HF_TOKEN": "x",
        "PATH": "/bin",
        "SBATCH_ACCOUNT": "me",
        "SLURM_CONF": "/etc/slurm.conf",
    }
    of_a_job = {
        "SLURM_RESTART_COUNT": "3",
        "SLURM_CPUS_PER_TASK": "4",
        "LAUNCH_PLAN": "0",
        "LAUNCH_TASK": "14 12_1",
    }
    assert job_environment({**of_the_shell, "LAUNCH_CONFIG_DIR": "/configs", **of_a_job}) == {
        **of_the_shell,
        "LAUNCH_CONFIG_DIR": "/configs",
    }


def passed(home: Path, **differs: Any) -> Path | None:
    """What is found after a pass that left its record; `differs`: of the record."""
    plan = planned_job(home, *SFT).plan
    done = plan_cache_pass(plan)
    tokenized = done.folder.parent.parent.parent / done.name
    data = data_set(tokenized / "0123456789")
    done.folder.mkdir(parents=True)
    record = {"command": list(done.command), **differs}
    (done.folder / "plan.json").write_text(json.dumps(record))
    built = event("evidence", 1.0, what="dataset_cache", value="built", path=str(data))
    append(done.folder / "events.jsonl", [built])
    return find_tokenized_data(plan)


def test_data_that_is_there_is_not_tokenised_again(tmp_path: Path) -> None:
    data = passed(tmp_path)
    assert data is not None and data.name == "0123456789"
    assert len(as_chain([planned_job(tmp_path, *SFT)], TokenizeFirst.auto)) == 1
    (data / "dataset_statistics.json").unlink()
    assert len(as_chain([planned_job(tmp_path, *SFT)], TokenizeFirst.auto)) == 2


def test_data_of_other_flags_does_not_count(tmp_path: Path) -> None:
    assert passed(tmp_path, command=["python", "other"]) is None
