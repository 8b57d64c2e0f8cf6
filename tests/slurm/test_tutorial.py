"""The tutorial's Slurm page, carried out on a real Slurm; what needs GPUs is planned in
tests/docs/test_tutorial.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_tutorial import commands
from tests.paths import ROOT
from tests.slurm.cluster import Cluster, until

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "tutorial" / "slurm.md"
_SHORT = {"recipe.max_steps=20": "recipe.max_steps=2"}


def test_the_page_is_carried_out(slurm: Cluster, home: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    own = {"XDG_CONFIG_HOME": str(tmp_path), "OPEN_INSTRUCT_DIR": ""}
    printed: list[str] = []
    for text, argv in commands(PAGE):
        if "gpus=8" in argv:
            continue
        if argv[0] == "submit" and not (tmp_path / "launch" / "cluster" / "mine.yaml").is_file():
            assert "partition: main" in printed[-1]
            slurm.launch("cluster", "mine", cwd=home, **own)  # "Without `--print` it is written"
        more = ["name=tutorial", "cluster.cpus_per_rank=1"] if argv[0] == "submit" else []
        short = [_SHORT.get(word, word) for word in argv]
        # `launch logs demo`: other tests have runs of the demo in this folder
        if argv[0] == "logs":
            short[1] = "demo/tutorial"
            until((home / "runs" / "demo" / "tutorial" / "DONE").is_file, 240)
        process = slurm.launch(*short, *more, cwd=home, **own)
        assert process.returncode == 0, f"{text}\n{process.stdout}\n{process.stderr}"
        printed.append(process.stdout)
    assert (home / "runs" / ".jobs" / "demo" / "tutorial" / "job.sbatch").is_file()
    assert "demo/tutorial" in printed[-2] and "done: 2 steps" in printed[-1]
