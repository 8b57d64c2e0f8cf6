"""What a node refuses before its ranks start: another job, or another plan than node 0 has."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import EXIT_DONE, UserError
from launch.planning.plan import Plan
from launch.slurm.allocation import Allocation
from launch.slurm.job_log import JobLog
from launch.slurm.node.lifecycle import run_stage
from launch.slurm.node.ranks import StartRecord, run_other_node
from launch.slurm.node.task import NodeContext, NodeTask
from launch.slurm.peers import Peers
from launch.slurm.signals import NodeSignals
from tests.conftest import composed, fixed_machine, planned
from tests.messages import values_of

HOSTS = ("n1", "n2")
DEMO = ("stage=demo", "trainer=trl_sft", "device=cpu", "processes=1")
ALLOCATION = Allocation(job_id="7", number=7, restarts=0, node_rank=0, hosts=HOSTS)


def without_signals() -> NodeSignals:
    """The signals of a node that none reaches."""
    signals = NodeSignals(lambda: None)
    signals._wakeup_fd, _ = os.pipe()
    os.set_blocking(signals._wakeup_fd, False)
    return signals


@pytest.mark.parametrize(
    ("overrides", "hosts"),
    [
        (("nodes=2",), HOSTS[:1]),
        # which takes one node, whatever the run takes
        (("nodes=2", "cache_only=true"), HOSTS),
    ],
)
def test_a_job_of_another_number_of_nodes(
    overrides: tuple[str, ...],
    hosts: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for later in ("inspect", "build_cache"):  # what comes next in a job of the right number
        monkeypatch.setattr(f"launch.slurm.node.lifecycle.{later}", lambda *_: pytest.fail("late"))
    stage = composed(*DEMO, *overrides)
    with pytest.raises(UserError) as refused:
        run_stage(stage, replace(ALLOCATION, hosts=hosts), without_signals())
    [problem] = refused.value.problems
    assert (problem.id, problem.where) == ("other_allocation", "nodes")
    assert values_of(problem.message) == ["1", "2", "7"]
    assert "nodes=" in values_of(str(problem.cure))


def follow(plan: Plan, folder: Path, identity: str) -> int:
    """Run the second of two nodes; the first has recorded that it had nothing to run."""
    first, second = (Peers(folder, rank, HOSTS, 20.0, lambda lost: None) for rank in (0, 1))
    StartRecord(identity).write(folder)
    first.report_progress("started")
    first.check()
    second.check()
    allocation = replace(ALLOCATION, node_rank=1)
    task = NodeTask(plan, lambda ranks, display: pytest.fail("the first node leads"))
    log = JobLog(folder / "job-7.log", 0)
    return run_other_node(NodeContext(task, allocation, folder, second, without_signals(), log))


def test_another_plan_than_the_first_nodes(tmp_path: Path) -> None:
    plan = planned(*DEMO, "nodes=2", machine=fixed_machine(tmp_path))
    assert follow(plan, tmp_path, plan.identity) == EXIT_DONE
    with pytest.raises(UserError) as refused:
        follow(plan, tmp_path, "0badcafe")
    [problem] = refused.value.problems
    assert problem.id == "nodes_differ"
    assert all(text in problem.message for text in ("0badcafe", plan.identity, *HOSTS))
