"""Jobs as Slurm reports them: the user's jobs in squeue, and one job in `scontrol show job`.

A job's comment ends in a tag of the folder that its script works in, which squeue shows of pending
jobs, of the tasks of arrays and after requeues.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from launch.digests import digest_text
from launch.errors import refusal
from launch.external import wait_until
from launch.slurm.slurm_cli import SHORT_TIMEOUT, parse_duration, query_slurm, run_once, try_command

_FIELDS = (
    "JobArrayID",
    "State",
    "Reason",
    "TimeLeft",
    "TimeUsed",
    "RestartCnt",
    "NumNodes",
    "NodeList",
    "EndTime",
    "SubmitTime",
    "Cluster",
    "UserName",
    "Comment",
)
_TAG = re.compile(r"\blaunch:[0-9a-f]{12}\b")
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_HELD = ("REQUEUE_HOLD", "SPECIAL_EXIT")
# JobHeldUser, JobHoldMaxRequeue, "job requeued in held state", "launch failed requeued held"
_HELD_REASON = re.compile(r"^JobH[eo]ld|\bheld\b")
_STARTED = (
    "RUNNING",
    "CONFIGURING",
    "COMPLETING",
    "STAGE_OUT",
    "SIGNALING",
    "STOPPED",
    "SUSPENDED",
    "RESIZING",
)


@dataclass(frozen=True)
class QueuedJob:
    """A job of the user that Slurm still knows."""

    job_id: str  # 12, or 12_3 for a task of an array
    state: str
    reason: str  # why it waits
    left: float | None  # seconds of its time limit that remain; None: no limit
    used: float  # seconds
    restarts: int  # how often Slurm requeued it
    nodes: int
    hosts: str  # in Slurm's notation: n[1-2]
    tag: str  # of the folder of its script; "" if its comment has none
    submitted: str = ""  # unix seconds; a requeue renews it
    cluster: str = ""
    user: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.state in _WAITING

    @property
    def is_held(self) -> bool:
        """Whether it waits for something that does not happen by itself, as for a release."""
        is_held = self.state in _HELD or bool(_HELD_REASON.search(self.reason))
        return self.is_waiting and (is_held or bool(_PERMANENT.fullmatch(self.reason)))

    @property
    def holds_nodes(self) -> bool:
        return self.state in _STARTED

    @property
    def is_requeued(self) -> bool:
        return self.is_waiting and bool(self.restarts or self.state.startswith("REQUEUE"))

    @property
    def is_live(self) -> bool:
        return self.is_waiting or self.holds_nodes

    def __str__(self) -> str:
        state = "requeued" if self.is_requeued else self.state.lower()
        if self.is_held:
            state = "held"
        hosts = f" on {self.hosts}" if self.holds_nodes and self.hosts else ""
        return f"job {self.job_id}, {state}{self.reason_suffix}{hosts}"

    @property
    def reason_suffix(self) -> str:
        """The reason why it waits as " (reason)"; empty if there is none."""
        return f" ({self.reason})" if self.is_waiting and self.reason not in ("", "None") else ""

    def json_fields(self) -> dict[str, Any]:
        return {
            "id": self.job_id,
            "state": self.state,
            "reason": self.reason if self.reason_suffix else None,
            "seconds_left": self.left,
            "restarts": self.restarts,
            "nodes": self.nodes,
            "hosts": self.hosts or None,
        }


def list_user_jobs(patient: bool = False, users: Collection[str] = ()) -> list[QueuedJob]:
    """List this user's jobs that Slurm still knows, one entry per task of an array.

    `users` are others whose jobs are listed as well. `patient` retries while Slurm is busy.

    Raises UserError: no_slurm, slurm_unresponsive.
    """
    fields = ",".join(f"{name}:|" for name in _FIELDS)
    whose = f"--user={','.join([str(os.getuid()), *sorted(users)])}" if users else "--me"
    argv = ["squeue", whose, "--array", "--states=all", "--noheader", f"--Format={fields}"]
    # Times are in unix seconds, whatever format the user has set.
    environ = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    query = query_slurm if patient else partial(run_once, timeout=SHORT_TIMEOUT)
    result = query(argv, environ=environ)
    if result.status != 0:
        raise refusal("slurm_unresponsive", f"squeue failed: {result.message}")
    return list(_parse_jobs(result.output))


def _parse_jobs(squeue_output: str) -> Iterator[QueuedJob]:
    for line in squeue_output.splitlines():
        # The comment comes last and may itself contain the separator.
        parts = line.rstrip().removesuffix("|").split("|", len(_FIELDS) - 1)
        if len(parts) != len(_FIELDS):
            continue
        fields = {name: part.strip() for name, part in zip(_FIELDS, parts, strict=True)}
        state = fields["State"]
        has_end_time = fields["EndTime"][:1].isdigit()
        if state == "COMPLETING" and not has_end_time:
            state = "REQUEUED"
        left = parse_duration(fields["TimeLeft"])
        if left == math.inf:
            left = None
        yield QueuedJob(
            job_id=fields["JobArrayID"],
            state=state,
            reason=fields["Reason"],
            left=left,
            used=parse_duration(fields["TimeUsed"]) or 0.0,
            restarts=_parse_count(fields["RestartCnt"]),
            nodes=_parse_count(fields["NumNodes"]),
            hosts=fields["NodeList"],
            tag=find_tag(fields["Comment"]),
            submitted=fields["SubmitTime"],
            cluster=fields["Cluster"],
            user=fields["UserName"],
        )


def folder_tag(folder: Path) -> str:
    """Return the tag of a job folder, the same under each of the folder's names."""
    return f"launch:{digest_text(os.path.realpath(folder))[:12]}"


def find_tag(comment: str) -> str:
    """Return the tag in a job's comment; "" if there is none."""
    tags = _TAG.findall(comment)
    return tags[-1] if tags else ""


def _parse_count(text: str) -> int:
    return int(text) if text.isdigit() else 0


_FIELD = re.compile(r"(\w+)=(\S*)")
# Reasons for waiting that do not pass when another job ends (slurm.h, enum job_state_reason): the job
# itself has to change.
_PERMANENT = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit|Inactive)"
    r"|AccountNotAllowed|QOSNotAllowed|Invalid(Account|QOS)|BadConstraints"
    r"|DependencyNeverSatisfied|JobHeldAdmin"
    r"|(Assoc|QOS)(Max|Min)\w*(PerJob|PerNode|WallDurationPerJob)\w*"
    # Slurm with accounts reports these in place of AccountNotAllowed and QOSNotAllowed
    # (src/slurmctld/partition_mgr.c).
    r"|(Job's_(account|QOS)|User's_group)_not_permitted_to_use_this_partition.*"
)
_CONSIDERED = 2.1  # seconds within which the scheduler usually considers a job
_PAUSE = 0.7  # seconds between two queries of it


@dataclass(frozen=True)
class JobRecord:
    """A job as `scontrol show job` prints it."""

    number: int  # each task of an array has its own number
    state: str
    restarts: int
    may_requeue: bool
    partition: str
    reason: str = ""  # why it waits
    time_limit: str = ""  # in Slurm's notation; UNLIMITED
    preempted_at: str = ""  # when its preemption began; None or "" if it is not preempted

    @property
    def is_considered(self) -> bool:
        """Whether the scheduler has started it, or gives a reason why it waits."""
        return self.state != "PENDING" or bool(self.reason)

    @property
    def is_preempted(self) -> bool:
        """Whether it was preempted, or is in the grace period before that."""
        return self.state == "PREEMPTED" or self.preempted_at[:1].isdigit()

    @property
    def can_never_start(self) -> bool:
        """Whether it waits for something that does not happen by itself."""
        return self.state == "PENDING" and bool(_PERMANENT.fullmatch(self.reason))


def parse_job_record(output: str) -> JobRecord:
    """Parse what `scontrol --oneliner show job` prints."""
    fields = defaultdict[str, str](str)
    for name, value in _FIELD.findall(output):
        fields.setdefault(name, "" if value == "(null)" else value)
    return JobRecord(
        number=int(fields["JobId"] or 0),
        state=fields["JobState"],
        restarts=int(fields["Restarts"] or 0),
        may_requeue=fields["Requeue"] == "1",
        partition=fields["Partition"],
        reason=fields["Reason"].removeprefix("None"),
        time_limit=fields["TimeLimit"],
        preempted_at=fields["PreemptTime"],
    )


def look_at_jobs(job_ids: Sequence[str]) -> dict[str, JobRecord]:
    """Read the records of jobs that were just submitted, by id.

    A job about which Slurm reports nothing is left out. A job that waits without a reason is
    queried again for two seconds.
    """
    records: dict[str, JobRecord] = {}

    def are_considered() -> bool:
        for job_id in job_ids:
            if job_id in records and records[job_id].is_considered:
                continue
            output = try_command(["scontrol", "--oneliner", "show", "job", job_id])
            if not output:
                return True
            records[job_id] = parse_job_record(output.splitlines()[0])
        return all(record.is_considered for record in records.values())

    wait_until(are_considered, _CONSIDERED, _PAUSE)
    return records
