"""Reports what was submitted or only written, with the limits of each job, and the commands to follow and stop it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launch.check.machine.disk import checkpoint_interval
from launch.execution.record.reader import command_for
from launch.slurm.job_record import JobRecord
from launch.slurm.planned_jobs import PlannedJob
from launch.slurm.schedule import SubmissionStep


def report_json(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> list[dict[str, Any]]:
    """One object per run; `ids` has the id of each step, or is empty if nothing was submitted."""
    return [
        {
            "schema_version": 1,
            "run": job.name,
            "job_id": job_id,
            "script": str(step.folder.script),
            "log": str(job.folder.log(job_id)) if job_id else None,
            "after": after,
            "limits": _limits_json(job, records.get(job_id or "")),
        }
        for step, job, job_id, after in _jobs(steps, ids)
    ]


def _limits_json(job: PlannedJob, record: JobRecord | None) -> dict[str, Any]:
    return {
        "time": record.time_limit if record else None,
        "nodes": job.plan.parallel.width.nodes,
        "requeues": job.plan.config.cluster.requeues,
        "checkpoint_steps": checkpoint_interval(job.plan),
        "reason": record.reason or None if record else None,
        "can_never_start": record.can_never_start if record else None,
    }


def report_lines(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> Iterator[str]:
    """The same as lines of text."""
    for step, job, job_id, after in _jobs(steps, ids):
        if job_id is None:
            yield f"{job.name}: sbatch {step.folder.script}"
            continue
        record = records.get(job_id)
        yield f"{job.name}: job {job_id}{', after job ' + ', '.join(after) if after else ''}"
        if record is not None and record.can_never_start:
            yield f"  it can never start: Slurm's reason is {record.reason}. Stop it and submit it with other limits"
        if record is not None and job.trains:
            yield f"  limits:    {_describe_limits(job, record)}"
            yield f"  at worst:  {describe_worst_loss(job)}"
        yield f"  follow it: {command_for('logs', job.run, '--follow')}"
        yield f"  stop it:   {command_for('stop', job.run)}"


def _describe_limits(job: PlannedJob, record: JobRecord) -> str:
    nodes, cluster = job.plan.parallel.width.nodes, job.plan.config.cluster
    time = "no time limit" if record.time_limit == "UNLIMITED" else record.time_limit
    requeues = f"requeued at most {cluster.requeues} times" if cluster.requeues else "never requeued"
    return f"{time} on {nodes} node{'s' * (nodes > 1)} of partition {record.partition}, {requeues}"


def describe_worst_loss(job: PlannedJob) -> str:
    """What the loss of a node, or the time limit, costs at most."""
    plan = job.plan
    if not plan.config.trainer.resumable:
        return f"all of the run is lost with a node or at the time limit: {plan.trainer} cannot resume"
    interval, max_steps = checkpoint_interval(plan), plan.config.recipe.max_steps
    if not interval or (max_steps is not None and max_steps <= interval):
        setting = f"its {max_steps} steps end before the first checkpoint" if interval else "it writes no checkpoints"
        return f"all of the run is repeated after the loss of a node: {setting}; set recipe.checkpoint_steps"
    return f"{interval} steps are repeated after the loss of a node or the time limit (a checkpoint every {interval})"


def _jobs(
    steps: Sequence[SubmissionStep], ids: Sequence[str]
) -> Iterator[tuple[SubmissionStep, PlannedJob, str | None, list[str]]]:
    for index, step in enumerate(steps):
        after = [ids[earlier] for earlier in step.after] if ids else []
        job_ids = step.job_ids(ids[index]) if ids else [None] * len(step.jobs)
        for job, job_id in zip(step.jobs, job_ids, strict=True):
            yield step, job, job_id, after
