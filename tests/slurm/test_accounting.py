"""A cluster that keeps accounts and enforces their limits: a job that they forbid is refused, or
reported as one that waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.messages import names
from tests.slurm.cluster import Cluster
from tests.slurm.stand_ins import STAGE

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def with_accounts(slurm: Cluster) -> Iterator[None]:
    if not slurm.keeps_accounts:
        pytest.skip("no accounts: slurmdbd or mariadbd is not installed (.ci/slurm installs them)")
    yield


@pytest.mark.parametrize(
    ("override", "id", "named"),
    [
        ("cluster.account=physics", "sbatch_refused", []),
        pytest.param("cluster.qos=big", "sbatch_refused", [], marks=pytest.mark.thorough),
        ("cluster.partition=closed", "account_not_admitted", ["closed", "physics", "team"]),
    ],
)
def test_what_no_account_of_this_user_has_is_refused(
    slurm: Cluster, home: Path, override: str, id: str, named: list[str]
) -> None:
    before = slurm.run("squeue", "-h", "-t", "all", "-o", "%A")
    refused = slurm.launch("submit", *STAGE, override, cwd=home)
    assert refused.returncode == 2 and f"[{id}]" in refused.stderr, refused.stderr
    assert all(names(refused.stderr, name) for name in named), refused.stderr
    assert slurm.run("squeue", "-h", "-t", "all", "-o", "%A") == before


@pytest.mark.parametrize(
    ("name", "overrides", "reason"),
    [
        (
            "wide",
            ["cluster.qos=small", "nodes=2", "recipe.per_device_batch_size=1"],
            "QOSMaxNodePerJobLimit",
        ),
        pytest.param(
            "long",
            ["cluster.qos=small", "cluster.time='2:00:00'"],
            "QOSMaxWallDurationPerJobLimit",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_limit_that_only_slurm_knows_is_reported(
    slurm: Cluster, home: Path, name: str, overrides: list[str], reason: str
) -> None:
    done = slurm.launch(
        "submit", *STAGE, f"name={name}", "cluster.cpus_per_rank=1", *overrides, cwd=home
    )
    assert done.returncode == 0, done.stderr
    assert f"it can never start: Slurm's reason is {reason}." in done.stdout, done.stdout
    stopped = slurm.launch("stop", f"demo/{name}", cwd=home)
    assert stopped.returncode == 0, stopped.stderr


def test_a_job_within_its_limits_runs_under_the_account(slurm: Cluster, home: Path) -> None:
    job, *_ = slurm.submit(
        *STAGE, "name=within", "cluster.account=team", "cluster.qos=small", cwd=home
    )
    fields = slurm.run("scontrol", "show", "job", job).split()
    assert "Account=team" in fields and "QOS=small" in fields, fields
    assert slurm.run("sacct", "-X", "-n", "-P", "-j", job, "-o", "account") == "team"
