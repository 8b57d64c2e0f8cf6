"""Requests that a cluster cannot meet: the rules over what sinfo prints, and a real sinfo."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.slurm.cluster import cluster_problems
from launch.slurm.partitions import (
    limit_problems,
    list_partitions,
    parse_partitions,
    partition_problems,
)
from launch.slurm.planned_jobs import PlannedJob, plan_run_job
from launch.worker.finding import Finding
from tests.conftest import composed, planned
from tests.slurm.cluster import Cluster

SINFO = """gpu*|up|1-00:00:00|4|96|gpu:h100:8(S:0-1)
gpu*|up|1-00:00:00|2|128|gpu:a100:4,gpu:v100:2(S:1)
cpu|up|infinite|100|64|(null)
old|down|30:00|1|32|gpu:8,shard:8
"""


def job(*overrides: str) -> PlannedJob:
    return plan_run_job(planned("stage=sft", *overrides))


def find_problems(*overrides: str) -> list[Finding]:
    return partition_problems(job(*overrides).script.cluster, parse_partitions(SINFO))


def test_what_sinfo_prints_is_read() -> None:
    gpu, cpu, old = parse_partitions(SINFO)
    assert (gpu.name, gpu.is_default, gpu.limit, [group.count for group in gpu.nodes]) == (
        "gpu",
        True,
        86400,
        [4, 2],
    )
    assert gpu.nodes[1].gpus == (("a100", 4), ("v100", 2))
    assert [gpu.nodes[1].count_gpus(kind) for kind in (None, "v100", "h100")] == [6, 2, 0]
    assert (cpu.limit, cpu.nodes[0].gpus, cpu.is_default) == (math.inf, (), False)
    assert (old.state, old.limit, old.nodes[0].gpus) == ("down", 1800, (("", 8),))


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((), None),
        (("cluster.partition=gpu", "cluster.time='24:00:00'"), None),
        (("cluster.time=1-1",), ("time_beyond_partition", "1-00:00:00")),
        (("cluster.partition=cpu", "cluster.time=UNLIMITED"), None),
        (("cluster.partition=old",), ("partition_down", " old ")),
        (("cluster.partition='old,gpu'", "cluster.time='2:00:00'"), None),  # one of two is enough
        (("cluster.partition='old,gpu'", "cluster.time=2-0"), ("partition_down", " old ")),
        (("cluster.partition=old", "cluster.options=['--partition=gpu']"), None),
        # sbatch refuses these by itself
        (("cluster.partition=gpus",), None),
        (
            (
                *("nodes=16", "cluster.gpu_type=h10", "cluster.gpu_memory=80"),
                "cluster.cpus_per_rank=64",
            ),
            None,
        ),
    ],
)
def test_what_makes_a_job_wait_for_ever(
    overrides: tuple[str, ...], problem: tuple[str, str] | None
) -> None:
    found = find_problems("gpus=8", *overrides)
    if problem is None:
        assert found == []
        return
    id, expected = problem
    assert found[0].id == id and expected in str(found[0]), found


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("cluster.time='00:02:00'",), "warn_before=120"),
        (("cluster.time='3:30'", "cluster.warn_before=200"), "cluster.warn_before=150"),
        (("cluster.time='1:00'", "cluster.warn_before=30"), "cluster.warn_before=0"),
        (("cluster.tokenize_time='2:00'",), "tokenize_time"),
    ],
)
def test_a_warning_that_leaves_no_time_to_work(overrides: tuple[str, ...], expected: str) -> None:
    stage = composed("stage=sft", *overrides)
    [problem] = cluster_problems(stage.config.cluster, stage.origins)
    assert problem.id == "warn_before_time" and expected in str(problem), str(problem)
    for allowed in (
        ("cluster.time='3:00'",),
        ("cluster.warn_before=0", *overrides[:1]),
        ("cluster.time=UNLIMITED",),
    ):
        stage = composed("stage=sft", *allowed)
        assert cluster_problems(stage.config.cluster, stage.origins) == []


def stand_ins(folder: Path, monkeypatch: pytest.MonkeyPatch, **prints: str) -> None:
    """Slurm's commands that print the texts."""
    for name, text in prints.items():
        (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/bin{os.pathsep}/usr/bin")


def test_one_problem_for_a_whole_chain_and_none_without_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(tmp_path, monkeypatch, sinfo=SINFO, sacctmgr="")
    two = [job("gpus=8", "cluster.partition=old"), job("gpus=4", "cluster.partition=old")]
    assert [problem.id for problem in limit_problems(two)] == ["partition_down"]
    allowed = job("gpus=8", "cluster.partition=old", "allow=[partition_down]")
    assert limit_problems([allowed]) == []
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    assert list_partitions() is None and limit_problems(two) == []


SCONTROL = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=physics,proj-7 AllowQos=high,normal "
    "DefaultTime=00:30:00 State=UP\n"
    "PartitionName=cpu AllowAccounts=ALL DenyAccounts=guests AllowQos=ALL DefaultTime=NONE\n"
)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("gpus=8", "cluster.account=proj-7", "cluster.qos=high"), []),
        (("gpus=8",), []),  # the default account may be the one that is admitted
        (("gpus=8", "cluster.account=proj-8"), ["account_not_admitted"]),
        (("gpus=8", "cluster.account=proj-7", "cluster.qos=low"), ["qos_not_admitted"]),
        (("gpus=0", "cluster.partition=cpu", "cluster.account=proj-8"), []),
        (("gpus=0", "cluster.partition=cpu", "cluster.account=guests"), ["account_not_admitted"]),
    ],
)
def test_who_may_use_a_partition(
    overrides: tuple[str, ...], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = "proj-7\nproj-8\nguests\n"
    stand_ins(tmp_path, monkeypatch, sinfo=SINFO, scontrol=SCONTROL, sacctmgr=accounts)
    assert [problem.id for problem in limit_problems([job(*overrides)])] == expected


@pytest.mark.slow
def test_a_real_sinfo(slurm: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    partitions = {partition.name: partition for partition in list_partitions() or []}
    main, closed = partitions["main"], partitions["closed"]
    assert (main.name, main.is_default, main.state, main.limit) == ("main", True, "up", math.inf)
    assert [(group.count, group.cpus, group.gpus) for group in main.nodes] == [(4, 64, (("", 8),))]
    assert (closed.limit, closed.default_limit, closed.accounts) == (3600, 1800, ("physics",))


@pytest.fixture
def changed(slurm: Cluster) -> Iterator[Callable[[str], None]]:
    """Changes the partition `low` until the end of the test."""

    def change(setting: str) -> None:
        slurm.run("scontrol", "update", "PartitionName=low", setting)

    yield change
    for setting in ("State=UP", "MaxTime=UNLIMITED"):
        change(setting)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "overrides", "id"),
    [
        ("State=DOWN", ["cluster.partition=low"], "partition_down"),
        (
            "MaxTime=60",
            ["cluster.partition=low", "cluster.time='2:00:00'"],
            "time_beyond_partition",
        ),
        # by `sbatch --test-only` itself
        ("State=UP", ["cluster.partition=mian"], "sbatch_refused"),
    ],
)
def test_a_real_slurm_refuses_or_launch_does(  # noqa: PLR0917
    slurm: Cluster,
    home: Path,
    changed: Callable[[str], None],
    setting: str,
    overrides: list[str],
    id: str,
) -> None:
    changed(setting)
    refused = slurm.launch("submit", "stage=demo", "trainer=trl_sft", *overrides, cwd=home)
    assert refused.returncode == 2 and f"[{id}]" in refused.stderr, refused.stderr
    assert slurm.run("squeue", "--noheader") == ""
