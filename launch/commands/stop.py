"""`stop RUN`: end a run or a pipeline from another terminal, as Ctrl-C does in its own.

Its Slurm jobs are cancelled.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from launch.api.running import STOP_PATIENCE, RunHandle
from launch.commands.run_parsers import build_stop_parser
from launch.errors import EXIT_DONE, EXIT_FAILED, UserError, refusal
from launch.execution.record.lock import Holder, this_process
from launch.external import wait_until
from launch.pipelines.record import find_pipeline, stage_runs
from launch.planning.find_runs import resolve_run, run_name
from launch.slurm.jobs import (
    TOKENIZE_SUFFIX,
    JobFolder,
    find_job_folder,
    find_job_folders,
    find_job_ids,
    find_jobs,
    find_run_of_job,
    is_proven_job,
)
from launch.slurm.queue import QueuedJob, list_user_jobs
from launch.slurm.slurm_cli import query_slurm
from launch.terminal import echo
from launch.worker.finding import Fix

_SLURM_PATIENCE = 90.0  # seconds; Slurm gives a job KillWait, often 30, before it kills it


def stop(argv: list[str]) -> int:
    """Cancel a run's Slurm job, or those of a pipeline's stages, or signal its launcher to end all
    processes, and wait until that has happened.

    Raises UserError: not_running, runs_elsewhere, launcher_mismatch, job_mismatch, scancel_refused,
    unknown_run, ambiguous_run, slurm_unresponsive, usage.
    """
    options = build_stop_parser().parse(argv)
    runs: Path = options.runs
    pipeline = find_pipeline(options.name, runs)
    if pipeline is None:
        folder = find_run_of_job(options.name, runs) or _resolve(options.name, runs)
        run_folders = [folder]
    else:
        folder = pipeline
        run_folders = _pipeline_folders(pipeline)
    holder = RunHandle(folder).holder
    job_folders = []
    for run in run_folders:
        job_folder = find_job_folder(run, runs)
        if job_folder is not None:
            job_folders.append(job_folder)
    try:
        jobs = _find_live_jobs(job_folders)
    except UserError:
        # Slurm does not respond. It is not needed for a launcher on this machine, or without a job.
        is_local = holder is not None and holder.machine == this_process().machine
        if not is_local and any(map(find_job_ids, job_folders)):
            raise
        jobs = []
    if jobs:
        return _cancel(folder, jobs, job_folders)
    if holder is None:
        raise _not_running(folder, job_folders)
    return _terminate(folder, holder)


def _resolve(name: str, runs: Path) -> Path:
    """Return the run folder that a name means. Raises UserError: unknown_run, ambiguous_run."""
    try:
        return resolve_run(name, runs, list(find_job_folders(runs)))
    except UserError:
        if not name.isdigit():
            raise
        message = f"no run in {runs.absolute()} has the job {name}"
        cure = Fix.of("{0} ends a job that launch did not submit", f"$ scancel {name}")
        raise refusal("unknown_run", message, "command line", cure) from None


def _pipeline_folders(pipeline: Path) -> list[Path]:
    """Return the run folders of a pipeline's stages, and those of the jobs that tokenise for them."""
    folders = []
    for _, run in stage_runs(pipeline):
        folders += [run, run.with_name(f"{run.name}{TOKENIZE_SUFFIX}")]
    return list(dict.fromkeys(folders))


def _not_running(folder: Path, job_folders: Sequence[JobFolder]) -> UserError:
    """Return the refusal of a run without a process or a job that this user may end."""
    users = {user for job_folder in job_folders for user in job_folder.other_users()}
    jobs = _find_live_jobs(job_folders, users) if users else []
    if not jobs:
        return refusal("not_running", f"{run_name(folder)} is not running")
    names = ", ".join(f"{job} of {job.user}" for _, job in jobs)
    message = f"{run_name(folder)} is another user's: {names}"
    ids = " ".join(job.job_id for _, job in jobs)
    cure = Fix.of("ask its user, or end it as an operator with {0}", f"$ scancel {ids}")
    return refusal("not_running", message, None, cure)


def _find_live_jobs(
    folders: Sequence[JobFolder], users: Collection[str] = ()
) -> list[tuple[JobFolder, QueuedJob]]:
    """Find the live jobs of the folders, those of this user and of `users`."""
    if not folders or shutil.which("squeue") is None:
        return []
    queue = list_user_jobs(patient=True, users=users)
    live_jobs = []
    for folder in folders:
        live_jobs += [(folder, job) for job in find_jobs(folder, queue) if job.is_live]
    return live_jobs


def _cancel(
    folder: Path, jobs: Sequence[tuple[JobFolder, QueuedJob]], folders: Sequence[JobFolder]
) -> int:
    """Cancel jobs whose scripts use the folders, and wait until they are gone.

    Returns the exit code. Raises UserError: job_mismatch, scancel_refused.
    """
    for job_folder, job in jobs:
        if not is_proven_job(job_folder, job):
            message = (
                f"{job_folder.path} names {job}, whose script does not use that folder: "
                "nothing was cancelled"
            )
            cure = f"look at it: scontrol show job {job.job_id}"
            raise refusal("job_mismatch", message, None, cure)
    ids = [job.job_id for _, job in jobs]
    result = query_slurm(["scancel", *ids])
    if result.status:
        raise refusal("scancel_refused", f"scancel {' '.join(ids)} failed: {result.message}")
    for _, job in jobs:
        echo(f"cancelled {job}", flush=True)
    if wait_until(lambda: not _find_live_jobs(folders), _SLURM_PATIENCE, interval=1.0):
        echo(f"{run_name(folder)} is stopped")
        return EXIT_DONE
    echo(f"{', '.join(ids)} still in the queue after {_SLURM_PATIENCE:.0f} s; see squeue --me")
    return EXIT_FAILED


def _terminate(folder: Path, holder: Holder) -> int:
    """Signal the launcher of a run or a pipeline, wait for its end, and return the exit code."""
    run = RunHandle(folder)
    if run.stop():
        echo(f"{run.name} is stopped")
        return EXIT_DONE
    echo(
        f"process {holder.pid} is still running after {STOP_PATIENCE:.0f} s; kill -KILL "
        f"{holder.pid} ends it, and then every process of the run ends by itself within 15 s"
    )
    return EXIT_FAILED
