"""How clusters spell GPUs: every spelling with and without a type, and that a real Slurm takes the
untyped ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.test_script import SFT, script

SPELLINGS = {
    "gres": "--gres=gpu:",
    "gpus_per_node": "--gpus-per-node=",
    "gpus_per_task": "--gpus-per-task=",
}


def options(*overrides: str) -> list[str]:
    lines = script(*SFT, *overrides).splitlines()
    return [
        line.removeprefix("#SBATCH ")
        for line in lines
        if line.startswith("#SBATCH ") and "gpu" in line
    ]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spelling(spelling: str) -> None:
    name, option = "--job-name=sft_25pct-gpu2x8-ID", SPELLINGS[spelling]
    assert options(f"cluster.gpus={spelling}") == [name, f"{option}8"]
    assert options(f"cluster.gpus={spelling}", "cluster.gpu_type=h100") == [name, f"{option}h100:8"]


@pytest.mark.slow
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_real_slurm_takes_it(slurm: Cluster, tmp_path: Path, spelling: str) -> None:
    text = script(*SFT, f"cluster.gpus={spelling}").replace("cpus-per-task=64", "cpus-per-task=8")
    path = tmp_path / "job.sbatch"
    path.write_text(text, encoding="utf-8")
    slurm.run("sbatch", "--test-only", str(path))
    path.write_text(
        text.replace(f"{SPELLINGS[spelling]}8", f"{SPELLINGS[spelling]}9"), encoding="utf-8"
    )
    with pytest.raises(AssertionError):  # and it is read as GPUs: there are 8 a node
        slurm.run("sbatch", "--test-only", str(path))
