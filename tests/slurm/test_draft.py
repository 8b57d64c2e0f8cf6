"""The draft of a cluster's description: what it says, and that `submit` takes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from launch.commands.drafts import cluster
from launch.errors import UserError
from launch.slurm.cluster import cluster_problems
from launch.slurm.draft import ClusterFacts, choose_partition, draft_config
from launch.slurm.partitions import parse_partitions
from tests.conftest import composed
from tests.slurm.cluster import Cluster

SINFO = (
    "debug*|up|30:00|2|96|gpu:h100:8\ngpu|up|1-12:00:00|40|96|gpu:h100:8(S:0-1)\ncpu|up|infinite|400|64|(null)\n"
    "old|up|30-00:00:00|4|64|gpu:a100:4,gpu:v100:4\n"
)
PARTITIONS = parse_partitions(SINFO)
FACTS = ClusterFacts(
    {"SelectType": "select/cons_res", "DefMemPerCPU": "2048", "DefMemPerNode": "UNLIMITED"},
    accounts=["proj-7", "proj-8"],
    shared=["/home", "/scratch"],
    containers=["pyxis"],
    interfaces=["ib0", "ib1"],
)


def test_a_draft() -> None:
    text = draft_config(PARTITIONS[1], PARTITIONS, FACTS)
    assert yaml.safe_load(text) == {
        "partition": "gpu",
        "account": "proj-7",
        "time": "1-12:00:00",
        "cpus_per_rank": 12,
        "gpus": "gres",
        "shared": ["/home", "/scratch"],
    }
    for hint in (
        "there are also cpu, debug, old",
        "you also have proj-8",
        "# interface: ib0",
        "# container: pyxis",
    ):
        assert hint in text
    assert '# memory: "0" # all of a node; otherwise DefMemPerCPU=2048 MiB applies' in text


def test_a_partition_that_is_closed_to_the_user_is_not_offered() -> None:
    closed = (
        "PartitionName=debug AllowAccounts=physics DefaultTime=00:10:00\nPartitionName=cpu "
        "DefaultTime=00:30:00\n"
    )
    partitions = parse_partitions(SINFO, closed)
    assert (
        choose_partition(partitions, ["proj-7"]).name == choose_partition(partitions).name == "gpu"
    )
    assert choose_partition(partitions, ["physics"]).name == "debug"
    assert (
        'time: "24:00:00" # no limit here, but without this line a job gets 0-00:30:00'
        in draft_config(partitions[2], partitions, FACTS)
    )
    assert "admits physics only, none of them yours" in draft_config(
        partitions[0], partitions, FACTS
    )


@pytest.mark.parametrize("name", ["debug", "gpu", "cpu", "old"])
@pytest.mark.parametrize("facts", [FACTS, ClusterFacts({})])
def test_whatever_is_drafted_is_a_cluster(
    name: str, facts: ClusterFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    [partition] = [known for known in PARTITIONS if known.name == name]
    (tmp_path / "cluster" / "mine.yaml").write_text(draft_config(partition, PARTITIONS, facts))
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    stage = composed("stage=demo", "cluster=mine")
    assert cluster_problems(stage.config.cluster, stage.origins) == []
    assert stage.config.cluster.partition == name
    assert stage.config.cluster.gpu_type == ("a100" if name == "old" else None)


@pytest.mark.parametrize(
    ("limit", "time", "comment"),
    [
        ("2:00", "0-00:02:00", "at most 0-00:02:00 here"),
        ("30:00", "0-00:30:00", "at most 0-00:30:00 here"),
        ("1-12:00:00", "1-12:00:00", "at most 1-12:00:00 here"),
        ("30-00:00:00", "7-00:00:00", "at most 30-00:00:00 here"),
    ],
)
def test_a_limit_is_written_as_slurm_writes_it(limit: str, time: str, comment: str) -> None:
    [partition] = parse_partitions(f"debug*|up|{limit}|2|96|gpu:h100:8\n")
    text = draft_config(partition, [partition], FACTS)
    [line] = [line for line in text.splitlines() if line.startswith("time:")]
    assert line == f'time: "{time}" # {comment}'


def test_the_partition_for_training() -> None:
    assert choose_partition(PARTITIONS).name == "debug"  # the default one, of those with GPUs
    assert choose_partition(PARTITIONS[1:]).name == "gpu"
    assert choose_partition(PARTITIONS[2:3]).name == "cpu"


@pytest.mark.slow
def test_a_draft_of_a_real_slurm(slurm: Cluster, home: Path, tmp_path: Path) -> None:
    own = {"LAUNCH_CONFIG_DIR": str(tmp_path / "new")}  # it is created
    written = slurm.launch("cluster", "lab", cwd=home, **own)
    path = tmp_path / "new" / "cluster" / "lab.yaml"
    assert written.returncode == 0 and str(path) in written.stdout, written.stderr
    assert (
        yaml.safe_load(path.read_text()).items()
        >= {"partition": "main", "gpus": "gpus_per_node"}.items()
    )
    overrides = (
        "stage=demo",
        "trainer=trl_sft",
        "name=drafted",
        "cluster=lab",
        "cluster.options=['--begin=now+1hour']",
    )
    [job] = slurm.submit(*overrides, cwd=home, **own)
    slurm.run("scancel", job)

    again = slurm.launch("cluster", "lab", cwd=home, **own)
    assert again.returncode == 2 and "[cluster_exists]" in again.stderr
    printed = slurm.launch("cluster", "lab", "--print", cwd=home)
    assert printed.stdout == path.read_text()
    unknown = slurm.launch("cluster", "lab", "--print", "--partition=mian", cwd=home)
    assert unknown.returncode == 2 and "[unknown_partition]" in unknown.stderr
    assert "did you mean 'main'?" in unknown.stderr


@pytest.mark.parametrize(
    ("argv", "id"),
    [([], "usage"), (["a/b"], "usage"), (["x"], "no_slurm"), (["x", "--print"], "no_slurm")],
)
def test_what_cannot_be_drafted(
    argv: list[str], id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LAUNCH_CONFIG_DIR", raising=False)
    with pytest.raises(UserError, match=id):
        cluster(argv)


def test_what_sinfo_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "sinfo"
    binary.write_text("#!/bin/sh\necho 'sinfo: error: Invalid user id' >&2; exit 1\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match=r"Invalid user id.*\[slurm_unresponsive\]"):
        cluster(["x", "--print"])
