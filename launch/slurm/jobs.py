"""The jobs of a run: the folder of what was submitted, and the status of run and job.

The status is that of the run's own record and Slurm's queue together: a run may also be pending or
requeued.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from launch.errors import UserError
from launch.execution.record.lock import this_process
from launch.files import (
    append_json,
    read_json_lines,
    read_json_object,
    write_file,
    write_json,
)
from launch.planning.plan import Plan
from launch.slurm.queue import QueuedJob, folder_tag, list_user_jobs
from launch.slurm.slurm_cli import query_slurm
from launch.worker.json_codec import versioned

# Suffixes of the folders of jobs that write no run folder: those that only tokenise, and those that
# evaluate a run's model.
TOKENIZE_SUFFIX = ".tokenize"
EVALUATE_SUFFIX = ".evaluate"
# The name of the folder of a job's attempt: 12.0-1763740800, or 12_3.1 if the batch script does
# not set LAUNCH_STARTED.
_ATTEMPT = re.compile(r"(?P<job_id>\d+(?:_\d+)?)\.\d+(?:-\d+)?")
# What is recorded of a job as Slurm reports it: which one it is, and its state.
_NOTED_FIELDS = ("job_id", "cluster", "tag", "submitted", "restarts", "state", "reason")


@dataclass(frozen=True)
class JobFolder:
    """`<runs>/.jobs/<stage>/<name>`, separate from the run's own folder, which the run itself
    creates.
    """

    path: Path
    file: str = "job.sbatch"  # the batch script's name

    @staticmethod
    def of(runs: Path, stage: str, name: str) -> JobFolder:
        return JobFolder(runs / ".jobs" / stage / name)

    @staticmethod
    def of_plan(plan: Plan, suffix: str = "") -> JobFolder:
        return JobFolder.of(plan.runs, plan.stage, plan.name + suffix)

    @property
    def place(self) -> tuple[str, str]:
        """The folder of runs, and the run in it: stage/name."""
        runs, _, run = self.path.as_posix().rpartition("/.jobs/")
        return runs, run

    @property
    def script(self) -> Path:
        return self.path / self.file

    def log_pattern(self, job: str = "%j") -> str:
        """Return the log's path in Slurm's notation, where % begins a pattern.

        `%j` is the job, `%A_%a` the task of an array.
        """
        folder = str(self.path).replace("%", "%%")
        return f"{folder}/job-{job}.log"

    def log(self, job_id: str) -> Path:
        return self.path / f"job-{job_id}.log"

    def attempt(self, job_id: str, restarts: int, started: str) -> Path:
        """Return the folder that the nodes of one start of a job share.

        `started` is the start's time, the same on all nodes: a job of another or a rebuilt cluster
        may have the same id, and its files must not be read.
        """
        name = f"{job_id}.{restarts}"
        if started:
            name += f"-{started}"
        return self.path / name

    def attempts(self, job_id: str, restarts: int) -> list[Path]:
        """Return the folders of that restart of the jobs with that id, the newest last."""
        name = f"{job_id}.{restarts}"
        folders = [*self.path.glob(name), *self.path.glob(f"{name}-*")]
        return sorted(folders, key=lambda path: (len(path.name), path))

    def earlier_attempts(self, job_id: str, restarts: int) -> list[Path]:
        """Return the folders of a job's starts before that restart."""
        newest: list[Path] = []
        for restart in range(restarts):
            newest.extend(self.attempts(job_id, restart)[-1:])
        return newest

    def write_script(self, text: str) -> None:
        """Write the batch script atomically."""
        write_file(self.script, text, 0o755)

    def record_submission(self, job_id: str, array_script: Path | None = None) -> None:
        """Append a job to jobs.jsonl.

        `array_script` is the script of the array that the job is a task of.
        """
        fields = {"job_id": job_id, "submitted": _format_now(), "user": this_process().user}
        line = versioned(fields)
        if array_script is not None:
            line["script"] = str(array_script)
        append_json(self.path / "jobs.jsonl", line)

    def note(self, job: QueuedJob) -> None:
        """Record what Slurm reports of a job of this folder, unless that is known already.

        Slurm forgets a job some minutes after its end, and not every cluster keeps accounts.
        """
        fields = {name: getattr(job, name) for name in _NOTED_FIELDS}
        known = self.read_note(job.job_id)
        if any(known.get(name) != value for name, value in fields.items()):
            with contextlib.suppress(OSError):  # a run of somebody else's
                content = versioned({**fields, "seen": _format_now()})
                write_json(self.path / f"job-{job.job_id}.json", content)

    def read_note(self, job_id: str) -> dict[str, Any]:
        """Return the last record of `note`; empty without one."""
        return read_json_object(self.path / f"job-{job_id}.json")

    def other_users(self) -> set[str]:
        """Return who else submitted jobs of this run; Slurm refuses names that nobody has."""
        users = {str(line.get("user") or "") for line in self.read_submissions()}
        return {user for user in users - {this_process().user} if _is_user(user)}

    def read_submissions(self) -> list[dict[str, str]]:
        """Return the lines of jobs.jsonl, without one that was cut short."""
        return read_json_lines(self.path / "jobs.jsonl")


def _is_user(name: str) -> bool:
    """Return whether this machine knows a user of that name."""
    try:
        import pwd

        return bool(pwd.getpwnam(name))
    except (ImportError, KeyError, ValueError):
        return False


def _format_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def find_job_ids(folder: JobFolder) -> list[str]:
    """Return the ids of the jobs recorded in a folder, the last submitted one last.

    A job that was submitted by hand is recorded once it has started.
    """
    matches = [_ATTEMPT.fullmatch(path.name) for path in folder.path.glob("*.*")]
    started = {match["job_id"] for match in matches if match}
    submitted = {line["job_id"] for line in folder.read_submissions()}
    return sorted(started | submitted, key=_id_numbers)


def find_jobs(folder: JobFolder, queue: Sequence[QueuedJob]) -> list[QueuedJob]:
    """Find this run's jobs in Slurm's queue, the live ones last.

    They have the tag of its folder, are the array task that it was submitted as, or are noted in
    the folder: those whose comment the cluster has changed, and those that started here from
    another script. The id alone does not identify a job: other clusters, and a rebuilt one, also
    count from 1.
    """
    own_tag = folder_tag(folder.path)
    # A task of an array is recorded with the array's script, and has the tag of its folder.
    array_tasks = set()
    for line in folder.read_submissions():
        if "script" in line:
            array_tasks.add((line["job_id"], folder_tag(Path(line["script"]).parent)))
    notes = [read_json_object(path) for path in folder.path.glob("job-*.json")]

    def is_of_this_run(job: QueuedJob) -> bool:
        if job.tag == own_tag or (job.job_id, job.tag) in array_tasks:
            return True
        return any(_matches(note, job) for note in notes)

    jobs = [job for job in queue if is_of_this_run(job)]
    return sorted(jobs, key=lambda job: (job.is_live, _id_numbers(job.job_id)))


def note_jobs(folders: Mapping[str, JobFolder]) -> None:
    """Record what Slurm reports of jobs, given by their ids, in their folders, for `find_jobs`.

    Where Slurm's commands are missing, as in a container, or do not respond, only the comment
    identifies a job.
    """
    with contextlib.suppress(UserError):
        for job in list_user_jobs():
            if job.job_id in folders:
                folders[job.job_id].note(job)


def is_proven_job(folder: JobFolder, job: QueuedJob) -> bool:
    """Return whether the script that Slurm keeps of the job uses this folder.

    What the folder itself records may be copied from another run's, or made up.

    Raises UserError: no_slurm, slurm_unresponsive.
    """
    script = query_slurm(["scontrol", "write", "batch_script", job.job_id, "-"])
    shown = query_slurm(["scontrol", "show", "job", job.job_id])
    match = re.search(r"^\s*WorkDir=(.*)", shown.output, re.MULTILINE)
    work_folder = match[1] if match else "/"
    runs, run = JobFolder(folder.path.absolute()).place
    for line in script.output.splitlines():
        # A line of a quoted text of several lines is a ValueError, a missing folder an OSError.
        with contextlib.suppress(ValueError, OSError):
            # The script has `mkdir -p FOLDER`, or FOLDER/job.sbatch if it is that of an array.
            for word in shlex.split(line):
                path = Path(work_folder, word.removesuffix(f"/{folder.file}"))
                named_runs, named_run = JobFolder(path).place
                # The folder of runs may have several names.
                if named_run == run and Path(named_runs).samefile(runs):
                    return True
    return False


def _matches(note: dict[str, Any], job: QueuedJob) -> bool:
    """Return whether a job is the noted one.

    It still is after a requeue, which gives it a new submission time, and if it has lost its tag.
    """
    if (job.job_id, job.cluster) != (note.get("job_id"), note.get("cluster")):
        return False
    if job.tag not in ("", note.get("tag")):
        return False
    if note.get("submitted") == job.submitted:
        return True
    return bool(job.restarts > note.get("restarts", job.restarts))


def find_live_jobs(folder: JobFolder) -> list[QueuedJob]:
    """Find this folder's jobs that run, wait or will be restarted.

    Raises UserError: no_slurm, slurm_unresponsive.
    """
    jobs = find_jobs(folder, list_user_jobs(patient=True, users=folder.other_users()))
    return [job for job in jobs if job.is_live and job.state != "COMPLETING"]


def _id_numbers(job_id: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", job_id)]


def find_job_folders(runs: Path) -> dict[Path, JobFolder]:
    """Find the job folders below `runs`, by run folder, also those that were never submitted."""
    root = runs / ".jobs"
    # rglob would read the folder of every attempt.
    scripts = sorted(chain(root.glob("*/*/job.sbatch"), root.glob("*/*/*/job.sbatch")))
    return {runs / script.parent.relative_to(root): JobFolder(script.parent) for script in scripts}


def find_run_of_job(job_id: str, runs: Path) -> Path | None:
    """Return the run folder below `runs` of a job, as `squeue` lists its id; None for any other job."""
    if not job_id.isdigit():
        return None
    folders = find_job_folders(runs)
    return next((run for run, job in folders.items() if job_id in find_job_ids(job)), None)


def find_job_folder(run: Path, runs: Path) -> JobFolder | None:
    """Find the job folder of the run folder `run` below `runs`, None if there is none.

    A run that was started by a script in scripts/ has one as well.
    """
    runs = runs.resolve()
    if not run.is_relative_to(runs):
        return None
    folder = JobFolder(runs / ".jobs" / run.relative_to(runs))
    return folder if folder.path.is_dir() else None
