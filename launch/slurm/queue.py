"""The user's jobs as squeue reports them: those that wait or run, and those that ended recently."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from launch.errors import Problem, UserError
from launch.slurm.durations import parse_duration
from launch.slurm.slurm_cli import SHORT_TIMEOUT, query_slurm, run_once

_FIELDS = (
    *("JobArrayID", "State", "Reason", "TimeLeft", "TimeUsed", "RestartCnt", "NumNodes", "NodeList", "EndTime"),
    *("SubmitTime", "Cluster", "Command"),
)
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_STARTED = ("RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING")


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
    command: str  # the path of its script
    submitted: str = ""  # unix seconds; a requeue renews it
    cluster: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.state in _WAITING

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
        hosts = f" on {self.hosts}" if self.holds_nodes and self.hosts else ""
        return f"job {self.job_id}, {state}{self.reason_suffix}{hosts}"

    @property
    def reason_suffix(self) -> str:
        """The reason why it waits as " (reason)"; empty if there is none."""
        return f" ({self.reason})" if self.is_waiting and self.reason not in ("", "None") else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.job_id,
            "state": self.state,
            "reason": self.reason if self.reason_suffix else None,
            "seconds_left": self.left,
            "restarts": self.restarts,
            "nodes": self.nodes,
            "hosts": self.hosts or None,
        }


def list_user_jobs(patient: bool = False) -> list[QueuedJob]:
    """List this user's jobs that Slurm still knows, one entry per task of an array.

    `patient` retries while Slurm is busy. Raises UserError: no_slurm, slurm_unresponsive.
    """
    fields = ",".join(f"{name}:|" for name in _FIELDS)
    argv = ["squeue", "--me", "--array", "--states=all", "--noheader", f"--Format={fields}"]
    environ = {**os.environ, "SLURM_TIME_FORMAT": "%s"}  # unix seconds, whatever format the user has set
    result = query_slurm(argv, environ=environ) if patient else run_once(argv, SHORT_TIMEOUT, environ)
    if result.status != 0:
        raise UserError(Problem("slurm_unresponsive", f"squeue failed: {result.message}"))
    return list(_parse(result.output))


def _parse(output: str) -> Iterator[QueuedJob]:
    for line in output.splitlines():
        parts = [part.strip() for part in line.rstrip().removesuffix("|").split("|", len(_FIELDS) - 1)]
        if len(parts) != len(_FIELDS):
            continue
        job_id, state, reason, left, used, restarts, nodes, hosts, end, submitted, cluster, command = parts
        if state == "COMPLETING" and not end[:1].isdigit():  # without an end time it was requeued
            state = "REQUEUED"
        seconds = parse_duration(left)
        yield QueuedJob(
            job_id=job_id,
            state=state,
            reason=reason,
            left=None if seconds is None or math.isinf(seconds) else seconds,
            used=parse_duration(used) or 0.0,
            restarts=int(restarts) if restarts.isdigit() else 0,
            nodes=int(nodes) if nodes.isdigit() else 0,
            hosts=hosts,
            command=command,
            submitted=submitted,
            cluster=cluster,
        )
