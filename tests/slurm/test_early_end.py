"""Tasks of a job that end before their ranks run: without a Slurm, as its signals and its
environment are enough.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.slurm.jobs import JobFolder
from tests.slurm.cluster import environment, until
from tests.slurm.stand_ins import STAGE

pytestmark = pytest.mark.slow
_PATIENCE = 200  # seconds, on a machine that others load; a node that is waited for has 300


class Tasks:
    """The tasks of job 7 on n1 and n2 in a folder of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run = home / "runs" / "demo" / "early"
        self.job = JobFolder.of(home / "runs", "demo", "early")
        self.job.write_script("")  # the folder is the job's

    def start(self, node: int, **more: str) -> subprocess.Popen[str]:
        environ = {"SLURM_JOB_ID": "7", "SLURM_NODEID": str(node), "LAUNCH_HOSTS": "n1 n2", **more}
        return subprocess.Popen(
            [sys.executable, "-m", "launch", "node", *STAGE, "nodes=2", "name=early"],
            cwd=self.home,
            env={**environment(), **environ},
            stderr=subprocess.PIPE,
            text=True,
        )

    def sign(self, node: int) -> Path:
        return self.job.path / "7.0" / f"node-{node}.json"

    def failed(self) -> str:
        return str(json.loads((self.run / "FAILED").read_text())["cause"])


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(tmp_path)


def test_the_warning_of_a_job_that_still_prepares(tasks: Tasks) -> None:
    nodes = [tasks.start(node) for node in (0, 1)]
    until(lambda: tasks.sign(0).is_file() and tasks.sign(1).is_file(), _PATIENCE)
    for node in nodes:
        node.send_signal(signal.SIGUSR2)
    errors = nodes[0].communicate(timeout=_PATIENCE)[1]
    assert (nodes[0].returncode, nodes[1].wait(_PATIENCE)) == (130, 130), errors
    assert tasks.failed() == "the time limit is near"
    assert (
        "job 7 is not requeued: there is no complete checkpoint (recipe.checkpoint_steps=25)"
        in errors
    ), errors


def test_a_node_that_refuses_names_the_cause_for_all(tasks: Tasks) -> None:
    first, second = tasks.start(0), tasks.start(1, LAUNCH_PLAN="another")
    errors = first.communicate(timeout=_PATIENCE)[1]
    assert first.returncode == 1, errors
    assert "[plan_changed]" in second.communicate(timeout=_PATIENCE)[1] and second.returncode == 2
    assert tasks.failed().startswith("node n2 failed: LAUNCH_PLAN: this plan is"), tasks.failed()
    assert "ended before its ranks started" in errors, errors


def test_a_node_whose_task_never_gave_a_sign(tasks: Tasks) -> None:
    first = tasks.start(0)
    until(tasks.sign(0).is_file, _PATIENCE)
    # as srun does when the task of another node has ended by itself: nobody is waited for
    first.terminate()
    errors = first.communicate(timeout=_PATIENCE)[1]
    assert first.returncode == 1, errors
    assert tasks.failed() == "node n2 ended before it reported: see the job's log"
