"""What `submit` reports of the jobs that it submitted, from what Slurm shows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.check.machine.disk import checkpoint_interval
from launch.execution.record.run import command_for
from launch.planning.estimate.speed import planned_steps
from launch.slurm.planned_jobs import PlannedJob, warning_time
from launch.slurm.queue import JobRecord
from launch.slurm.schedule import SubmissionStep
from launch.slurm.submission import sbatch_command
from launch.worker.json_codec import versioned
from launch.worker.wording import count_of


@dataclass(frozen=True)
class Restarts:
    """How often a job is started again, as Slurm's record of it allows."""

    after_lost_node: int
    after_time_limit: int | None  # None: an option of sbatch sets the signal

    @staticmethod
    def of(job: PlannedJob, record: JobRecord | None) -> Restarts:
        """Return what the job's settings request, unless Slurm does not requeue it."""
        limit = job.script.cluster.requeues
        if record is not None and not record.may_requeue:
            limit = 0
        warn_before = warning_time(job)
        if warn_before is None:
            return Restarts(limit, None)
        return Restarts(limit, limit if warn_before else 0)

    def __str__(self) -> str:
        if not self.after_lost_node:
            return "never requeued"
        count = f"requeued at most {count_of(self.after_lost_node, 'time')}"
        if self.after_time_limit:
            return count
        if self.after_time_limit is None:
            return f"{count}, after its time limit only if --signal leaves the time"
        return f"{count} after the loss of a node, never after its time limit"


def report_json(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> list[dict[str, Any]]:
    """One object per run; `ids` has the id of each step, or is empty if nothing was submitted."""
    objects = []
    for step, job, job_id, after, record in _jobs(steps, ids, records):
        fields = {
            "run": job.name,
            "job_id": job_id,
            "script": str(step.folder.script),
            "log": str(job.folder.log(job_id)) if job_id else None,
            "after": after,
            "limits": _limits_json(job, record),
        }
        objects.append(versioned(fields))
    return objects


def _limits_json(job: PlannedJob, record: JobRecord | None) -> dict[str, Any]:
    restarts = Restarts.of(job, record)
    return {
        "time": record.time_limit if record else None,
        "nodes": job.script.width.nodes,
        "requeues": restarts.after_lost_node,
        "requeues_after_time_limit": restarts.after_time_limit,
        "checkpoint_steps": checkpoint_interval(job.plan),
        "reason": (record.reason or None) if record else None,
        "can_never_start": record.can_never_start if record else None,
    }


def describe_submission(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> Iterator[str]:
    """Yield the lines that `submit` prints.

    Each is about a job, or about an sbatch command if nothing was submitted, as in a dry run.
    """
    if not ids:
        yield from _describe_dry_run(steps)
        return
    for _, job, job_id, after, record in _jobs(steps, ids, records):
        dependencies = f", after job {', '.join(after)}" if after else ""
        yield f"{job.name}: job {job_id}{dependencies}"
        if record is not None and record.can_never_start:
            yield (
                f"  it can never start: Slurm's reason is {record.reason}. "
                "Stop it and submit it with other limits"
            )
        if record is not None and job.trains:
            yield f"  limits:    {_describe_limits(job, record)}"
            yield f"  at worst:  {describe_worst_loss(job, Restarts.of(job, record))}"
        yield f"  follow it: {command_for('logs', job.run, '--follow')}"
        yield f"  stop it:   {command_for('stop', job.run)}"


def _describe_dry_run(steps: Sequence[SubmissionStep]) -> Iterator[str]:
    """Yield the sbatch command of each step, and what its script takes from this machine."""
    if not steps:  # every run is done
        return
    scripts = count_of(len(steps), "batch script")
    verb = "was" if len(steps) == 1 else "were"
    yield f"nothing was submitted (dry_run=true): {scripts} {verb} written"
    for step in steps:
        names = ", ".join(job.name for job in step.jobs)
        after = [f"<job of {steps[earlier].jobs[0].name}>" for earlier in step.after]
        yield f"{names}: {' '.join(sbatch_command(step, after))}"
    script = steps[0].jobs[0].script
    yield (
        f"each script runs {script.python} in {script.cwd}; where those do not exist, `launch "
        "submit` has to write it there"
    )


def _describe_limits(job: PlannedJob, record: JobRecord) -> str:
    count = job.script.width.nodes
    nodes = count_of(count, "node")
    time = "no time limit" if record.time_limit == "UNLIMITED" else record.time_limit
    restarts = Restarts.of(job, record)
    return f"{time} on {nodes} of partition {record.partition}, {restarts}"


def describe_worst_loss(job: PlannedJob, restarts: Restarts) -> str:
    """Return what the loss of a node, or the time limit, costs at most."""
    plan = job.plan
    if not plan.config.trainer.resumable:
        return (
            f"all of the run is lost with a node or at the time limit: {plan.trainer} cannot resume"
        )
    interval = checkpoint_interval(plan)
    steps = planned_steps(plan)
    why_no_checkpoint = ""
    if not interval:
        why_no_checkpoint = "it writes no checkpoints"
    elif steps is not None and steps <= interval:
        why_no_checkpoint = f"it ends after {count_of(steps, 'step')} and has no checkpoint before"
    if why_no_checkpoint or interval is None:
        return (
            f"all of the run is repeated after the loss of a node: {why_no_checkpoint}; "
            "set recipe.checkpoint_steps"
        )
    verb = "is" if interval == 1 else "are"
    repeated = f"{count_of(interval, 'step')} {verb} repeated"
    every = f"(a checkpoint every {interval})"
    if not restarts.after_lost_node:
        return (
            f"a lost node, or the time limit, ends it; submitted again, {repeated} at most {every}"
        )
    if restarts.after_time_limit == 0:
        return f"{repeated} after the loss of a node; the time limit ends the job {every}"
    return f"{repeated} after the loss of a node or the time limit {every}"


def _jobs(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> Iterator[tuple[SubmissionStep, PlannedJob, str | None, list[str], JobRecord | None]]:
    """Yield each job with its step, its id, the ids of the jobs it waits for, and its record.

    The tasks of an array all have the record of the first task.
    """
    for index, step in enumerate(steps):
        after: list[str] = []
        job_ids: Sequence[str | None] = [None] * len(step.jobs)
        if ids:
            after = [ids[earlier] for earlier in step.after]
            job_ids = step.job_ids(ids[index])
        for job, job_id in zip(step.jobs, job_ids, strict=True):
            yield step, job, job_id, after, records.get(job_ids[0] or "")
