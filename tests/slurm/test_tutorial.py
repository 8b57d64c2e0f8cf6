"""The tutorial's Slurm page, carried out on a real Slurm, and what its training over two nodes
leaves; what needs GPUs is planned in tests/docs/test_tutorial.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.test_tutorial import commands
from tests.paths import ROOT
from tests.slurm.cluster import Cluster, until
from tests.slurm.runs import evidence, opened

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
    check_two_nodes(home / "runs" / "demo" / "tutorial")


def check_two_nodes(run: Path) -> None:
    """Both nodes' ranks were of one training, and each loaded the weights that the first node found."""
    assert {"distributed": "MULTI_CPU", "world_size": "2"}.items() <= evidence(run).items()
    assert (run / "logs" / "rank-0.log").stat().st_size
    second = run / "nodes" / "1"
    assert (second / "logs" / "rank-1.log").stat().st_size
    assert (second / "DONE").is_file()
    [start] = (run.parent.parent / ".jobs" / "demo" / run.name).glob("*.0-*/start.json")
    files = json.loads(start.read_text())["files"]
    for record in (run, second):  # the first rank of each node reports what it loads
        weights = [path for path in opened(record) if path.endswith("model.safetensors")]
        assert weights and set(weights) <= files.keys()
