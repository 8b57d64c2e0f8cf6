"""Jobs whose ranks are stand-ins: their overrides, and the processes that they leave."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.slurm.cluster import Cluster, stand_in

# what torch prints when a GPU fails
ECC = """Traceback (most recent call last):
  File "trainer.py", line 80, in <module>
torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
"""
SLEEPS = "(setsid sleep 600 &)\nsleep 600"
ON_TWO = ("nodes=2", "cluster.options=['--nodelist=n1,n2']")
STAGE = ("stage=demo", "trainer=trl_sft", "recipe.max_steps=3")


def stand_in_overrides(home: Path, name: str, does: str, *overrides: str) -> list[str]:
    return [*STAGE, f"name={name}", *stand_in(home, name, does), *overrides]


def sleepers(slurm: Cluster) -> list[int]:
    """Processes that a stand-in left, in whatever session."""
    pids, conf = [], slurm.environ["SLURM_CONF"]
    for process in psutil.process_iter(["cmdline"]):
        try:
            if (
                process.info["cmdline"] == ["sleep", "600"]
                and process.environ()["SLURM_CONF"] == conf
            ):
                pids.append(process.pid)
        except (psutil.Error, KeyError):
            continue
    return pids
