"""Jobs whose ranks are stand-ins: how they are asked for, and what is left of them."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.slurm.cluster import Cluster, stand_in

SLEEPS = "(setsid sleep 600 &)\nsleep 600"
ON_TWO = ("nodes=2", "cluster.options=['--nodelist=n1,n2']")
STAGE = ("stage=demo", "trainer=trl_sft", "recipe.max_steps=3")


def asked(home: Path, name: str, does: str, *words: str) -> list[str]:
    folder = home / name
    folder.mkdir()
    return [*STAGE, f"name={name}", f"python='{stand_in(folder, does)}'", *words]


def sleepers(slurm: Cluster) -> list[int]:
    """Processes that a stand-in left, in whatever session."""
    found, conf = [], slurm.environ["SLURM_CONF"]
    for process in psutil.process_iter(["cmdline"]):
        try:
            if process.info["cmdline"] == ["sleep", "600"] and process.environ()["SLURM_CONF"] == conf:
                found.append(process.pid)
        except (psutil.Error, KeyError):
            continue
    return found


def log(home: Path, name: str) -> str:
    return "\n".join(path.read_text() for path in (home / "runs" / ".jobs" / "demo" / name).glob("job-*.log"))
