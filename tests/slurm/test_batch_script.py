"""The batch script on a real Slurm, with a few lines of shell in place of a node's interpreter: after
setup lines and variables that change its shell, and as the nodes' tasks end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launch.config.cluster import ClusterConfig
from launch.config.schema import Device
from launch.planning.parallel import Width
from launch.slurm.script import BatchScript, render_sbatch
from tests.slurm.cluster import Cluster, until

pytestmark = pytest.mark.slow

# In place of a node's interpreter: it prints where it runs and what it inherits, and fails.
TASK = """#!/bin/sh
grep -q '^SigIgn:.*0000$' /proc/$$/status || echo 'signals are ignored'
echo "in $PWD with ${LOADED:-nothing}"
exit 7
"""


@dataclass(frozen=True)
class Case:
    """What a site's setup does to the shell; the job's end must be its task's."""

    name: str
    setup: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    loaded: str = "nothing"


CASES = [
    Case("nounset", ("set -u",)),
    Case("nounset-of-modules", ("set -u", "module() { LOADED=$1$2$3; export LOADED; }"), ("gcc",),
         loaded="loadgcc"),
    Case("bash-env", environ={"BASH_ENV": "FOLDER/hostile.sh"}),
    Case("shellopts", environ={"SHELLOPTS": "braceexpand:hashall:nounset:noglob"}),
    Case("aliases", ("shopt -s expand_aliases", "alias cd=false srun=false set=false trap=false")),
    Case("traps", ("trap '' TERM USR1", "trap 'exit 9' ERR", "trap 'exit 8' RETURN USR2",
                   "trap 'exit 5' CHLD")),
    Case("folder", ("cd /",)),
    Case("words", ("IFS=/", "set -f -C", "set -o posix")),
]  # fmt: skip
HOSTILE = "set -u\nshopt -s expand_aliases\nalias cd=false\ntrap '' TERM\n"


def submit(
    slurm: Cluster,
    folder: Path,
    cluster: ClusterConfig,
    task: str,
    *,
    nodes: int = 1,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Submit a script whose nodes run the lines `task`; return the id of its job."""
    folder.mkdir()
    python = folder / "task"
    python.write_text(task)
    python.chmod(0o755)
    script = BatchScript(
        name=folder.name,
        title=folder.name,
        width=Width(Device.cpu, nodes, nodes),
        cluster=cluster,
        overrides=(),
        cwd=str(folder),
        python=str(python),
        folder=str(folder),
        output=str(folder / "log"),
        exports={},
    )
    path = folder / "job.sbatch"
    path.write_text(render_sbatch(script))
    done = subprocess.run(
        ["sbatch", "--parsable", str(path)],
        env={**slurm.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ended(slurm: Cluster, job: str) -> str:
    """Wait until a job has ended; return its state."""
    live = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
    until(lambda: slurm.state(job) not in live, 60)
    return slurm.state(job)


def test_the_script_survives_its_setup(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "hostile.sh").write_text(HOSTILE)
    jobs = {}
    for case in CASES:
        cluster = ClusterConfig(
            setup=list(case.setup), modules=list(case.modules), cpus_per_rank=1, warn_before=0
        )
        environ = {
            name: value.replace("FOLDER", str(tmp_path)) for name, value in case.environ.items()
        }
        jobs[case.name] = submit(slurm, tmp_path / case.name, cluster, TASK, environ=environ)
    for case in CASES:
        job = jobs[case.name]
        assert ended(slurm, job) == "FAILED", case
        printed = (tmp_path / case.name / "log").read_text()
        assert "signals are ignored" not in printed, (case, printed)
        assert f"in {tmp_path / case.name} with {case.loaded}\n" in printed, (case, printed)
        assert slurm.fields(job)["ExitCode"] == "7:0", (case, printed)


# What the first node writes when its run is done, and what the other node does then.
FIRST_IS_DONE = """#!/bin/bash
if [ "$SLURM_NODEID" = 0 ]; then echo 'exit 0 3' >"$LAUNCH_MAILBOX"; sleep 1; exit 0; fi
"""
OTHERS = {
    "crashes": "exit 9\n",
    "is-killed": "kill -KILL $$\n",
    "hangs": "trap '' TERM; sleep 600\n",
}


def test_a_run_that_is_done_ends_its_job_so_whatever_the_other_node_does(
    slurm: Cluster, tmp_path: Path
) -> None:
    cluster = ClusterConfig(cpus_per_rank=1, warn_before=0)
    jobs = {}
    for name, does in OTHERS.items():
        jobs[name] = submit(slurm, tmp_path / name, cluster, FIRST_IS_DONE + does, nodes=2)
        behind = slurm.run(
            *("sbatch", "--parsable", f"--dependency=afterok:{jobs[name]}"),
            *("--wrap=true", "--output=/dev/null"),
        )
        jobs[f"behind {name}"] = behind
    for name, job in jobs.items():
        assert ended(slurm, job) == "COMPLETED", name


def test_who_preempts_a_job_decides_whether_it_starts_again(slurm: Cluster, tmp_path: Path) -> None:
    """A partition's PreemptMode=CANCEL is an end, also within its grace period; the first node has
    written its outcome by then.
    """
    ends = 'end() { echo "exit 130 5" >"$LAUNCH_MAILBOX"; exit 130; }'
    task = f"#!/bin/bash\n{ends}\ntrap end TERM\nwhile true; do sleep 0.2; done\n"
    states = {}
    for mode in ("CANCEL", "REQUEUE"):
        slurm.run("scontrol", "update", "PartitionName=low", f"PreemptMode={mode}")
        cluster = ClusterConfig(
            cpus_per_rank=1, warn_before=0, partition="low", options=["--nodelist=n3"]
        )
        job = submit(slurm, tmp_path / mode, cluster, task)
        until(lambda job=job: slurm.state(job) == "RUNNING", 30)
        urgent = slurm.run(
            *("sbatch", "--parsable", "--exclusive", "--nodelist=n3"),
            *("--wrap=sleep 1", "--output=/dev/null"),
        )
        assert ended(slurm, urgent) == "COMPLETED"
        states[mode] = (slurm.fields(job)["Restarts"], slurm.state(job))
        slurm.run("scancel", job)
    assert states["CANCEL"] in {("0", "FAILED"), ("0", "PREEMPTED")}, (
        tmp_path / "CANCEL" / "log"
    ).read_text()
    assert states["REQUEUE"][0] == "1", (tmp_path / "REQUEUE" / "log").read_text()
