"""A folder of runs that the nodes do not share."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.messages import names
from tests.slurm.cluster import Cluster
from tests.slurm.runs import log
from tests.slurm.stand_ins import ON_TWO, stand_in_overrides

pytestmark = pytest.mark.slow


def test_a_node_with_a_folder_of_its_own_refuses(slurm: Cluster, home: Path) -> None:
    """It used to wait five minutes for the other node, be requeued, and wait again."""
    runs, slurmd = home / "runs", (slurm.folder / "spool" / "n2" / "slurmd.pid").read_text().strip()
    runs.mkdir(exist_ok=True)
    in_n2 = ["nsenter", "-t", slurmd, "-m"]
    subprocess.run([*in_n2, "mount", "-t", "tmpfs", "none", str(runs)], check=True)
    try:
        began = time.monotonic()
        [job] = slurm.submit(
            *stand_in_overrides(home, "not-shared", "sleep 600", *ON_TWO), cwd=home
        )
        assert slurm.wait(job, 90) == "FAILED"
        print(f"refused after {time.monotonic() - began:.1f} s")
    finally:
        subprocess.run([*in_n2, "umount", str(runs)], check=True)
    printed = log(home, "not-shared")
    assert "[not_shared]" in printed and "requeued" not in printed, printed
    assert names(printed, "n1") and names(printed, "n2"), printed
    cause = json.loads((runs / "demo" / "not-shared" / "FAILED").read_text())["cause"]
    assert cause.startswith("the launcher on node n2 ended: ") and "[not_shared]" in cause, cause
