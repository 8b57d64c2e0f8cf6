"""What a node refuses before its ranks start: another job, or another plan than node 0 has."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.compose import compose_once
from launch.config.line import CommandLine
from launch.errors import EXIT_DONE, UserError
from launch.execution.record.outcome import read_outcome
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.slurm.allocation import Allocation, fit_line
from launch.slurm.job_log import JobLog
from launch.slurm.jobs import JobFolder
from launch.slurm.node.lifecycle import _check_start, record_killed, run_stage
from launch.slurm.node.ranks import StartRecord, run_other_node
from launch.slurm.node.task import NodeContext, NodeTask
from launch.slurm.peers import Peers
from launch.slurm.planned_jobs import plan_job
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


@pytest.mark.parametrize(
    ("changes", "nodes", "id"),
    [
        ((), 2, None),
        ((), 1, None),  # it goes on with fewer
        (("recipe.learning_rate=1e-5",), 1, "plan_changed"),
        (("recipe.packing=bins",), 1, "other_allocation"),  # bound to its width: it has no identity
    ],
)
def test_a_job_that_gets_fewer_nodes_trains_the_same_with_them(
    changes: tuple[str, ...],
    nodes: int,
    id: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("stage=demo", "trainer=trl_sft", "nodes=2", "name=x")
    bound = changes if id == "other_allocation" else ()
    submitted = plan_job(
        planned(*words, *bound, machine=fixed_machine(tmp_path)), JobFolder(tmp_path), ()
    )
    for name, value in submitted.script.exports.items():
        monkeypatch.setenv(name, value)
    allocation = replace(ALLOCATION, hosts=HOSTS[:nodes])
    line = CommandLine("node", False, (*words, *changes))
    fitted_line = fit_line(line, composed(*words, *changes).config, allocation)
    plan = build_plan(compose_once(fitted_line), fixed_machine(tmp_path))
    problems = []
    try:
        _check_start(plan, allocation, plan.parallel.width.nodes)
    except UserError as refused:
        problems = [problem.id for problem in refused.problems]
    assert problems == ([] if id is None else [id])
    assert id is not None or plan.parallel.width.nodes == nodes


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


def of_srun(*ends: str) -> str:
    """What srun prints of the ends of the nodes' tasks, in turn."""
    return "".join(f"srun: error: n{n}: task {n - 1}: {end}\n" for n, end in enumerate(ends, 1))


@pytest.mark.parametrize(
    ("marker", "overrides", "printed", "returned", "cause"),
    [
        ("plan.json", (), of_srun("Killed") + of_srun("Aborted", "Killed"), 137, "n1 ended: Aborted"),
        ("plan.json", (), of_srun("Terminated", "Segmentation fault"), 137,
         "n2 ended: Segmentation fault"),
        ("plan.json", (), of_srun("Killed", "Killed"), 137, "n2 ended: Killed"),
        ("plan.json", (), "", 137, "the launchers of the job were killed"),
        ("DONE", (), of_srun("Killed"), EXIT_DONE, "None"),
        ("DONE", ("restart=true",), of_srun("Killed"), 137, "None"),  # of the run to be archived
        (None, (), of_srun("Killed"), 137, "None"),
    ],
)  # fmt: skip
def test_the_end_of_launchers_that_a_signal_ended(  # noqa: PLR0917
    marker: str | None,
    overrides: tuple[str, ...],
    printed: str,
    returned: int,
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "demo" / "x"
    run.mkdir(parents=True)
    if marker:
        (run / marker).write_text("{}")
    log = JobFolder.of(tmp_path / "runs", "demo", "x").log("7")
    log.parent.mkdir(parents=True)
    log.write_text(printed)
    config = composed(*DEMO, "name=x", *overrides).config
    assert record_killed(config, "demo", ALLOCATION, 137) == returned
    outcome = read_outcome(run)
    assert str(outcome.cause if outcome else None).endswith(cause)
