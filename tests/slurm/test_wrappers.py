"""The batch scripts in scripts/, run as they are on a real Slurm."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from launch import resources
from launch.demo import DEMO_KEY
from launch.slurm.jobs import JobFolder
from tests.integration import warm
from tests.slurm.cluster import Cluster, until

pytestmark = pytest.mark.slow


def run_command(slurm: Cluster, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, env=slurm.environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def clone(home: Path) -> Path:
    """A folder with the scripts and a virtual environment, as a clone has them, and the demo's model."""
    folder = home / "clone"
    if not folder.exists():
        shutil.copytree(resources.ROOT / "scripts", folder / "scripts")
        (folder / ".venv" / "bin").mkdir(parents=True)
        python = folder / ".venv" / "bin" / "python"
        # as in a clone that was set up
        installed = f"export PYTHONPATH={shlex.quote(str(resources.ROOT))}"
        real = warm.python_with_cold_ranks()
        python.write_text(f'#!/bin/sh\n{installed}\nexec {real} "$@"\n')
        python.chmod(0o755)
        model = Path("runs", ".cache", "demo", f"model-{DEMO_KEY}")
        shutil.copytree(home / model, folder / model)
    return folder


@pytest.mark.thorough
def test_runs_as_it_is(slurm: Cluster, clone: Path) -> None:
    """Until the trainer has started on both nodes, even in a job that inherits no environment;
    `status` and `stop` know a job that was not made by `submit`.
    """
    argv = ("sbatch", "--parsable", "--export=NONE", "scripts/demo_2nodes.sbatch")
    job = run_command(slurm, *argv, cwd=clone).stdout.strip()
    run = clone / "runs" / "demo" / "2nodes"
    logs = [run / part / "logs" / "launcher.log" for part in (".", "nodes/1")]
    until(lambda: all(path.is_file() for path in logs), 120)
    shown = json.loads(slurm.launch("status", "2nodes", "--json", cwd=clone).stdout)[0]
    assert (shown["state"], shown["job_id"], shown["job"]["nodes"]) == ("running", job, 2)
    stopped = slurm.launch("stop", "2nodes", cwd=clone)
    assert stopped.stdout.startswith(f"cancelled job {job}, running on n["), stopped.stderr
    assert slurm.state(job) == "CANCELLED"
    folder = JobFolder.of(clone / "runs", "demo", "2nodes")
    [attempt] = folder.attempts(job, 0)
    assert re.fullmatch(rf"{job}\.0-\d+", attempt.name) and (attempt / "start.json").is_file()
    proof = folder.read_note(job)
    assert (
        proof["cluster"] == "lab"
        and 0 <= int(attempt.name.partition("-")[2]) - int(proof["submitted"]) < 60
    )
    assert "made the demo's data" in (clone / f"demo-2nodes-{job}.log").read_text()


def test_from_elsewhere_it_says_so(slurm: Cluster, home: Path) -> None:
    away = home / "away"
    away.mkdir()
    script = resources.ROOT / "scripts" / "demo_2nodes.sbatch"
    job = run_command(slurm, "sbatch", "--parsable", str(script), cwd=away).stdout.strip()
    assert slurm.wait(job, 60) == "FAILED"
    assert "sbatch this from the clone" in (away / f"demo-2nodes-{job}.log").read_text()


def test_sft_then_dpo(slurm: Cluster, clone: Path) -> None:
    """No GPU is here, so the SFT refuses to start, and its DPO leaves the queue."""
    both = str(clone / "scripts" / "sft_then_dpo")
    done = run_command(slurm, both, "--time=10", cwd=clone)
    ids = re.match(r"SFT: job (\d+)\nDPO: job (\d+), after job (\d+)\n", done.stdout)
    assert ids is not None and ids[1] == ids[3], done.stdout + done.stderr
    assert slurm.wait(ids[1], 120) == "FAILED"
    assert slurm.wait(ids[2], 60) == "CANCELLED"

    # sbatch takes the first one and refuses the second
    (clone / "scripts" / "dpo_after_sft.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --partition=nosuch\ntrue\n"
    )
    refused = run_command(slurm, both, "--begin=now+1hour", cwd=clone)
    assert refused.returncode == 1 and "sbatch refused the DPO job" in refused.stderr, (
        refused.stderr
    )
    [first] = re.findall(r"SFT: job (\d+)", refused.stdout)
    assert slurm.state(first) == "CANCELLED"
