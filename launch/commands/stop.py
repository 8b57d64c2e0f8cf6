"""`stop RUN`: end a run or a pipeline from another terminal, as Ctrl-C does in its own; Slurm jobs
are cancelled.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
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
    is_proven_job,
)
from launch.slurm.queue import QueuedJob, list_user_jobs
from launch.slurm.slurm_cli import query_slurm
from launch.terminal import echo

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
    folder = pipeline or resolve_run(options.name, runs, list(find_job_folders(runs)))
    holder = RunHandle(folder).holder
    of_runs = [run for _, run in stage_runs(pipeline)] if pipeline else [folder]
    names = [
        run.with_name(run.name + suffix)
        for run in of_runs
        for suffix in ("", TOKENIZE_SUFFIX if pipeline else "")
    ]
    folders = [
        job_folder for name in dict.fromkeys(names) if (job_folder := find_job_folder(name, runs))
    ]
    try:
        jobs = _find_live_jobs(folders)
    except (
        UserError
    ):  # Slurm does not answer; it is not needed for a launcher on this machine or without any job
        is_local = holder is not None and holder.machine == this_process().machine
        if not is_local and any(map(find_job_ids, folders)):
            raise
        jobs = []
    if jobs:
        return _cancel(folder, jobs, folders)
    if holder is None:
        raise refusal("not_running", f"{run_name(folder)} is not running")
    return _terminate(folder, holder)


def _find_live_jobs(folders: Sequence[JobFolder]) -> list[tuple[JobFolder, QueuedJob]]:
    if not folders or shutil.which("squeue") is None:
        return []
    queue = list_user_jobs(patient=True)
    return [(folder, job) for folder in folders for job in find_jobs(folder, queue) if job.is_live]


def _cancel(
    folder: Path, jobs: Sequence[tuple[JobFolder, QueuedJob]], folders: Sequence[JobFolder]
) -> int:
    for job_folder, job in jobs:
        if not is_proven_job(job_folder, job):
            message = (
                f"{job_folder.path} names {job}, whose script does not use that folder: "
                "nothing was cancelled"
            )
            raise refusal(
                "job_mismatch", message, None, f"look at it: scontrol show job {job.job_id}"
            )
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
    run = RunHandle(folder)
    if run.stop():
        echo(f"{run.name} is stopped")
        return EXIT_DONE
    echo(
        f"process {holder.pid} is still running after {STOP_PATIENCE:.0f} s; kill -KILL "
        f"{holder.pid} ends it, and then "
        "every process of the run ends by itself within 15 s"
    )
    return EXIT_FAILED
