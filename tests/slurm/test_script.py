"""The batch script: in the dialects of five clusters, and that each is clean bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch import resources
from launch.config.cluster import ClusterConfig, Container
from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.slurm.cluster import (
    cluster_problems,
    folders_in_container,
    unmounted_folders,
    unshared_folders,
)
from launch.slurm.planned_jobs import job_problems, node_overrides, plan_run_job
from launch.slurm.queue import folder_tag
from launch.slurm.script import BatchScript, render_array_sbatch, render_sbatch
from tests.conftest import Launch, composed, fixed_machine, planned
from tests.messages import names
from tests.slurm.cluster import environment

TOKENS = "/home/me/.cache/huggingface/token:/run/token"
SFT = ("stage=sft_25pct", "nodes=2", "gpus=8")
DIALECTS = {
    # a plain cluster, without settings
    "sbatch-plain": SFT,
    # types of GPUs by gres, modules, a partition and an account to pay
    "sbatch-gres": (
        *SFT,
        *(
            "cluster.gpus=gres",
            "cluster.gpu_type=h100",
            "cluster.partition=gpu",
            "cluster.account=proj-7",
        ),
        *(
            'cluster.time="1-12"',
            "cluster.cpus_per_rank=12",
            "cluster.memory=0",
            "cluster.constraint='h100&nvlink'",
        ),
        *(
            "cluster.modules=[gcc/13.2,cuda/12.8]",
            "cluster.setup=['ulimit -l unlimited']",
            "cluster.interface=ib0",
        ),
        "cluster.env={NCCL_IB_HCA: 'mlx5_0,mlx5_1', NCCL_DEBUG: WARN}",
    ),
    # types of GPUs by --gpus-per-node, one node, options of this cluster alone
    "sbatch-typed": (
        *(
            "stage=dpo",
            "gpus=4",
            "cluster.gpus=gpus_per_node",
            "cluster.gpu_type=a100",
            "cluster.partition='a100,h100'",
        ),
        *("cluster.time='2-00:00:00'", "cluster.options=['--licenses=scratch','--mail-type=END']"),
    ),
    # GPUs a task, whole nodes, a reservation, a container by pyxis
    "sbatch-pyxis": (
        *SFT,
        *(
            "cluster.gpus=gpus_per_task",
            "cluster.cpus_per_rank=null",
            "cluster.exclusive=true",
            "cluster.qos=high",
        ),
        *(
            "cluster.reservation=tulu",
            "cluster.exclude='n[3-5],n9'",
            "cluster.options=['--segment=2']",
        ),
        *(
            "cluster.container=pyxis",
            "cluster.image=/images/train.sqsh",
            "cluster.mounts=['/data:/data','/home']",
        ),
    ),
    # CPUs only, in an apptainer image with an interpreter of its own
    "sbatch-apptainer": (
        *(
            "stage=demo",
            "trainer=trl_sft",
            "nodes=4",
            "processes=2",
            "recipe.per_device_batch_size=2",
        ),
        *(
            "cluster.cpus_per_rank=2",
            "cluster.memory=16G",
            "cluster.time='02:30:00'",
            "cluster.python=/opt/bin/python",
        ),
        *("cluster.container=apptainer", "cluster.image=train.sif", "cluster.mounts=['/scratch']"),
    ),
}


def batch_script(plan: Plan, **changes: Any) -> BatchScript:
    """The script of the plan's job as a machine with these folders writes it."""
    fixed = {
        "overrides": node_overrides(plan.origins.overrides),
        "folder": "/jobs",
        "output": "log",
        "exports": {},
    }
    return replace(
        plan_run_job(plan).script, **{**fixed, "cwd": "/", "python": "/bin/python", **changes}
    )


def script(*overrides: str) -> str:
    stage = composed(*overrides)
    plan = build_plan(stage, fixed_machine())
    python = plan.config.cluster.python or "/venv/bin/python"
    job = batch_script(
        plan, output="job-%j.log", exports={"LAUNCH_PLAN": "ID"}, cwd="/my work", python=python
    )
    return render_sbatch(job).replace(plan.identity, "ID")


def shellcheck(text: str) -> None:
    shellcheck = shutil.which("shellcheck") or shutil.which(
        "shellcheck", path=Path(sys.executable).parent
    )
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        [shellcheck, "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialect(dialect: str, golden: Callable[[str, Sequence[str]], None]) -> None:
    text = script(*DIALECTS[dialect])
    golden(dialect, text.splitlines())
    shellcheck(text)


@pytest.mark.parametrize("odd", ["it's", "a b", 'a"b', "$HOME", "`id`", "é"])
def test_whatever_a_word_holds_bash_gives_it_back(odd: str) -> None:
    stage = composed("stage=demo", "trainer=trl_sft")
    plan = build_plan(stage, fixed_machine())
    job = batch_script(plan, exports={"LAUNCH_X": odd})
    text = (
        render_sbatch(job)
        .replace("srun ", "printf '%s\\n' \"$LAUNCH_X\" ")
        .replace("scontrol show hostnames", "echo")
    )
    done = subprocess.run(
        ["bash", "-c", text], env={"SLURM_JOB_NODELIST": "n1"}, capture_output=True, check=True
    )
    assert done.stdout.decode().splitlines()[0] == odd
    shellcheck(render_sbatch(job))


@pytest.mark.parametrize(
    ("environ", "options"),
    # {}: somebody took the #SBATCH line out
    [({"SLURM_CPUS_PER_TASK": "6"}, ["--cpus-per-task=6"]), ({}, [])],
)
def test_srun_takes_the_cpus_that_the_job_has(environ: dict[str, str], options: list[str]) -> None:
    text = (
        script("stage=demo", "trainer=trl_sft")
        .replace("srun ", "printf '%s\\n' ")
        .replace("cd '/my work'", "")
    )
    text = text.replace("scontrol show hostnames", "echo")
    environ = {"SLURM_JOB_NODELIST": "n1", **environ}
    done = subprocess.run(
        ["bash", "-c", text], env=environ, capture_output=True, text=True, check=True
    )
    arguments = done.stdout.splitlines()
    assert [word for word in arguments if word.startswith("--cpus") or not word] == options


@pytest.mark.parametrize(
    ("options", "comment"),
    [
        ([], f"--comment={folder_tag(Path('/jobs'))}"),
        (["--comment=Tulu 3"], f'--comment="Tulu 3 {folder_tag(Path("/jobs"))}"'),
        (["--comment Tulu", "--nice"], f'--comment="Tulu {folder_tag(Path("/jobs"))}"'),
    ],
)
def test_the_tag_follows_the_users_own_comment(options: list[str], comment: str) -> None:
    text = script("stage=demo", "trainer=trl_sft", f"cluster.options={options}")
    lines = [line for line in text.splitlines() if "comment" in line]
    assert lines == [f"#SBATCH {comment}"]


def test_a_servers_gpus_are_reserved_beside_the_ranks() -> None:
    stage = ("stage=rlvr", "gpus=4", "recipe.global_batch_size=768")
    server = ("recipe.generation=vllm_server", "recipe.server_gpus=2")
    text, alone = script(*stage, *server), script(*stage)
    [option] = [line for line in text.splitlines() if line.startswith("#SBATCH --g")]
    assert option.endswith("6") and option[:-1] + "4" in alone.splitlines()


def test_many_nodes_are_rendered_at_once() -> None:
    stage = composed("stage=sft", "nodes=512", "gpus=8", "recipe.global_batch_size=4096")
    began = time.process_time()
    plan = build_plan(stage, fixed_machine())
    text = render_sbatch(batch_script(plan))
    assert time.process_time() - began < 4.0
    assert "#SBATCH --nodes=512" in text and plan.parallel.width.world_size == 4096


@pytest.mark.parametrize(
    ("word", "id"),
    [
        ("cluster.time=14400", "bad_time_limit"),  # what YAML makes of 4:00:00
        ("cluster.time=4h", "bad_time_limit"),
        ("cluster.time='1-2-3'", "bad_time_limit"),
        ("cluster.tokenize_time='4h'", "bad_time_limit"),
        ("cluster.memory=lots", "bad_cluster_value"),
        ("cluster.partition='a b'", "bad_cluster_value"),
        ("cluster.options=[licenses]", "bad_cluster_value"),
        ("cluster.options=['--nodes=3']", "bad_cluster_value"),
        ("cluster.container=pyxis", "bad_cluster_value"),
        ("cluster.image=x.sif", "bad_cluster_value"),
        ("cluster.env={HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyzabcdefgh}", "secret_in_job"),
        (
            "cluster.options=['--export=ALL,HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzabcdefgh']",
            "secret_in_job",
        ),
        ("cluster.options=['--export=ALL,WANDB_API_KEY=0123456789']", "secret_in_job"),
        ("cluster.setup=['export HF_TOKEN=abcdefgh']", "secret_in_job"),
        ("cluster.env={1X: a}", "bad_cluster_value"),
    ],
)
def test_a_value_that_cannot_be(word: str, id: str) -> None:
    stage = composed("stage=demo", word)
    [problem] = cluster_problems(stage.config.cluster, stage.origins)
    assert problem.id == id
    assert problem.where is not None and problem.where.startswith("override cluster.")


@pytest.mark.parametrize("value", ["a\nb", "a\tb", "a\x1b[0m"])
def test_a_variable_is_one_printable_line(value: str) -> None:
    stage = composed("stage=demo", "cluster.env={X: a}")
    cluster = replace(stage.config.cluster, env={"X": value})
    [problem] = cluster_problems(cluster, stage.origins)
    assert problem.id == "bad_cluster_value" and names(problem.message, "cluster.env.X")


def test_no_script_holds_a_secret_whatever_brings_it() -> None:
    token = "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"
    image = composed(*SFT, "cluster.container=pyxis", f"cluster.image=me:{token}@host#train")
    [problem] = cluster_problems(image.config.cluster, image.origins)
    assert problem.id == "secret_in_job" and "override cluster.image" in str(problem.where)
    stage = composed("stage=demo")
    job = batch_script(build_plan(stage, fixed_machine()))
    for odd in (
        {"python": f"/{token}/python"},
        {"exports": {"X": token}},
        {"overrides": [f"flags.x={token}"]},
    ):
        with pytest.raises(UserError, match="secret_in_job"):
            render_sbatch(replace(job, **odd))
    with pytest.raises(UserError, match="secret_in_job"):
        render_array_sbatch(replace(job, title=token), [Path("job.sbatch")])
    # the path of a token's file is not a token
    mounted = render_sbatch(
        replace(
            job, cluster=replace(job.cluster, container=Container.pyxis, image="x", mounts=[TOKENS])
        )
    )
    assert f"--container-mounts={TOKENS}" in mounted


@pytest.mark.parametrize(
    "time", ["00:30:00", "30:00", "1-12", "1-12:30", "2-00:00:00", "UNLIMITED"]
)
def test_time_limits(time: str) -> None:
    stage = composed("stage=demo", f"cluster.time='{time}'")
    assert cluster_problems(stage.config.cluster, stage.origins) == []


def test_keys_of_a_cluster_are_checked() -> None:
    with pytest.raises(UserError, match=r"'cluster\.partition=gpu'.*\[unknown_key\]"):
        composed("stage=demo", "cluster.partitio=gpu")
    with pytest.raises(UserError, match=r"'nosuch'.*ngc, slurm.*\[unknown_cluster\]"):
        composed("stage=demo", "cluster=nosuch")


def test_the_example_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (resources.ROOT / "docs" / "how-to" / "clusters.md").read_text()
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    stage = composed(*SFT, "cluster=mine")
    assert cluster_problems(stage.config.cluster, stage.origins) == []
    written = yaml.safe_load((tmp_path / "cluster" / "mine.yaml").read_text())
    assert set(stage.plain["cluster"]) == set(written)  # every key is explained
    shellcheck(script(*SFT, "cluster=mine"))
    (tmp_path / "cluster" / "mine.yaml").write_text("time: 24:00:00\n")
    stage = composed(*SFT, "cluster=mine")
    [problem] = cluster_problems(stage.config.cluster, stage.origins)
    assert (problem.id, problem.where) == ("bad_time_limit", f"{tmp_path}/cluster/mine.yaml:1")


def test_folders_that_the_nodes_do_not_share(tmp_path: Path) -> None:
    cluster = composed("stage=demo", f"cluster.shared=[{tmp_path}/shared]").config.cluster
    assert unshared_folders(cluster, {"runs": tmp_path / "shared" / "runs"}) == []
    [problem] = unshared_folders(cluster, {"runs": tmp_path / "runs"})
    assert (problem.id, problem.where) == ("not_shared", "runs")


def test_folders_that_a_container_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {
        "runs": tmp_path / "runs",
        "cache": Path("/fast/cache"),
        "the current folder": tmp_path,
    }
    home = {"HOME": "/home/me"}

    def lacking(container: str, *mounts: str) -> list[str]:
        config = ClusterConfig(container=Container(container), mounts=list(mounts))
        return [problem.where or "" for problem in unmounted_folders(config, folders, home)]

    assert lacking("none") == []
    assert lacking("pyxis") == ["cache", "the current folder"]  # `runs` is below the latter
    assert lacking("pyxis", f"{tmp_path}:{tmp_path}:ro,/fast") == []
    assert lacking("pyxis", f"{tmp_path}/runs", "/fast:/slow") == ["cache", "the current folder"]
    assert lacking("apptainer") == ["cache"]
    folders["cache"] = Path("/home/me/../me/cache")
    assert lacking("apptainer") == []


@pytest.mark.parametrize(
    ("container", "image", "cure"),
    [
        ("pyxis", "nvcr.io#nvidia/pytorch:25.06-py3", None),
        ("pyxis", "nvidia/cuda:12.8.0-base", None),
        ("pyxis", "/images/train.sqsh", None),
        ("pyxis", "nvcr.io/nvidia/pytorch:25.06-py3", "set nvcr.io#nvidia/pytorch:25.06-py3"),
        (
            "pyxis",
            "docker://nvcr.io/nvidia/pytorch:25.06-py3",
            "set nvcr.io#nvidia/pytorch:25.06-py3",
        ),
        ("pyxis", "docker://nvidia/cuda:12.8.0-base", "set nvidia/cuda:12.8.0-base"),
        ("pyxis", "registry.local:5000/team/train:1", "set registry.local:5000#team/train:1"),
        ("apptainer", "docker://nvcr.io/nvidia/pytorch:25.06-py3", None),
        ("apptainer", "images/train.sif", None),
        (
            "apptainer",
            "nvcr.io/nvidia/pytorch:25.06-py3",
            "set docker://nvcr.io/nvidia/pytorch:25.06-py3",
        ),
        (
            "apptainer",
            "nvcr.io#nvidia/pytorch:25.06-py3",
            "set docker://nvcr.io/nvidia/pytorch:25.06-py3",
        ),
        ("apptainer", "ubuntu:24.04", "set docker://ubuntu:24.04"),
    ],
)
def test_the_name_of_an_image_is_of_its_tool(container: str, image: str, cure: str | None) -> None:
    stage = composed("stage=demo", f"cluster.container={container}", f"cluster.image='{image}'")
    problems = cluster_problems(stage.config.cluster, stage.origins)
    assert [str(problem.cure).partition(",")[0] for problem in problems] == ([cure] if cure else [])


@pytest.mark.parametrize("mount", ["data:/data", "/data:data", "/a:/b:ro:rw"])
def test_a_mount_that_is_none(mount: str) -> None:
    stage = composed(
        "stage=demo", "cluster.container=pyxis", "cluster.image=x", f"cluster.mounts=['{mount}']"
    )
    [problem] = cluster_problems(stage.config.cluster, stage.origins)
    assert problem.id == "bad_cluster_value" and problem.where and mount in problem.message


def test_what_a_container_must_see_besides_the_run(tmp_path: Path) -> None:
    environ = {"LAUNCH_CONFIG_DIR": str(tmp_path)}
    own = folders_in_container(planned("stage=sft"), environ)
    assert own["the interpreter"] == Path(sys.prefix) and own["this project"] == resources.ROOT
    assert (own["LAUNCH_CONFIG_DIR"], own["OPEN_INSTRUCT_DIR"]) == (tmp_path, Path("/upstream"))
    of_image = planned("stage=sft", "cluster.python=/opt/bin/python")
    assert set(folders_in_container(of_image, environ)) == {
        "LAUNCH_CONFIG_DIR",
        "OPEN_INSTRUCT_DIR",
    }


def test_the_example_of_an_ngc_image() -> None:
    stage = composed(*SFT, "cluster=ngc")
    assert cluster_problems(stage.config.cluster, stage.origins) == []
    text = script(*SFT, "cluster=ngc")
    assert "--container-image=nvcr.io#nvidia/pytorch:25.06-py3" in text.replace("'", "")
    assert "--container-env=LAUNCH_PLAN,HF_HOME,HF_HUB_OFFLINE" in text
    shellcheck(text)


@pytest.mark.parametrize(("allow", "ids"), [("", {"not_mounted"}), ("not_mounted", set())])
def test_a_cluster_may_mount_folders_by_itself(allow: str, ids: set[str]) -> None:
    stage = composed(*SFT, "cluster.container=pyxis", "cluster.image=x", f"allow=[{allow}]")
    assert {
        problem.id for problem in job_problems(plan_run_job(build_plan(stage, fixed_machine())))
    } == ids


@pytest.fixture
def without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command of Slurm, and no job around this process."""
    for name in {*os.environ} - {*environment()}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("without_slurm")
def test_without_slurm_submit_says_so_and_dry_run_writes(tmp_path: Path, launch: Launch) -> None:
    argv = ("submit", "stage=demo", "trainer=trl_sft", "nodes=2", "name=x")
    refused = launch(*argv)
    assert refused.returncode == 2
    assert names(refused.stderr, "squeue") and "[no_slurm]" in refused.stderr

    written = launch(*argv, "dry_run=true")
    folder = tmp_path / "runs" / ".jobs" / "demo" / "x"
    assert written.returncode == 0 and str(folder / "job.sbatch") in written.stdout, written.stderr
    assert {path.name for path in folder.iterdir()} == {
        "job.sbatch",
        "plan.json",
        "config.yaml",
        "command.sh",
    }
    shellcheck((folder / "job.sbatch").read_text())
    first, *_, last = written.stdout.splitlines()
    assert "nothing was submitted" in first and "1 batch script was written" in first
    for path in (sys.executable, str(tmp_path)):  # what the script takes from this machine
        assert path in last and path in (folder / "job.sbatch").read_text()


@pytest.mark.parametrize(
    ("overrides", "id"),
    [
        (["submit=rest"], "no_slurm"),
        (["submit=all", "dry_run=true", "cluster.time='4h'"], "bad_time_limit"),
    ],
)
@pytest.mark.usefixtures("without_slurm")
def test_a_rollout_that_cannot_be_submitted_does_not_begin(
    overrides: list[str], id: str, tmp_path: Path, launch: Launch
) -> None:
    stage = ("stage=demo", "trainer=trl_sft", "device=cpu", "processes=1,2x1")
    refused = launch("rollout", *stage, *overrides)
    assert (refused.returncode, f"[{id}]" in refused.stderr) == (2, True), refused.stderr
    assert not list(tmp_path.rglob("rollout.json"))


LORA_CHAIN = (
    "pipeline=demo_lora,demo_dpo",
    "demo_dpo:trainer=trl_dpo",
    "demo_dpo:recipe.lora.start=continue",
)


@pytest.mark.parametrize(
    ("overrides", "id"),
    [
        (["stage=demo", "tokenize_first=maybe"], "bad_value"),
        (["stage=demo", "dry_run=false"], "duplicate_override"),
        (["stage=demo", "trainer=trl_sft", "tokenize_first=true"], "no_cache_pass"),
        (["stage=demo", "detach=true"], "submit_conflict"),
        (["pipeline=demo,demo_dpo", "model.path=x"], "pipeline_conflict"),
        (["pipeline=demo,demo_dpo", "cache_only=true"], "pipeline_conflict"),
        (["pipeline=demo,demo_dpo", "rm:gpus=8"], "not_in_pipeline"),
        (["stage=demo", "demo_dpo:gpus=8"], "not_in_pipeline"),
        (
            [
                "pipeline=sft,dpo",
                "sft:trainer=olmo_core_finetune",
                "sft:trainer.output_glob='step*'",
                "sft:model=olmo2_1b",
                "sft:recipe.packing=bins",
            ],
            "pipeline_model",
        ),
        ([*LORA_CHAIN, "demo_dpo:recipe.lora.rank=4"], "lora_rank"),
        (
            [*LORA_CHAIN, "demo_dpo:recipe.lora.rank=8", "demo_dpo:recipe.lora.alpha=4"],
            "adapter_settings",
        ),
        (
            [*LORA_CHAIN, "demo_dpo:recipe.lora.rank=8", "demo_lora:recipe.lora.rank=null"],
            "nothing_to_continue",
        ),
        (
            [
                *("pipeline=demo,demo_dpo", "demo:recipe.chat_template=tulu"),
                "demo_dpo:recipe.chat_template=simple_concat_with_space",
            ],
            "other_chat_template",
        ),
        (
            ["stage=demo", "trainer=trl_sft", "cluster.container=pyxis", "cluster.image=x.sqsh"],
            "not_mounted",
        ),
        (
            ["stage=demo", "trainer=trl_sft", "cluster.options=['--export=ALL,HF_TOKEN=abcdef']"],
            "secret_in_job",
        ),
        (["stage=demo", "trainer=trl_sft", "runs='a\"b'"], "unquotable"),
        (["stage=demo", "trainer=trl_sft", "runs='a\nrm -r x'"], "bad_path"),
        (
            ["stage=demo", "trainer=trl_sft", "stage.description='a\n#SBATCH --nodes=9'"],
            "unquotable",
        ),
        (
            [
                "stage=demo",
                "trainer=trl_sft",
                "flags.hub_token=hf_abcdefghijklmnopqrstuvwxyzabcdefgh",
            ],
            "secret_on_line",
        ),
    ],
)
@pytest.mark.usefixtures("without_slurm")
def test_what_submit_refuses(overrides: list[str], id: str, tmp_path: Path, launch: Launch) -> None:
    refused = launch("submit", "dry_run=true", *overrides)
    assert (refused.returncode, f"[{id}]" in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "runs" / ".jobs").exists()
