"""Jobs that Slurm's controller has forgotten, as its accounting (sacct) records their end."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from launch.errors import UserError
from launch.slurm.slurm_cli import SHORT_TIMEOUT, run_once

_FIELDS = ("JobID", "State", "ExitCode", "End", "Reason")
# Tasks of an array that ended before they started are one record: 12_[0-3,7%2].
_TASKS = re.compile(r"(?P<array>\d+)_\[(?P<tasks>[\d,-]+)(?:%\d+)?\]")
_AT_ONCE = 500  # ids of one query, which are on its command line


@dataclass(frozen=True)
class EndedJob:
    """The last record of a job in Slurm's accounting."""

    job_id: str
    state: str  # CANCELLED, FAILED, TIMEOUT, ...
    by: str = ""  # the id of the user who cancelled it
    exit_code: int = 0
    ended: float | None = None  # unix seconds
    reason: str = ""

    def __str__(self) -> str:
        state = self.state.lower().replace("_", " ")
        if self.state == "CANCELLED" and self.by:
            state += f" by user {self.by}"
        if self.state == "FAILED":
            state += f" with exit code {self.exit_code}"
        reason = "" if self.reason in ("", "None") else f" ({self.reason})"
        return f"job {self.job_id}, {state}{reason}"

    def json_fields(self) -> dict[str, Any]:
        return {
            "id": self.job_id,
            "state": self.state,
            "exit_code": self.exit_code,
            "ended": self.ended,
        }


def find_ended_jobs(job_ids: Collection[str]) -> Mapping[str, EndedJob] | None:
    """Find jobs in Slurm's accounting, by id; a job that has not ended is left out.

    None is returned if the cluster keeps no accounts, or they do not answer in time.
    """
    found: dict[str, EndedJob] = {}
    # A task that ended before it started is found by its array alone.
    numbers = sorted({job_id.partition("_")[0] for job_id in job_ids})
    for begin in range(0, len(numbers), _AT_ONCE):
        some = ",".join(numbers[begin : begin + _AT_ONCE])
        argv = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={some}"]
        argv.append(f"--format={','.join(_FIELDS)}")
        environ = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
        try:
            result = run_once(argv, SHORT_TIMEOUT, environ)
        except UserError:
            return None
        if result.status != 0:
            return None
        found.update(parse_ended_jobs(result.output, job_ids))
    return found


def parse_ended_jobs(output: str, wanted: Collection[str]) -> dict[str, EndedJob]:
    """Parse what sacct prints; the record of several tasks counts for each of them.

    Of a task that alone was cancelled while it waited, Slurm keeps no record beside that of the
    array.
    """
    found: dict[str, EndedJob] = {}
    arrays: set[str] = set()
    live: set[str] = set()
    for line in output.splitlines():
        parts = line.split("|")
        if len(parts) != len(_FIELDS):
            continue
        arrays.add(parts[0].partition("_")[0])
        if not parts[3].isdigit():
            live.update(job_id for job_id in wanted if _has_id(parts[0], job_id))
            continue
        state, _, by = parts[1].partition(" by ")
        exit_code, _, _ = parts[2].partition(":")
        for job_id in wanted:
            if not _has_id(parts[0], job_id):
                continue
            found[job_id] = EndedJob(
                job_id, state, by, int(exit_code or 0), float(parts[3]), parts[4]
            )
    for job_id in wanted:
        array, _, task = job_id.partition("_")
        if task and array in arrays and job_id not in found and job_id not in live:
            found[job_id] = EndedJob(job_id, "CANCELLED", reason="before it started")
    return found


def _has_id(recorded: str, job_id: str) -> bool:
    """Return whether a record's id is that of a job, or of tasks to which it belongs."""
    match = _TASKS.fullmatch(recorded)
    if match is None:
        return recorded == job_id
    array, _, task = job_id.partition("_")
    if array != match["array"] or not task:
        return False
    for part in match["tasks"].split(","):
        first, _, last = part.partition("-")
        if int(first) <= int(task) <= int(last or first):
            return True
    return False
