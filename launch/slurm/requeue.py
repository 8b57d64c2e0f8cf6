"""Asking Slurm to start this job again: once an attempt, and without a node that was lost.

Slurm (22.05) takes the exclusion of a node for jobs that wait, so the job is requeued first. It cannot start in
between: until every node of it has ended, or counts as down, it is completing.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.errors import UserError
from launch.slurm.allocation import Allocation
from launch.slurm.ask import ask

_UP = ("idle", "alloc", "mix", "comp", "plnd", "resv")
_ASKED = "asked.json"
_FIELD = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True)
class JobRecord:
    """What Slurm says of a job. `number`: an array's task has one of its own. `asked`, `excluded`: node lists as Slurm
    writes them, "" for none."""

    number: int
    state: str
    restarts: int
    may_requeue: bool
    partition: str
    asked: str
    excluded: str


def read_record(output: str) -> JobRecord:
    """The record in what `scontrol --oneliner show job` printed."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(output):
        fields.setdefault(name, "" if value == "(null)" else value)
    return JobRecord(
        number=int(fields.get("JobId") or 0),
        state=fields.get("JobState", ""),
        restarts=int(fields.get("Restarts") or 0),
        may_requeue=fields.get("Requeue") == "1",
        partition=fields.get("Partition", ""),
        asked=fields.get("ReqNodeList", ""),
        excluded=fields.get("ExcNodeList", ""),
    )


def claim(attempt: Path) -> bool:
    """Whether this node is the first to ask Slurm something for all of an attempt: of several survivors one does."""
    try:
        with (attempt / _ASKED).open("x", encoding="utf-8"):
            return True
    except FileExistsError:
        return False


def remember(attempt: Path, said: Sequence[str]) -> None:
    """What was said of the end of an attempt: when the first node is lost, the job's log is lost to the others."""
    temporary = attempt / f".{_ASKED}"
    temporary.write_text(json.dumps({"schema_version": 1, "said": said}), encoding="utf-8")
    temporary.replace(attempt / _ASKED)


def remembered(attempt: Path) -> list[str]:
    """See `remember`; empty when nothing was said."""
    try:
        said: list[str] = json.loads((attempt / _ASKED).read_text(encoding="utf-8"))["said"]
    except (OSError, ValueError, KeyError):
        return []
    return said


def requeue(here: Allocation, limit: int, lost: str | None = None) -> tuple[bool, list[str]]:
    """Ask Slurm to start the job again, without the host `lost`. Whether it will, and what there is to say of it.

    From then on Slurm ends this job's processes, this one too.
    """
    # Slurm sends SIGTERM to every process of the step, and so to the commands that follow
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        record = _record(here)
        if record is None or not of_this_attempt(record, here):
            return False, [f"job {here.job_id} is no longer this one's to requeue"]
        if not record.may_requeue:
            return False, [f"Slurm has job {here.job_id} down as one that is not requeued (--no-requeue)"]
        answer = ask(["scontrol", "requeue", here.job_id])
        if answer.status:
            return False, [f"Slurm does not requeue job {here.job_id}: {answer.words}"]
        said = [f"job {here.job_id} is requeued ({here.restarts + 1} of {limit} times)"]
        return True, said + (_without(here, record, lost) if lost else [])
    except UserError as error:
        return False, [f"job {here.job_id} cannot be requeued: {error.problems[0].message}"]


def cancel(here: Allocation) -> None:
    """End the job, if Slurm still has this attempt of it; srun alone would wait for the task of a lost node for as long
    as Slurm does. Raises UserError."""
    record = _record(here)
    if record is not None and of_this_attempt(record, here):
        ask(["scancel", here.job_id])


def of_this_attempt(record: JobRecord, here: Allocation) -> bool:
    """Whether the job still runs as it did when this node's task began: a node that comes back after Slurm has started
    the job elsewhere must not end that one."""
    return (record.number, record.state, record.restarts) == (here.number, "RUNNING", here.restarts)


def _record(here: Allocation) -> JobRecord | None:
    answer = ask(["scontrol", "--oneliner", "show", "job", here.job_id])
    return None if answer.status else read_record(answer.output)


def _without(here: Allocation, record: JobRecord, lost: str) -> list[str]:
    """Keep the requeued job off a node."""
    if record.asked:
        return [f"it asks for its nodes by name, so {lost} is not excluded: it waits until that is back"]
    there, up = _others(record, lost)
    needed = len(here.hosts)
    if there < needed:
        only = f"partition {record.partition} has {there} other nodes and the job needs {needed}"
        return [f"{only}, so {lost} is not excluded: it waits until that is back"]
    excluded = ",".join(name for name in (record.excluded, lost) if name)
    answer = ask(["scontrol", "update", f"JobId={here.job_id}", f"ExcNodeList={excluded}"])
    if answer.status:
        return [f"{lost} could not be excluded: {answer.words}"]
    said = [f"it starts without {lost}, once Slurm itself counts that node as down (SlurmdTimeout)"]
    if up < needed:
        said.append(f"it waits longer than that: {up} other nodes of {record.partition} are up and it needs {needed}")
    return said


def _others(record: JobRecord, lost: str) -> tuple[int, int]:
    """How many nodes the job's partition has besides a lost and the excluded ones, and how many of those are up."""
    nodes = ask(["sinfo", "--noheader", "--Node", f"--partition={record.partition}", "--format=%N %t"])
    gone = ask(["scontrol", "show", "hostnames", ",".join(name for name in (record.excluded, lost) if name)])
    states = dict(line.split()[:2] for line in nodes.output.splitlines() if " " in line)
    left = [state for name, state in states.items() if name not in gone.output.split()]
    return len(left), sum(state.startswith(_UP) and not state.endswith("*") for state in left)
