"""The jobs of a run: the folder with what was submitted, and which of them Slurm still has."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import Problem, UserError
from launch.slurm.ask import ask


@dataclass(frozen=True)
class Submitted:
    """A job that Slurm has: its id, its state (PENDING, RUNNING, ...) and why it waits."""

    job_id: str
    state: str
    reason: str

    def __str__(self) -> str:
        waiting = f" ({self.reason})" if self.state == "PENDING" and self.reason not in ("", "None") else ""
        return f"job {self.job_id}, {self.state.lower()}{waiting}"


@dataclass(frozen=True)
class JobFolder:
    """`<runs>/.jobs/<stage>/<name>`: beside the run's own folder, which the run itself makes."""

    path: Path

    @staticmethod
    def of(runs: Path, stage: str, name: str) -> JobFolder:
        return JobFolder(runs / ".jobs" / stage / name)

    @property
    def script(self) -> Path:
        return self.path / "job.sbatch"

    @property
    def output(self) -> str:
        """The log's path as Slurm reads it: in it % begins a pattern."""
        return f"{str(self.path).replace('%', '%%')}/job-%j.log"

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

    def remember(self, job_id: str) -> None:
        """Append to jobs.jsonl what was submitted."""
        told = {"schema_version": 1, "job_id": job_id, "submitted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with (self.path / "jobs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def living(folder: JobFolder) -> list[Submitted]:
    """The user's jobs of this folder's script that Slurm has or will start again, submitted by us or by hand.

    Raises UserError (`no_slurm`, `slurm_silent`).
    """
    answer = ask(["squeue", "--noheader", "--me", "--format=%A|%T|%r|%e|%o"])
    if answer.status:
        raise UserError(Problem("slurm_silent", f"squeue does not tell the jobs there are: {answer.words}"))
    found = []
    for line in answer.output.splitlines():
        job_id, state, reason, end, command = (line.split("|", 4) + [""] * 5)[:5]
        over = state == "COMPLETING" and end[:1].isdigit()  # one that was requeued has no end, and comes again
        if command.strip() == str(folder.script) and not over:
            found.append(Submitted(job_id.strip(), state, reason))
    return found
