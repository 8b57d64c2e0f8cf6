"""What the log of a job shows about its end: messages of launch, and lines of srun."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# What srun prints of a task that ended by itself: `srun: error: n2: task 1: Killed`.
_TASK_END = re.compile(r"srun: error: (?P<host>[^:]+): tasks? [^:]+: (?P<end>.+)")
_TAIL = 1 << 14  # bytes at the end of a log that are searched for its last message
_PROBLEM = re.compile(r"launch: .*\[\w+\]")  # as `__main__` prints it
# A line of Slurm's own, except the one that reports a missing program (execve).
_SLURM_LINE = re.compile(r"(srun|slurmstepd(-\S+)?|slurmd\[.*\]): (?!.*\bexecve\(\))")


@dataclass(frozen=True)
class JobLog:
    """The part of a job's log that this start of the job writes."""

    path: Path
    begin: int  # bytes that earlier starts wrote

    @staticmethod
    def from_now(path: Path) -> JobLog:
        """Return the part that is written from now on."""
        try:
            return JobLog(path, path.stat().st_size)
        except OSError:
            return JobLog(path, 0)

    def find_ended_tasks(self) -> list[tuple[str, str]]:
        """Return host and end of the tasks that ended by themselves, as srun reports them."""
        lines = read_tail(self.path, self.begin).splitlines()
        matches = [_TASK_END.match(line.strip()) for line in lines]
        return [(match["host"], match["end"]) for match in matches if match]


def last_message(log: Path, begin: int = 0) -> str | None:
    """Return the line of a job's log that explains its end; None if it has none.

    What is before byte `begin` is left out. The line is the last problem that launch reported, else
    the last line not from Slurm, else what Slurm reports of the first task that ended. That it then
    ended the others explains nothing.
    """
    lines = [line.strip() for line in read_tail(log, begin).splitlines() if line.strip()]
    problems = [line for line in lines if _PROBLEM.fullmatch(line)]
    others = [line for line in lines if not _SLURM_LINE.match(line)]
    tasks = [line for line in lines if _TASK_END.match(line)]
    for candidates in (problems, others, tasks[:1]):
        if candidates:
            return candidates[-1]
    return None


def read_tail(log: Path, begin: int = 0) -> str:
    """Return the end of a job's log, from byte `begin` on; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, file.seek(0, 2) - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
