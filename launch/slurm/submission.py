"""Checks, writes and submits the batch scripts of a command, all or none, and reports the jobs."""

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
from launch.slurm.queue import JobRecord, QueuedJob
from launch.slurm.schedule import SubmissionStep
from launch.slurm.slurm_cli import SlurmResult, query_slurm, report_retry, run_once
from launch.terminal import notify
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import versioned

_PAUSES = (2.0, 5.0)  # seconds before sbatch is retried
# What `sbatch --test-only` prints for a job that sbatch accepts, when nodes that it needs are
# drained or down.
_NO_NODES_NOW = "Requested node configuration is not available"
_SETTLE = 3.0  # seconds until a job shows up whose sbatch got no response
# The variables that identify the cluster and the user to Slurm's commands; the other SLURM_
# variables describe an enclosing job.
_CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
# The variables that launch's batch scripts export.
_JOB_VARIABLES = ("LAUNCH_PLAN", "LAUNCH_HOSTS", "LAUNCH_STARTED", "LAUNCH_MAILBOX", "LAUNCH_TASK")


def submit_steps(steps: Sequence[SubmissionStep], *, dry_run: bool) -> list[str]:
    """Check all steps, write their job folders and submit them; return the job ids, none with
    `dry_run`.

    The job folders are locked meanwhile, so that no file that a job still reads is written, and
    nothing is submitted twice.

    Raises UserError if a step cannot be submitted, and then none is: already_submitted,
    run_is_locked, not_writable, and those of the checks, `check_script` and `submit_all`.
    """
    jobs = [job for step in steps for job in step.jobs]
    if not dry_run:
        problems: list[Finding] = []
        for job in jobs:
            if job.trains:
                problems.extend(_preflight(job))
        problems.extend(limit_problems(jobs))
        if problems:
            raise UserError(problems)
    folders = [*(job.folder for job in jobs), *(step.folder for step in steps)]
    with contextlib.ExitStack() as locks:
        for folder in dict.fromkeys(folders):
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
    """Return what would stop the job on its nodes, and print warnings.

    The nodes' own interpreter, cluster.python, is checked on the nodes.
    """
    config = job.plan.config
    rules = [rule for rule in RULES if rule.on_login_node]
    if config.cluster.python and not config.python:
        rules.remove(interpreter_has_packages)
    findings = inspect(job.plan, rules)
    for warning in warnings(findings):
        notify(f"warning: {warning}")
    hint = "if the nodes have an interpreter of their own, set cluster.python=PATH"

    def add_hint(problem: Finding) -> Finding:
        if problem.id != interpreter_has_packages.id:
            return problem
        return replace(problem, cure=Fix(f"{problem.cure}; {hint}"))

    return [add_hint(problem) for problem in stopping_problems(findings)]


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job inherits from the submitting shell.

    Those that describe a job in which that shell runs are left out. The user's defaults for sbatch
    (SBATCH_) stay.
    """

    def is_inherited(name: str) -> bool:
        if name in _CLUSTER_VARIABLES:
            return True
        return not name.startswith("SLURM_") and name not in _JOB_VARIABLES

    return {name: value for name, value in environ.items() if is_inherited(name)}


def check_script(folder: JobFolder, *, allowed: bool) -> None:
    """Check with `sbatch --test-only` that Slurm accepts the script.

    A refusal that is `allowed`, or that drained or down nodes may explain, is only a warning.
    Raises UserError: sbatch_refused, no_slurm, slurm_unresponsive.
    """
    argv = ["sbatch", "--test-only", str(folder.script)]
    result = query_slurm(argv, environ=job_environment(os.environ))
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
    """Submit the scripts of locked folders in turn and return their job ids.

    If one cannot be submitted, those before it are cancelled.

    Raises UserError: sbatch_refused, no_slurm, slurm_unresponsive.
    """
    ids: list[str] = []
    try:
        for step in steps:
            with _deferred_interrupt():
                after = [ids[index] for index in step.after]
                job_id = _submit(step, after, settle)
                ids.append(job_id)
                _record(step, job_id)
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
    message = f"another `submit` of this run is in progress: {holder}"
    return Finding.error("already_submitted", message, None, "wait for it")


def refuse_live_jobs(planned: Iterable[PlannedJob], *, dry_run: bool) -> None:
    """Refuse jobs whose runs are running or have a live job.

    Raises UserError: already_submitted, run_is_locked; no_slurm, slurm_unresponsive unless it is a
    dry run.
    """
    slurm_responds = True
    for folder, run in dict.fromkeys((job.folder, job.run) for job in planned):
        jobs: list[QueuedJob] = []
        if slurm_responds and (folder.script.exists() or not dry_run):
            try:
                jobs = find_live_jobs(folder)
            except UserError:
                if not dry_run:
                    raise
                slurm_responds = False
        if jobs:
            live_jobs = "; ".join(str(job) for job in jobs)
            reads = ", and its job reads the files that a dry run writes" if dry_run else ""
            message = f"this run is already submitted{reads}: {live_jobs}"
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
            cure = "wait for it, stop it, or set another name="
            raise refusal("run_is_locked", message, None, cure)


def _sbatch(step: SubmissionStep, after: Sequence[str]) -> list[str]:
    """Return the command that submits a step behind the jobs `after`."""
    dependencies = []
    if after:
        kind = "aftercorr" if step.is_taskwise else "afterok"
        dependencies.append(f"{kind}:{':'.join(after)}")
    if step.jobs[0].is_singleton:
        dependencies.append("singleton")
    argv = ["sbatch", "--parsable"]
    if dependencies:
        argv.append(f"--dependency={','.join(dependencies)}")
        # Without this option a job that depends on a failed one waits for ever.
        argv.append("--kill-on-invalid-dep=yes")
    argv.append(str(step.folder.script))
    return argv


def _submit(step: SubmissionStep, after: Sequence[str], settle: float) -> str:
    """Submit a step behind the jobs `after`; return its job id. A passing failure is retried."""
    for pause in (*_PAUSES, None):
        result = run_once(_sbatch(step, after), environ=job_environment(os.environ))
        if result.status == 0:
            return result.output.strip().split(";")[0]
        if not result.is_transient:
            raise UserError(_refused(result, step.folder.script))
        report_retry("sbatch", result)
        # Slurm may have accepted the script in spite of the error, and no job is submitted twice.
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
    """Append the job to jobs.jsonl of the step's folder.

    A task of an array is also recorded in the job folder of its run, which gets a link to its log.
    """
    step.folder.record_submission(job_id)
    if not step.is_array:
        return
    for job, task in zip(step.jobs, step.job_ids(job_id), strict=True):
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
    jobs = f"job {names}, which was" if len(ids) == 1 else f"jobs {names}, which were"
    outcome = "cancelled" if cancelled else "could not cancel"
    notify(f"{outcome} {jobs} already submitted")


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
    return {
        "time": record.time_limit if record else None,
        "nodes": job.script.width.nodes,
        "requeues": job.script.cluster.requeues,
        "checkpoint_steps": checkpoint_interval(job.plan),
        "reason": (record.reason or None) if record else None,
        "can_never_start": record.can_never_start if record else None,
    }


def describe_submission(
    steps: Sequence[SubmissionStep], ids: Sequence[str], records: Mapping[str, JobRecord]
) -> Iterator[str]:
    """Yield the lines that `submit` prints.

    Each is about a job, or about an sbatch command if nothing was submitted.
    """
    if not ids:
        for step in steps:
            names = ", ".join(job.name for job in step.jobs)
            after = [f"<job of {steps[earlier].jobs[0].name}>" for earlier in step.after]
            yield f"{names}: {' '.join(_sbatch(step, after))}"
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
            yield f"  at worst:  {describe_worst_loss(job)}"
        yield f"  follow it: {command_for('logs', job.run, '--follow')}"
        yield f"  stop it:   {command_for('stop', job.run)}"


def _describe_limits(job: PlannedJob, record: JobRecord) -> str:
    count = job.script.width.nodes
    nodes = "1 node" if count == 1 else f"{count} nodes"
    time = "no time limit" if record.time_limit == "UNLIMITED" else record.time_limit
    limit = job.script.cluster.requeues
    requeues = f"requeued at most {limit} times" if limit else "never requeued"
    return f"{time} on {nodes} of partition {record.partition}, {requeues}"


def describe_worst_loss(job: PlannedJob) -> str:
    """Return what the loss of a node, or the time limit, costs at most."""
    plan = job.plan
    if not plan.config.trainer.resumable:
        return (
            f"all of the run is lost with a node or at the time limit: {plan.trainer} cannot resume"
        )
    interval = checkpoint_interval(plan)
    max_steps = plan.config.recipe.max_steps
    why_no_checkpoint = ""
    if not interval:
        why_no_checkpoint = "it writes no checkpoints"
    elif max_steps is not None and max_steps <= interval:
        why_no_checkpoint = f"its {max_steps} steps end before the first checkpoint"
    if why_no_checkpoint:
        return (
            f"all of the run is repeated after the loss of a node: {why_no_checkpoint}; "
            "set recipe.checkpoint_steps"
        )
    return (
        f"{interval} steps are repeated after the loss of a node or the time limit "
        f"(a checkpoint every {interval})"
    )


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
