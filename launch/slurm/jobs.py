"""The jobs of a run: the folder with what was submitted, and which of them Slurm still has."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.slurm.queue import QueuedJob, user_jobs

TOKENIZE = ".tokenize"  # what the name of the folder of a job ends in that only tokenises: it makes no run folder
_ATTEMPT = re.compile(r"(\d+(?:_\d+)?)\.\d+")  # the folder of a job's attempt


@dataclass(frozen=True)
class JobFolder:
    """`<runs>/.jobs/<stage>/<name>`: beside the run's own folder, which the run itself makes."""

    path: Path
    file: str = "job.sbatch"

    @staticmethod
    def of(runs: Path, stage: str, name: str) -> JobFolder:
        return JobFolder(runs / ".jobs" / stage / name)

    @property
    def script(self) -> Path:
        return self.path / self.file

    @property
    def output(self) -> str:
        """The log's path as Slurm reads it: in it % begins a pattern."""
        return f"{self._for_slurm}/job-%j.log"

    @property
    def output_of_tasks(self) -> str:
        """The same for the tasks of an array."""
        return f"{self._for_slurm}/job-%A_%a.log"

    @property
    def _for_slurm(self) -> str:
        return str(self.path).replace("%", "%%")

    def log(self, job_id: str) -> Path:
        return self.path / f"job-{job_id}.log"

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        """Write a file whole or not at all."""
        path = self.path / name
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(mode)
        temporary.replace(path)

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        self.write(name, json.dumps({"schema_version": 1, **value}, indent=2, ensure_ascii=False) + "\n")

    def remember(self, job_id: str, script: Path | None = None) -> None:
        """Append to jobs.jsonl what was submitted; `script`: of the array that the job is a task of."""
        told = {"schema_version": 1, "job_id": job_id, "submitted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if script is not None:
            told["script"] = str(script)
        with (self.path / "jobs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")

    def tasks(self) -> set[tuple[str, str]]:
        """The tasks of arrays that this run was submitted as: id and script."""
        return {(one["job_id"], one["script"]) for one in self.submitted() if "script" in one}

    def submitted(self) -> list[dict[str, str]]:
        """The lines of jobs.jsonl; one that was cut short is left out."""
        told = []
        with contextlib.suppress(OSError):
            for line in (self.path / "jobs.jsonl").read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    told.append(json.loads(line))
        return told


def task_id(array: str, index: int) -> str:
    """The id of an array's task, as Slurm says it."""
    return f"{array}_{index}"


def known_ids(folder: JobFolder) -> list[str]:
    """The ids of the jobs that a folder knows of, the last submitted one last; a job that was submitted by hand is
    known once it has begun."""
    return sorted(_begun(folder) | {one["job_id"] for one in folder.submitted()}, key=_numbers)


def jobs_of(folder: JobFolder, queue: Sequence[QueuedJob]) -> list[QueuedJob]:
    """Those of Slurm's jobs that are this run's, the living ones last: of its script, a task of the array that it was
    submitted in, or begun in this folder by a script that lies elsewhere. An id alone is no proof: other clusters, and
    one that was set up anew, count from 1 as well."""
    script, tasks, begun = _real(str(folder.script)), folder.tasks(), _begun(folder)
    found = [
        job
        for job in queue
        if _real(job.command) == script
        or (job.job_id, job.command) in tasks
        or (job.job_id in begun and "/.jobs/" not in job.command)
    ]
    return sorted(found, key=lambda job: (job.lives, _numbers(job.job_id)))


def living(folder: JobFolder) -> list[QueuedJob]:
    """The user's jobs of this folder's run that Slurm has or will start again.

    Raises UserError (`no_slurm`, `slurm_silent`).
    """
    jobs = jobs_of(folder, user_jobs(patient=True))
    return [job for job in jobs if job.lives and job.state != "COMPLETING"]


@functools.cache
def _real(path: str) -> str:
    """Without links: a folder of runs may have several names."""
    return os.path.realpath(path)


def _begun(folder: JobFolder) -> set[str]:
    """The ids of the jobs that have begun, by the folders of their attempts."""
    try:
        return {found[1] for path in folder.path.iterdir() if (found := _ATTEMPT.fullmatch(path.name))}
    except OSError:
        return set()


def _numbers(job_id: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", job_id)]
