"""One width of a rollout as the task of a Slurm job's nodes."""

from __future__ import annotations

from launch.config.line import CommandLine
from launch.errors import Problem, UserError
from launch.execution.display import Display
from launch.execution.engine import RankRunner
from launch.execution.record.lock import run_lock
from launch.slurm.allocation import Allocation
from launch.slurm.jobs import JobFolder, find_job_ids
from launch.slurm.node.task import NodeTask
from launch.slurm.requeue_policy import RestartMark, wait_for_lock
from launch.trials.measurement import Measurement, archive_earlier_try
from launch.trials.record import State
from launch.trials.rollout.engine import plan_rollout, run_and_report
from launch.trials.rollout.record import WidthRun
from launch.trials.rollout.request import read_request
from launch.trials.trial import Runner

_SUBMIT_TIMEOUT = 300.0  # seconds that `rollout` may need to submit its jobs to a busy Slurm


def width_task(line: CommandLine, label: str, allocation: Allocation) -> NodeTask:
    """Plan the width `label` of the rollout in `line` as a task: it runs if the widths before it passed, and its
    gates are checked. Raises UserError: bad_width (`label` is not a width of this rollout).
    """
    request = read_request(line)
    record = plan_rollout(request)
    chosen = [run for run in record.runs if str(run.requested) == label]
    if not chosen:
        message = f"width={label} is not one of {request.widths_override}"
        cure = "submit the rollout's jobs with `rollout ... submit=all`"
        raise UserError(Problem("bad_width", message, "override width", cure))
    only, plan = chosen[0], chosen[0].plan
    only.job_id = allocation.job_id
    restart_mark = RestartMark(plan, allocation)

    def lead(ranks: RankRunner, display: Display) -> int:
        def start(width: WidthRun, seconds: float | None) -> Measurement:
            archive_earlier_try(width.plan)
            restart_mark.set()
            return runner.measure(width, seconds)

        runner = Runner(record, display, start, run_ranks=ranks)
        restart_mark.clear_at_first_start()
        if allocation.restarts:
            wait_for_lock(plan.folder, display.say)
        # the `rollout` that submits this job holds the lock until all its jobs are submitted
        wait_for_lock(record.folder, display.say, _SUBMIT_TIMEOUT, "another launcher holds this rollout's record")
        with run_lock(record.folder, display.say):
            for later in record.runs[record.runs.index(only) + 1 :]:
                ids = find_job_ids(JobFolder.of(plan.runs, plan.stage, later.plan.name))
                if ids:
                    later.state, later.job_id = State.submitted, ids[-1]
            nodes, restart = plan.parallel.width.nodes, restart_mark.is_due
            return run_and_report(runner, nodes=nodes, only=only, restart=restart)

    return NodeTask(plan, lead, record.steps)
