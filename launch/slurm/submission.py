"""Checks, writes and submits the batch scripts of a command, all or none."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from launch.check.machine.rules import RULES, inspect, stopping_problems, warnings
from launch.check.machine.trainer import interpreter_has_packages
from launch.errors import UserError, refusal
from launch.execution.record.lock import (
    Holder,
    file_lock,
    find_holder,
    lock_path,
    this_process,
)
from launch.execution.record.run import command_for
from launch.slurm.cluster import MIN_WORK, warning_problem
from launch.slurm.jobs import JobFolder, find_job_ids, find_live_jobs, note_jobs
from launch.slurm.partitions import limit_problems
from launch.slurm.planned_jobs import PlannedJob, warning_time
from launch.slurm.queue import QueuedJob, parse_job_record
from launch.slurm.schedule import SubmissionStep
from launch.slurm.slurm_cli import (
    SlurmResult,
    parse_duration,
    query_slurm,
    report_retry,
    run_once,
    try_command,
)
from launch.terminal import notify
from launch.worker.finding import Finding, Fix

_PAUSES = (2.0, 5.0)  # seconds before sbatch is retried
# What `sbatch --test-only` prints of a job that no nodes fit, even if sbatch accepts it.
_NO_NODES_NOW = "Requested node configuration is not available"
# States of nodes that a job may still wait for.
_ABSENT_NODES = "down,drain,fail,maint,reserved,unknown"
_SETTLE = 3.0  # seconds until a job shows up whose sbatch got no response
# The variables that identify the cluster and the user to Slurm's commands; the other SLURM_
# variables describe an enclosing job.
_CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
# The variables that launch's batch scripts export.
_JOB_VARIABLES = (
    "LAUNCH_PLAN",
    "LAUNCH_TRAINING",
    "LAUNCH_HOSTS",
    "LAUNCH_STARTED",
    "LAUNCH_MAILBOX",
    "LAUNCH_REQUEUE",
    "LAUNCH_TASK",
)


def submit_steps(steps: Sequence[SubmissionStep], *, dry_run: bool) -> list[str]:
    """Check all steps, write their job folders and submit them; return the job ids, none with
    `dry_run`.

    The job folders are locked meanwhile, so that no file that a job still reads is written, and
    nothing is submitted twice. What Slurm then shows of the jobs may still end them.

    Raises UserError if a step cannot be submitted, and then none is: already_submitted,
    run_is_locked, not_writable, warn_before_time, and those of the checks, `check_script` and
    `submit_all`.
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
            check_script(step, allowed=allowed)
        ids = submit_all(steps)
        note_jobs(_job_folders(steps, ids))
        problems = _early_warning_problems(steps, ids)
        if problems:
            _cancel(ids)
            raise UserError(problems)
        return ids


def _job_folders(steps: Sequence[SubmissionStep], ids: Sequence[str]) -> dict[str, JobFolder]:
    """Return the job folder of each submitted job, by its id."""
    folders = {}
    for step, job_id in zip(steps, ids, strict=True):
        for job, task in zip(step.jobs, step.job_ids(job_id), strict=True):
            folders[task] = job.folder
    return folders


def _early_warning_problems(steps: Sequence[SubmissionStep], ids: Sequence[str]) -> list[Finding]:
    """Find jobs that Slurm's warning would end as soon as they start, whatever set their limit.

    The partition's default, a variable of sbatch or one of its options is only known to Slurm.
    """
    problems = []
    for step, job_id in zip(steps, ids, strict=True):
        job = step.jobs[0]
        warn_before = warning_time(job)
        output = try_command(["scontrol", "--oneliner", "show", "job", step.job_ids(job_id)[0]])
        if not warn_before or not output:
            continue
        limit = parse_job_record(output.splitlines()[0]).time_limit
        seconds = parse_duration(limit)
        if seconds is not None and seconds - warn_before < MIN_WORK:
            problems.append(warning_problem(limit, seconds, warn_before, "cluster.time"))
    return problems


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


def check_script(step: SubmissionStep, *, allowed: bool) -> None:
    """Check with `sbatch --test-only` that Slurm accepts a step's script.

    A refusal that is `allowed`, or that drained, down or reserved nodes may explain, is only a
    warning.
    Raises UserError: sbatch_refused, no_slurm, slurm_unresponsive.
    """
    argv = ["sbatch", "--test-only", str(step.folder.script)]
    result = query_slurm(argv, environ=job_environment(os.environ))
    if result.status and _NO_NODES_NOW in result.message and _may_nodes_return():
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
        raise UserError(_refused(result, step))


def _may_nodes_return() -> bool:
    """Return whether Slurm shows absent nodes, such as drained ones, that the job may be waiting
    for.
    """
    # By node: a list by partition also has those without such a node.
    argv = ["sinfo", "--all", "--Node", "--noheader", "--format=%N", f"--states={_ABSENT_NODES}"]
    output = try_command(argv)
    return output is None or bool(output.strip())


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
            live_jobs = "; ".join(f"{job}{_whose(job)}" for job in jobs)
            reads = ", and its job reads the files that a dry run writes" if dry_run else ""
            message = f"this run is already submitted{reads}: {live_jobs}"
            cure = f"wait for it, or `{command_for('stop', run)}` first"
            if all(map(_whose, jobs)):
                cure = "wait for it, or set another name="
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


def _whose(job: QueuedJob) -> str:
    """Return " of USER" for the job of another user."""
    return f" of {job.user}" if job.user not in ("", this_process().user) else ""


def sbatch_command(step: SubmissionStep, after: Sequence[str]) -> list[str]:
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
        result = run_once(sbatch_command(step, after), environ=job_environment(os.environ))
        if result.status == 0:
            return result.output.strip().split(";")[0]
        if not result.is_transient:
            raise UserError(_refused(result, step))
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


def _refused(result: SlurmResult, step: SubmissionStep) -> Finding:
    keys = f"$ launch plan stage={step.jobs[0].plan.stage} --cfg job"
    cure = Fix.of("change it with cluster.KEY=VALUE; {0} prints the keys", keys)
    if _NO_NODES_NOW in result.message:
        cure = Fix.of(
            "request fewer nodes, gpus, CPUs or less memory; {0} prints what each node has",
            "$ sinfo --Node --long",
        )
    where = str(step.folder.script)
    return Finding.error("sbatch_refused", f"Slurm refuses the job: {result.message}", where, cure)


def _cancel(ids: Sequence[str]) -> None:
    try:
        cancelled = query_slurm(["scancel", *ids]).status == 0
    except UserError:
        cancelled = False
    names = ", ".join(ids)
    jobs = f"job {names}, which was" if len(ids) == 1 else f"jobs {names}, which were"
    outcome = "cancelled" if cancelled else "could not cancel"
    notify(f"{outcome} {jobs} already submitted")
