"""What `submit` promises on a real Slurm is what the job's record allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.stand_ins import STAGE

pytestmark = pytest.mark.slow
LATER = "--begin=now+1hour"


@pytest.fixture
def short_default(slurm: Cluster) -> Iterator[None]:
    """The partition `low` gives a job without a time limit two minutes."""
    slurm.run("scontrol", "update", "PartitionName=low", "DefaultTime=2")
    yield
    slurm.run("scontrol", "update", "PartitionName=low", "DefaultTime=UNLIMITED")


@pytest.mark.parametrize(
    ("name", "overrides", "environ", "promised"),
    [
        ("warned", [], {}, "requeued at most 5 times"),
        (
            "unwarned",
            ["cluster.warn_before=0"],
            {},
            "requeued at most 5 times after the loss of a node, never after its time limit",
        ),
        ("by-variable", [], {"SBATCH_NO_REQUEUE": "1"}, "never requeued"),
        pytest.param(
            "by-option",
            [f"cluster.options=['{LATER}','--no-requeue']"],
            {},
            "never requeued",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_the_restarts_are_those_of_the_record(  # noqa: PLR0917
    slurm: Cluster,
    home: Path,
    name: str,
    overrides: list[str],
    environ: dict[str, str],
    promised: str,
) -> None:
    later = (
        []
        if any("options" in override for override in overrides)
        else [f"cluster.options=['{LATER}']"]
    )
    words = [*STAGE, f"name=promise-{name}", "cluster.cpus_per_rank=1", *later, *overrides]
    done = slurm.launch("submit", *words, cwd=home, **environ)
    assert done.returncode == 0, done.stderr
    [limits] = [line for line in done.stdout.splitlines() if "limits:" in line]
    assert limits.endswith(f", {promised}"), done.stdout


@pytest.mark.parametrize(
    ("overrides", "environ"),
    [
        (["cluster.partition=low"], {}),
        ([], {"SBATCH_TIMELIMIT": "2"}),
        pytest.param(
            ["cluster.options=['--time=00:02:30']", "cluster.warn_before=180"],  # of 3 minutes
            {},
            marks=pytest.mark.thorough,
        ),
    ],
)
@pytest.mark.usefixtures("short_default")
def test_a_limit_that_the_warning_uses_up_is_refused(
    slurm: Cluster, home: Path, overrides: list[str], environ: dict[str, str]
) -> None:
    words = [*STAGE, "name=no-time", "cluster.cpus_per_rank=1", *overrides]
    refused = slurm.launch("submit", *words, cwd=home, **environ)
    assert refused.returncode == 2 and "[warn_before_time]" in refused.stderr, refused.stderr
    assert slurm.run("squeue", "--noheader", "--name=demo-no-time") == ""
