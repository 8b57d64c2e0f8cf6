"""Decides whether a job that ended early is requeued, and how its next start begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launch.errors import UserError
from launch.execution.record.checkpoints import Checkpoint
from launch.execution.record.lock import STALE, find_holder, lock_path
from launch.execution.resume import decide_start
from launch.execution.supervise.watch import build_watch_config
from launch.external import wait_until
from launch.planning.plan import Plan
from launch.slurm.allocation import Allocation
from launch.slurm.jobs import JobFolder
from launch.slurm.peers import LostNode, NodeFailure

_POLL = 0.5  # seconds
# Ids of causes in execution/diagnosis/known.yaml.
GPU_FAULT = "gpu_fault"
NETWORK_FAULT = "nccl_remote"
_RESTARTED = "restarted"
_NO_REQUEUE = "it was submitted with --no-requeue"
# Beginnings of the cause of ranks that were ended because of another node.
_SECONDARY_CAUSES = ("interrupted by ", "node ")


def last_checkpoint(plan: Plan) -> Checkpoint | None:
    """Return the newest complete checkpoint, from which a run that ends now would resume.

    No trainer writes one on demand at a step that all its ranks agree on (transformers'
    enable_jit_checkpoint lets each rank choose its own step).
    """
    return next(reversed(build_watch_config(plan).complete_checkpoints()), None)


def requeue_obstacle(
    plan: Plan,
    requeues: int,
    *,
    lost: LostNode | None,
    before: Checkpoint | None,
    now: Checkpoint | None,
    may_requeue: bool = True,
) -> str | None:
    """Return why a job that ran out of time, or `lost` a node, is not requeued; None if it is.

    `requeues` is how often launch has requeued it, `may_requeue` whether Slurm allows it. `before`
    and `now` are the last checkpoints at
    the attempt's start and end: without a newer one the time limit would end every attempt at the
    same step.
    """
    limit = plan.config.cluster.requeues
    if not may_requeue:
        return _NO_REQUEUE
    if requeues >= limit:
        return f"it was requeued {requeues} times, and cluster.requeues={limit}"
    if not plan.config.trainer.resumable:
        return f"runs of {plan.trainer} cannot be resumed"
    if lost:
        alone = "no node has seen another one: is `runs` on a file system that all nodes share?"
        return None if lost.met_others else alone
    return _checkpoint_obstacle(plan, before, now)


def _checkpoint_obstacle(
    plan: Plan, before: Checkpoint | None, now: Checkpoint | None
) -> str | None:
    """Return why another start would not get further than this one; None if it would."""
    if now is None:
        steps = plan.config.recipe.checkpoint_steps
        setting = "recipe.checkpoint_steps is not set"
        if steps:
            setting = f"recipe.checkpoint_steps={steps}"
        return f"there is no complete checkpoint ({setting})"
    if before is not None and (before.unit, before.number) == (now.unit, now.number):
        return (
            f"it wrote no checkpoint after {now.path.name}, from which it started, "
            "within its time limit"
        )
    return None


def retry_obstacle(plan: Plan, retries: int, *, may_requeue: bool = True) -> str | None:
    """Return why a job that a fault of the hardware ended is not started again; None if it is."""
    cluster = plan.config.cluster
    if not may_requeue:
        return _NO_REQUEUE
    if not cluster.requeues:
        return "cluster.requeues=0"
    if retries >= cluster.retries:
        count = f"it was started again {retries} times after such faults"
        return f"{count}, and cluster.retries={cluster.retries}"
    if not plan.config.trainer.resumable:
        return f"runs of {plan.trainer} cannot be resumed"
    return None


def find_hardware_fault(failures: Mapping[int, NodeFailure]) -> int | None:
    """Return the node rank to avoid after a fault of the hardware, None if there was no such fault.

    It is -1 if the faulty node is unknown. `failures` has what each node reported, by its rank. A
    broken link is a fault of the hardware only if no node reports an error of the run itself, which
    breaks the links of all others.
    """
    for rank, failure in sorted(failures.items()):
        if failure.cause_id == GPU_FAULT:
            return rank
    primary = [
        failure for failure in failures.values() if not failure.cause.startswith(_SECONDARY_CAUSES)
    ]
    causes = {failure.cause_id for failure in primary}
    return -1 if causes == {NETWORK_FAULT} else None


def plan_restart(plan: Plan, notify: Callable[[str], None]) -> Plan:
    """Return the plan with which a requeued job's first node starts.

    It resumes the previous attempt. If that has no checkpoint, it starts over, since no user is
    there to decide.
    """
    wait_for_lock(plan.folder, notify)
    try:
        decide_start(plan)
    except UserError as error:
        if error.problems[0].id != "nothing_to_resume":
            raise
        notify(f"{error.problems[0].message}: it starts over")
        return replace(plan, config=replace(plan.config, restart=True))
    return plan


@dataclass(frozen=True)
class RestartMark:
    """A file that records that this job has archived the older run, as restart=true requests.

    It is in the folder of the start of the job that archived it. Every start of the job has the
    same overrides; once the mark is set, what is in the run folder was written by this job.
    """

    plan: Plan
    allocation: Allocation

    @property
    def _attempts(self) -> list[Path]:
        """The folders of the starts of this job, the current one last."""
        folder = JobFolder.of_plan(self.plan)
        job_id = self.allocation.job_id
        restarts = self.allocation.restarts
        current = folder.attempt(job_id, restarts, self.allocation.started)
        return [*folder.earlier_attempts(job_id, restarts), current]

    @property
    def is_due(self) -> bool:
        """Whether an older run is still to be archived."""
        if not self.plan.config.restart:
            return False
        return not any((attempt / _RESTARTED).exists() for attempt in self._attempts)

    def set(self) -> None:
        """Record that the older run is archived."""
        if self.plan.config.restart:
            attempt = self._attempts[-1]
            attempt.mkdir(parents=True, exist_ok=True)
            (attempt / _RESTARTED).touch()

    @property
    def remaining_plan(self) -> Plan:
        """The plan, with restart=true only while the older run is still to be archived."""
        return replace(self.plan, config=replace(self.plan.config, restart=self.is_due))


def wait_for_lock(
    folder: Path,
    notify: Callable[[str], None],
    patience: float = STALE + 15.0,
    reason: str | None = None,
) -> None:
    """Wait up to `patience` seconds until the run folder is not locked; `reason` explains another
    holder.

    Slurm restarts a job when none of its processes is left. A lock that still exists belongs to a
    process on another machine that could not release it, and becomes stale.
    """
    path = lock_path(folder)
    holder = find_holder(path)
    if holder and reason:
        notify(f"{reason}: waiting at most {patience:.0f} s for {holder[0]}")
    elif holder:
        notify(
            f"waiting until the lock of {holder[0]} is stale, "
            f"{STALE:.0f} s after its last heartbeat"
        )
    wait_until(lambda: not find_holder(path), patience, _POLL)
