"""What the first node of a job does around its ranks, which are stand-ins: without a Slurm."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.line import CommandLine
from launch.config.origins import Origins
from launch.config.schema import RootConfig
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, UserError
from launch.execution.display import Display
from launch.execution.record.events import Event
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import find_holder, lock_path, run_lock
from launch.execution.record.outcome import Outcome
from launch.planning.machine import Machine, this_machine
from launch.planning.plan import Plan
from launch.planning.read_files import LoadedFiles
from launch.slurm.allocation import Allocation
from launch.slurm.jobs import JobFolder
from launch.slurm.node.lifecycle import run_stage
from launch.slurm.node.task import NodeTask, stage_task
from launch.slurm.peers import Peers
from launch.slurm.requeue_policy import RestartMark
from launch.slurm.signals import NodeSignals
from launch.trials.rollout.engine import width_task
from tests.conftest import composed
from tests.execution.record.records import append, event
from tests.slurm.cluster import until
from tests.upstream.checkouts import checkout

pytestmark = pytest.mark.slow

ALLOCATION = Allocation(job_id="7", number=7, restarts=0, node_rank=0, hosts=("n1",))
DEMO = ("stage=demo", "trainer=trl_sft", "device=cpu")


class RecordingDisplay:
    """A display that records its messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def start(self, total: int | None) -> None:
        """There is no progress."""

    def show(self, event: Event) -> None:
        """There is no progress."""

    def refresh(self) -> None:
        """There is no progress."""

    def close(self) -> None:
        """There is no progress."""


def two_steps(plan: Plan, folder: RunFolder, display: Display, inputs: LoadedFiles) -> Outcome:
    """Ranks that log two steps, make no checkpoint and are ended."""
    append(folder.events, [event("phase", 0.0, phase="training")])
    append(folder.metrics, [{"step": step, "loss": 1.0} for step in (1, 2)])
    return Outcome(EXIT_INTERRUPTED, 1.0, 2, 1.0, cause="interrupted by SIGTERM")


def test_restart_holds_until_the_older_run_is_put_aside(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    stage, run = composed(*DEMO, "name=anew", "restart=true"), home / "runs" / "demo" / "anew"

    def start(restarts: int) -> tuple[int, list[str]]:
        display = RecordingDisplay()
        return stage_task(stage, replace(ALLOCATION, restarts=restarts)).lead(
            two_steps, display
        ), display.lines

    def aside() -> int:
        return len(list(run.parent.glob("anew.*")))

    run.mkdir(parents=True)
    (run / "DONE").write_text("{}")
    # job 7 was requeued before its first start had come to anything
    code, lines = start(1)
    assert code == EXIT_INTERRUPTED and aside() == 1, lines
    (run / "FAILED").rename(run / "DONE")
    code, lines = start(2)
    assert code == EXIT_DONE and "already done" in lines[0] and aside() == 1, lines
    # another cluster counts from 1 as well
    assert RestartMark(stage_task(stage, ALLOCATION).plan, ALLOCATION).is_due


def test_a_width_waits_for_the_rollout_that_submits_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    display, submitted = RecordingDisplay(), threading.Event()
    task = width_task(
        CommandLine("node", False, (*DEMO, "processes=1,2", "steps=2")), "1", ALLOCATION
    )

    def submits() -> None:
        with run_lock(task.plan.folder.parent, display.say):
            submitted.wait(30)

    submitting = threading.Thread(target=submits)
    submitting.start()
    until(lambda: find_holder(lock_path(task.plan.folder.parent)) is not None, 100)
    threading.Timer(2.0, submitted.set).start()
    assert task.lead(two_steps, display) == EXIT_INTERRUPTED
    submitting.join()
    assert (
        "another launcher holds this rollout's record: waiting at most 300 s for"
        in display.lines[0]
    ), display.lines


@pytest.mark.parametrize("node_rank", [0, 1])
def test_node_0_alone_digests_where_a_shipped_script_made_the_job_folder(
    node_rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / ".jobs" / "demo" / "2nodes").mkdir(parents=True)  # without a job.sbatch
    awaiting: list[object] = []

    def record(
        config: RootConfig, origins: Origins, await_digests: object, *, starts_trainer: bool
    ) -> Machine:
        awaiting.append(await_digests)
        return this_machine(config, origins, starts_trainer=starts_trainer)

    def plan_alone(plan_task: Callable[[Peers], NodeTask], folder: JobFolder, *_: object) -> int:
        peers = Peers(folder.path / "7.0", node_rank, ("n1", "n2"), 20.0, lambda lost: None)
        return plan_task(peers).plan.parallel.width.nodes

    monkeypatch.setattr("launch.planning.build.this_machine", record)
    monkeypatch.setattr("launch.slurm.node.lifecycle._run", plan_alone)
    stage = composed(*DEMO, "name=2nodes", "nodes=2", "processes=1")
    allocation = replace(ALLOCATION, node_rank=node_rank, hosts=("n1", "n2"))
    assert run_stage(stage, allocation, NodeSignals(lambda: None)) == 2
    assert [callable(wait) for wait in awaiting] == [node_rank == 1]


def test_a_job_asks_the_live_parser_first_and_is_not_requeued_when_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkout refuses what no plan can know: its `__post_init__` reads the environment of the
    node.
    """
    upstream = checkout()
    if upstream is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR, or fetch the submodule")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(upstream / "open_instruct", tmp_path / "edited" / "open_instruct")
    script = tmp_path / "edited" / "open_instruct" / "finetune.py"
    first_line = "    def __post_init__(self):\n"
    refusal = (
        f'{first_line}        if os.environ.get("PATH"):\n            raise ValueError("not '
        'on this node")\n'
    )
    script.write_text(script.read_text().replace(first_line, refusal, 1))
    reached: list[str] = []
    monkeypatch.setattr(
        "launch.slurm.node.lifecycle._run_ranks", lambda node: reached.append("ranks")
    )
    monkeypatch.setattr("launch.slurm.node.lifecycle.recover", lambda *_: reached.append("recover"))
    stage = composed(
        "stage=demo",
        "trainer=finetune",
        "device=cpu",
        f"upstream.dir={tmp_path / 'edited'}",
        "name=here",
    )
    signals = NodeSignals(lambda: None)
    signals._wakeup_fd, _ = os.pipe()  # no signal arrives
    os.set_blocking(signals._wakeup_fd, False)
    with pytest.raises(UserError) as refused:
        run_stage(stage, ALLOCATION, signals)
    (problem,) = refused.value.problems
    assert problem.id == "parser_refuses"
    assert problem.message.endswith("ValueError: not on this node")
    assert reached == []
