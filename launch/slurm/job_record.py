"""A job as `scontrol show job` prints it, and whether it can ever start."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from launch.slurm.slurm_cli import try_command

_FIELD = re.compile(r"(\w+)=(\S*)")
# reasons for waiting that no end of another job clears (slurm.h, enum job_state_reason): the job itself has to change
_PERMANENT = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit|Inactive)|AccountNotAllowed|QOSNotAllowed|Invalid(Account|QOS)|BadConstraints"
    r"|DependencyNeverSatisfied|(Assoc|QOS)(Max|Min)\w*(PerJob|PerNode|WallDurationPerJob)\w*|JobHeldAdmin"
    # with accounts, in place of AccountNotAllowed and QOSNotAllowed (src/slurmctld/partition_mgr.c)
    r"|(Job's_(account|QOS)|User's_group)_not_permitted_to_use_this_partition.*"
)
_LOOKS, _PAUSE = 4, 0.7  # at a job that the scheduler has not considered yet; seconds between two


@dataclass(frozen=True)
class JobRecord:
    """A job as `scontrol show job` prints it; node lists are in Slurm's notation, "" if there is none."""

    number: int  # each task of an array has one of its own
    state: str
    restarts: int
    may_requeue: bool
    partition: str
    requested_nodes: str
    excluded_nodes: str
    features: str  # required of the nodes (--constraint)
    reason: str = ""  # why it waits
    time_limit: str = ""  # in Slurm's notation; UNLIMITED
    nodes: str = ""  # how many; 2-2 while it waits

    @property
    def can_never_start(self) -> bool:
        """Whether it waits for something that does not happen by itself."""
        return self.state == "PENDING" and bool(_PERMANENT.fullmatch(self.reason))


def parse_job_record(output: str) -> JobRecord:
    """Parse what `scontrol --oneliner show job` prints."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(output):
        fields.setdefault(name, "" if value == "(null)" else value)
    return JobRecord(
        number=int(fields.get("JobId") or 0),
        state=fields.get("JobState", ""),
        restarts=int(fields.get("Restarts") or 0),
        may_requeue=fields.get("Requeue") == "1",
        partition=fields.get("Partition", ""),
        requested_nodes=fields.get("ReqNodeList", ""),
        excluded_nodes=fields.get("ExcNodeList", ""),
        features=fields.get("Features", ""),
        reason=fields.get("Reason", "").removeprefix("None"),
        time_limit=fields.get("TimeLimit", ""),
        nodes=fields.get("NumNodes", "").partition("-")[0],
    )


def look_at_jobs(job_ids: Sequence[str]) -> dict[str, JobRecord]:
    """Read the records of jobs that were just submitted, by id; a job about which Slurm reports nothing is left out.

    A job without a reason yet gets two seconds, within which the scheduler usually considers it.
    """
    records: dict[str, JobRecord] = {}
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE)
        for job_id in job_ids:
            if job_id not in records or (records[job_id].state == "PENDING" and not records[job_id].reason):
                output = try_command(["scontrol", "--oneliner", "show", "job", job_id])
                if not output:
                    return records
                records[job_id] = parse_job_record(output.splitlines()[0])
        if all(record.reason or record.state != "PENDING" for record in records.values()):
            break
    return records
