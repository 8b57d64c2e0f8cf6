"""Checks, writes and submits the steps of a command, each script once, all or none, and reports
what was submitted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.check.machine.disk import checkpoint_interval
from launch.check.machine.rules import RULES, inspect, stopping_problems, warnings
from launch.check.machine.trainer import interpreter_has_packages
from launch.errors import UserError, refusal
from launch.execution.record.lock import Holder, file_lock, find_holder, lock_path
from launch.execution.record.run import command_for
from launch.slurm.jobs import JobFolder, find_job_ids, find_live_jobs
from launch.slurm.partitions import limit_problems
from launch.slurm.planned_jobs import PlannedJob
from launch.slurm.queue import JobRecord
from launch.slurm.schedule import SubmissionStep
from launch.slurm.slurm_cli import SlurmResult, query_slurm, report_retry, run_once
from launch.terminal import notify
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import versioned

_PAUSES = (2.0, 5.0)  # seconds before sbatch is retried
# what `sbatch --test-only` prints for a job that sbatch accepts, when nodes that it needs are
# drained or down
_NO_NODES_NOW = "Requested node configuration is not available"
_SETTLE = 3.0  # seconds until a job shows up whose sbatch got no response
# the variables that identify the cluster and the user to Slurm's commands; other SLURM_ ones are of
# an enclosing job
_CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
# exported by our batch scripts
_JOB_VARIABLES = ("LAUNCH_PLAN", "LAUNCH_HOSTS", "LAUNCH_STARTED", "LAUNCH_MAILBOX", "LAUNCH_TASK")


def submit_steps(steps: Sequence[SubmissionStep], *, dry_run: bool) -> list[str]:
    """Check all steps, write their job folders and submit them; return the job ids, none with
    `dry_run`.

    The job folders are locked meanwhile, so that no file that a job reads is written, and nothing
    is submitted twice.

    Raises UserError if a step cannot be submitted, and then none is: already_submitted,
    run_is_locked, not_writable, and those of the checks, `check_script` and `submit_all`.
    """
    jobs = [job for step in steps for job in step.jobs]
    if not dry_run:
        problems = [problem for job in jobs if job.trains for problem in _preflight(job)]
        problems += limit_problems(jobs)
        if problems:
            raise UserError(problems)
    folders = [*(job.folder for job in jobs), *(step.folder for step in steps)]
    with contextlib.ExitStack() as locks:
        for folder in dict.fromkeys(folders):  # so that no file that a job still reads is written
            locks.enter_context(file_lock(folder.path / "submit.lock", _being_submitted, notify))
        refuse_live_jobs(jobs, dry_run=dry_run)
        for step in steps:
            step.write()
        if dry_run:
            return []
        for step in steps:
            allowed = all("sbatch_refused" in job.plan.config.allow for job in step.jobs)
            check_script(step.folder, allowed=allowed)
        return submit_all(steps)


def _preflight(job: PlannedJob) -> list[Finding]:
    """Return what would stop the job on its nodes, and print warnings; an interpreter of their own,
    cluster.python, is asked there.
    """
    config = job.plan.config
    left_out = interpreter_has_packages if config.cluster.python and not config.python else None
    findings = inspect(
        job.plan, [rule for rule in RULES if rule.on_login_node and rule is not left_out]
    )
    for warning in warnings(findings):
        notify(f"warning: {warning}")
    hint = "if the nodes have an interpreter of their own, set cluster.python=PATH"
    return [
        replace(problem, cure=Fix(f"{problem.cure}; {hint}"))
        if problem.id == interpreter_has_packages.id
        else problem
        for problem in stopping_problems(findings)
    ]


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job inherits from the submitting shell, without those of a job around
    that shell.

    The user's defaults for sbatch (SBATCH_) stay.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _CLUSTER_VARIABLES or not (name.startswith("SLURM_") or name in _JOB_VARIABLES)
    }


def check_script(folder: JobFolder, *, allowed: bool) -> None:
    """Check with `sbatch --test-only` that Slurm accepts the script.

    A refusal that is `allowed`, or that drained or down nodes may explain, is only a warning.
    Raises UserError: sbatch_refused, no_slurm, slurm_unresponsive.
    """
    result = query_slurm(
        ["sbatch", "--test-only", str(folder.script)], environ=job_environment(os.environ)
    )
    if result.status and _NO_NODES_NOW in result.message:
        notify(
            "warning: no nodes fit the job now; drained or down ones may have to return: "
            f"{result.message}"
        )
    elif result.status and allowed:
        notify(
            f"warning: `sbatch --test-only` refuses the job, ignored by allow: {result.message} "
            "[sbatch_refused]"
        )
    elif result.status:
        raise UserError(_refused(result, folder.script))


def submit_all(steps: Sequence[SubmissionStep], settle: float = _SETTLE) -> list[str]:
    """Submit the scripts of locked folders in turn and return their job ids; if one fails, cancel
    those before it.

    Raises UserError: sbatch_refused, no_slurm, slurm_unresponsive.
    """
    ids: list[str] = []
    try:
        for step in steps:
            with _deferred_interrupt():
                ids.append(_submit(step, [ids[index] for index in step.after], settle))
                _record(step, ids[-1])
    except BaseException:
        if ids:
            _cancel(ids)
        raise
    return ids


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Hold back Ctrl-C until the job's id is known, so that it can be cancelled."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _being_submitted(holder: Holder, age: float) -> Finding:
    return Finding.error(
        "already_submitted",
        f"another `submit` of this run is in progress: {holder}",
        None,
        "wait for it",
    )


def refuse_live_jobs(planned: Iterable[PlannedJob], *, dry_run: bool) -> None:
    """Refuse jobs whose runs are running or have a live job.

    Raises UserError: already_submitted, run_is_locked; no_slurm, slurm_unresponsive unless it is a
    dry run.
    """
    slurm_responds = True
    for folder, run in dict.fromkeys((job.folder, job.run) for job in planned):
        try:
            jobs = (
                find_live_jobs(folder)
                if slurm_responds and (folder.script.exists() or not dry_run)
                else []
            )
        except UserError:
            if not dry_run:
                raise
            slurm_responds, jobs = False, []
        if jobs:
            reads = ", and its job reads the files that a dry run writes" if dry_run else ""
            message = f"this run is already submitted{reads}: {'; '.join(str(job) for job in jobs)}"
            cure = f"wait for it, or `{command_for('stop', run)}` first"
            raise refusal("already_submitted", message, None, cure)
        job_ids = find_job_ids(folder)
        if not slurm_responds and job_ids:
            notify(
                f"without a response from Slurm it is unknown whether job {job_ids[-1]} still "
                f"needs {folder.path}"
            )
        holder = find_holder(lock_path(run))
        if holder:
            message = f"another launcher holds {run}: {holder[0]}"
            raise refusal(
                "run_is_locked", message, None, "wait for it, stop it, or set another name="
            )


def _sbatch(step: SubmissionStep, after: Sequence[str]) -> list[str]:
    """Return the command that submits a step behind the jobs `after`."""
    kind = "aftercorr" if step.is_taskwise else "afterok"
    dependencies = [f"{kind}:{':'.join(after)}"] if after else []
    if step.jobs[0].is_singleton:
        dependencies.append("singleton")
    # without the second option a job that depends on a failed one waits for ever
    options = (
        [f"--dependency={','.join(dependencies)}", "--kill-on-invalid-dep=yes"]
        if dependencies
        else []
    )
    return ["sbatch", "--parsable", *options, str(step.folder.script)]


def _submit(step: SubmissionStep, after: Sequence[str], settle: float) -> str:
    for pause in (*_PAUSES, None):
        result = run_once(_sbatch(step, after), environ=job_environment(os.environ))
        if result.status == 0:
            return result.output.strip().split(";")[0]
        if not result.is_transient:
            raise UserError(_refused(result, step.folder.script))
        report_retry("sbatch", result)
        # Slurm may have accepted it all the same, and nothing is submitted twice
        time.sleep(settle)
        jobs = find_live_jobs(step.folder)
        if jobs:
            return jobs[0].job_id.partition("_")[0]
        if pause is None or result.status is None:
            break
        time.sleep(pause)
    message = f"Slurm does not respond to sbatch: {result.message}"
    raise refusal("slurm_unresponsive", message, None, "check `squeue --me` before you try again")


def _record(step: SubmissionStep, job_id: str) -> None:
    """Append the job to jobs.jsonl of every run, and of an array; link the log of a task from its
    run's job folder.
    """
    step.folder.record_submission(job_id)
    for job, task in zip(step.jobs, step.job_ids(job_id), strict=True) if step.is_array else ():
        job.folder.record_submission(task, step.folder.script)
        with contextlib.suppress(FileExistsError):
            job.folder.log(task).symlink_to(step.folder.log(task).absolute())


def _refused(result: SlurmResult, script: Path) -> Finding:
    cure = "change it with cluster.KEY=VALUE; `launch plan stage=demo --cfg job` prints the keys"
    return Finding.error(
        "sbatch_refused", f"Slurm refuses the job: {result.message}", str(script), cure
    )


def _cancel(ids: Sequence[str]) -> None:
    try:
        cancelled = query_slurm(["scancel", *ids]).status == 0
    except UserError:
        cancelled = False
    names = ", ".join(ids)
    which = f"job {names}, which was" if len(ids) == 1 else f"jobs {names}, which were"
    notify(f"{'cancelled' if cancelled else 'could not cancel'} {which} already submitted")


def report_json(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> list[dict[str, Any]]:
    """One object per run; `ids` has the id of each step, or is empty if nothing was submitted."""
    return [
        versioned(
            {
                "run": job.name,
                "job_id": job_id,
                "script": str(step.folder.script),
                "log": str(job.folder.log(job_id)) if job_id else None,
                "after": after,
                "limits": _limits_json(job, record),
            }
        )
        for step, job, job_id, after, record in _jobs(steps, ids, records)
    ]


def _limits_json(job: PlannedJob, record: JobRecord | None) -> dict[str, Any]:
    return {
        "time": record.time_limit if record else None,
        "nodes": job.script.width.nodes,
        "requeues": job.script.cluster.requeues,
        "checkpoint_steps": checkpoint_interval(job.plan),
        "reason": record.reason or None if record else None,
        "can_never_start": record.can_never_start if record else None,
    }


def report_lines(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> Iterator[str]:
    """The same as lines of text."""
    for step, job, job_id, after, record in _jobs(steps, ids, records):
        if job_id is None:
            if job is step.jobs[0]:
                waited = [f"<job of {steps[earlier].jobs[0].name}>" for earlier in step.after]
                yield (
                    f"{', '.join(each.name for each in step.jobs)}: "
                    f"{' '.join(_sbatch(step, waited))}"
                )
            continue
        yield f"{job.name}: job {job_id}{', after job ' + ', '.join(after) if after else ''}"
        if record is not None and record.can_never_start:
            yield (
                f"  it can never start: Slurm's reason is {record.reason}. Stop it and submit "
                "it "
                "with other limits"
            )
        if record is not None and job.trains:
            yield f"  limits:    {_describe_limits(job, record)}"
            yield f"  at worst:  {describe_worst_loss(job)}"
        yield f"  follow it: {command_for('logs', job.run, '--follow')}"
        yield f"  stop it:   {command_for('stop', job.run)}"


def _describe_limits(job: PlannedJob, record: JobRecord) -> str:
    nodes, cluster = job.script.width.nodes, job.script.cluster
    time = "no time limit" if record.time_limit == "UNLIMITED" else record.time_limit
    requeues = (
        f"requeued at most {cluster.requeues} times" if cluster.requeues else "never requeued"
    )
    return f"{time} on {nodes} node{'s' * (nodes > 1)} of partition {record.partition}, {requeues}"


def describe_worst_loss(job: PlannedJob) -> str:
    """What the loss of a node, or the time limit, costs at most."""
    plan = job.plan
    if not plan.config.trainer.resumable:
        return (
            f"all of the run is lost with a node or at the time limit: {plan.trainer} cannot resume"
        )
    interval, max_steps = checkpoint_interval(plan), plan.config.recipe.max_steps
    if not interval or (max_steps is not None and max_steps <= interval):
        setting = (
            f"its {max_steps} steps end before the first checkpoint"
            if interval
            else "it writes no checkpoints"
        )
        return (
            f"all of the run is repeated after the loss of a node: {setting}; set "
            "recipe.checkpoint_steps"
        )
    return (
        f"{interval} steps are repeated after the loss of a node or the time limit (a "
        f"checkpoint every {interval})"
    )


def _jobs(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> Iterator[tuple[SubmissionStep, PlannedJob, str | None, list[str], JobRecord | None]]:
    """Yield each job with its id, those that it waits for, and its record: of an array the first
    task's.
    """
    for index, step in enumerate(steps):
        after = [ids[earlier] for earlier in step.after] if ids else []
        job_ids = step.job_ids(ids[index]) if ids else [None] * len(step.jobs)
        for job, job_id in zip(step.jobs, job_ids, strict=True):
            yield step, job, job_id, after, records.get(job_ids[0] or "")
