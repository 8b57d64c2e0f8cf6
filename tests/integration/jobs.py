"""Worker commands that `forked_workers.py` runs in forks of one process, whose imports take most of
a run's time.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from launch import resources
from launch.execution.prepare import prepare_inputs
from launch.planning.plan import Plan
from tests.integration import warm


def training_job(plan: Plan, folder: Path, name: str = "training") -> dict[str, Any]:
    """Prepare what a plan trains on, and return the job that trains in `folder` and logs to
    NAME.log.
    """
    prepare_inputs(plan, lambda message: None)
    argv = plan.command[plan.command.index(str(resources.WORKER)) :]
    env = {
        **plan.env,
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_DATASETS_CACHE": f"{folder}/hf",
    }
    return {"argv": argv, "env": env, "cwd": str(folder), "log": str(folder / f"{name}.log")}


def run_jobs(root: Path, jobs: list[dict[str, Any]], checkout: Path | None = None) -> None:
    """Run jobs one after another; `checkout`: open-instruct's, for its trainers."""
    (root / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(checkout or ""),
    }
    # read as open-instruct is imported
    environ["REFERENCE_LOGPROBS_CACHE_PATH"] = str(root / "reference")
    script = Path(__file__).with_name("forked_workers.py")
    subprocess.run(
        [warm.python(), str(script), str(root / "jobs.json")], env=environ, check=True, cwd=root
    )
