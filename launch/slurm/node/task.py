"""The work that the nodes of a Slurm job share: what `NodeTask` is, and the task of a composed stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from launch.config.compose import Composed
from launch.errors import EXIT_DONE
from launch.execution.display import Display
from launch.execution.engine import RankRunner, carry_out, report_finished
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import run_lock
from launch.execution.record.outcome import Outcome
from launch.execution.resume import is_finished
from launch.planning.machine import this_machine
from launch.planning.plan import Plan, build_plan
from launch.slurm.allocation import Allocation
from launch.slurm.jobs import JobFolder
from launch.slurm.peers import Peers
from launch.slurm.requeue import read_decision
from launch.slurm.requeue_policy import RestartMark, plan_restart


@dataclass(frozen=True)
class NodeTask:
    """What the nodes of a job run together: a whole run, or one width of a rollout."""

    plan: Plan
    # node 0's part: starts the ranks of all nodes through its first argument and returns the exit code
    lead: Callable[[RankRunner, Display], int]
    # end the ranks once that many optimizer steps are logged
    steps: int | None = None


def stage_task(composed: Composed, allocation: Allocation, peers: Peers | None = None) -> NodeTask:
    """Plan the composed stage as a task; with `peers`, node 0 alone digests large inputs. Raises UserError."""
    await_digests = partial(peers.await_progress, "planned", "started") if peers and allocation.node_rank else None
    plan = build_plan(composed, this_machine(composed, await_digests))
    restart_mark = RestartMark(plan, allocation)

    def lead(ranks: RankRunner, display: Display) -> int:
        for warning in plan.warnings:
            display.say(f"warning: {warning}")
        restart_mark.clear_at_first_start()
        current = restart_mark.remaining_plan
        if is_finished(current):
            report_finished(plan, display)
            return EXIT_DONE
        if allocation.restarts:
            folder = JobFolder.of(plan.runs, plan.stage, plan.name)
            ended = folder.attempts(allocation.job_id, allocation.restarts - 1)
            decision = read_decision(ended[-1]) if ended else []
            display.say("; ".join([f"restart {allocation.restarts} of job {allocation.job_id}", *decision]))
            current = plan_restart(current, display.say)

        def run_ranks(started: Plan, folder: RunFolder, display: Display) -> Outcome:
            restart_mark.set()  # an older run is archived by now
            return ranks(started, folder, display)

        with run_lock(plan.folder, display.say):
            return carry_out(current, display, run_ranks)

    return NodeTask(plan, lead)
