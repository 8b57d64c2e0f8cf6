"""`node`: what a node's task of a Slurm job runs: the same supervisor as on one machine, around this node's ranks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from launch.commands.machine import this_machine
from launch.commands.run import carry_out, execution, say_finished
from launch.config.compose import Composed, compose
from launch.config.line import Line
from launch.config.schema import GuardsConfig
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, Problem, UserError
from launch.lifecycle.attempts import with_earlier_steps
from launch.lifecycle.checkpoints import Checkpoint
from launch.lifecycle.lock import held
from launch.lifecycle.model_folder import faults_of_model
from launch.lifecycle.resume import is_finished
from launch.planning.plan import Plan, build_plan
from launch.planning.rendezvous import Place, filled
from launch.redact import Redactor
from launch.runtime.events import Event
from launch.runtime.folder import Outcome, RunFolder, last_outcome, status
from launch.runtime.oversight import oversight
from launch.runtime.progress import Display, display_for
from launch.runtime.supervise import Execution, supervise
from launch.slurm.allocation import Allocation, this_allocation
from launch.slurm.jobs import JobFolder
from launch.slurm.peers import Lost, Peers, nodes_said
from launch.slurm.port import rendezvous_port
from launch.slurm.requeue import cancel, claim, remember, remembered, requeue
from launch.slurm.signals import OWN, NodeSignals
from launch.slurm.signpost import Signpost, read_signpost
from launch.slurm.survival import last_checkpoint, started_again, why_not_again

_POLL = 0.2  # seconds
_SIGNALLED_WITHIN = 5.0  # seconds between Slurm's signals to the nodes of a job, at most
_TIME_IS_UP = "the time limit is near"


def node(line: Line) -> int:
    """Run this node's share of the composed stage. Raises UserError; returns the exit code of this node's task."""
    first = os.environ.get("SLURM_NODEID") == "0"
    signals = NodeSignals(lambda: _say(f"Slurm warns: {_TIME_IS_UP}") if first else None)
    with signals.heard():
        return compose(line, lambda composed: _node(composed, signals))


@dataclass(frozen=True)
class _Task:
    """What a node's task knows: its place in the job, the folder of this start of the job, the other nodes."""

    plan: Plan
    here: Allocation
    attempt: Path
    peers: Peers
    signals: NodeSignals

    @property
    def leads(self) -> bool:
        return self.here.node_rank == 0

    @property
    def record(self) -> Path:
        """Where a node's logs and its end are: the run folder for node 0, nodes/N in it for the others."""
        return self.plan.folder if self.leads else self.plan.folder / "nodes" / str(self.here.node_rank)

    def told(self, lost: Lost) -> str:
        return f"node {self.here.hosts[lost.node_rank]} {'was lost' if lost.silent else 'failed'}: {lost.cause}"


def _node(composed: Composed, signals: NodeSignals) -> int:
    here = this_allocation(os.environ)
    if here.restarts:  # what was asked of the first start: a requeued job goes on with what that one left
        composed = replace(composed, config=replace(composed.config, restart=False))
    plan = build_plan(composed, this_machine(composed))
    _refuse(plan, here)
    attempt = JobFolder.of(plan.runs, plan.stage, plan.name).path / f"{here.job_id}.{here.restarts}"

    def lost(found: Lost) -> None:
        if found.cause.startswith("interrupted by "):  # so is this node, very likely: Slurm signals all at once
            signals.end(after=_SIGNALLED_WITHIN)
            return
        _say(task.told(found))
        signals.end()

    peers = Peers(attempt, here.node_rank, len(here.hosts), plan.config.cluster.heartbeat, lost)
    task = _Task(plan, here, attempt, peers, signals)
    before = last_checkpoint(plan) if task.leads else None
    cause: str | None = "it did not start"
    code = EXIT_REFUSED
    peers.start()
    try:
        code = _lead(task, composed) if task.leads else _follow(task)
        outcome = last_outcome(task.record)
        cause = ((outcome.cause if outcome else None) or f"exit code {code}") if code else None
    except UserError as error:
        cause = str(error.problems[0])
        raise
    finally:
        peers.settle(cause)
        _survive(task, code, before)
        peers.finish()
    return code


def _say(text: str) -> None:
    print(f"launch: {text}", file=sys.stderr, flush=True)


def _survive(task: _Task, code: int, before: Checkpoint | None) -> None:
    """At the end of this node's share: start the job again where that is worth it. A job that lost a node is ended in
    any case: srun would wait for that node's task for as long as Slurm does."""
    lost = task.peers.lost if task.peers.lost and task.peers.lost.silent else None
    time_is_up = task.leads and task.signals.time_is_up and code == EXIT_INTERRUPTED
    if not (lost or time_is_up) or not claim(task.attempt):
        return
    here, now = task.here, last_checkpoint(task.plan)
    said = [task.told(lost)] if lost else [_TIME_IS_UP]
    again = False
    if code != EXIT_DONE:
        why_not = why_not_again(task.plan, here, lost=lost is not None, before=before, now=now)
        if why_not is None:
            again, told = requeue(here, task.plan.config.cluster.requeues, here.hosts[lost.node_rank] if lost else None)
        else:
            told = [f"job {here.job_id} is not requeued: {why_not}"]
        goes_on = f"goes on from {now.path.name}" if now else "has no checkpoint to go on from"
        said += told if again else [*told, f"submitted again, this run {goes_on}"]
        remember(task.attempt, said)
        _say("; ".join(said))
    if lost and lost.node_rank == 0:
        _record_for_the_first(task)
    if lost and not again:
        with contextlib.suppress(UserError):  # a container without Slurm's commands
            cancel(here)


def _record_for_the_first(task: _Task) -> None:
    """The end of a run whose first node, which keeps its record, was lost."""
    outcome = last_outcome(task.record)
    folder = RunFolder(task.plan.folder, Redactor(os.environ))
    if outcome is not None and status(folder.path) == "unfinished":
        folder.finish(with_earlier_steps(outcome, folder.metrics))


def _refuse(plan: Plan, here: Allocation) -> None:
    """Raises UserError (`other_allocation`, `plan_changed`, `incomplete_model`)."""
    nodes = plan.parallel.width.nodes
    if len(here.hosts) != nodes:
        message = f"job {here.job_id} has {len(here.hosts)} nodes and the plan {nodes}"
        raise UserError(Problem("other_allocation", message, "nodes", "say the same nodes= as #SBATCH --nodes"))
    submitted = os.environ.get("LAUNCH_PLAN", plan.identity)
    if submitted != plan.identity:
        message = f"this plan is {plan.identity} and {submitted} was submitted: a configuration, upstream's source or "
        cure = "submit it again; a script changed by hand leaves LAUNCH_PLAN and name= out"
        raise UserError(Problem("plan_changed", f"{message}an input changed since", "LAUNCH_PLAN", cure))
    model = plan.inputs.model
    if model.local and not model.build:
        faults = faults_of_model(model.local)
        if faults:
            raise UserError(Problem("incomplete_model", f"{model.local} is no complete model: {faults[0]}"))


def _lead(task: _Task, composed: Composed) -> int:
    """Node 0: checks, records, tells the others, shows the progress."""
    plan, here = task.plan, task.here
    redactor = Redactor(os.environ)
    display = display_for(sys.stdout)
    for warning in plan.warnings:
        display.say(f"warning: {redactor.redact_text(str(warning))}")
    if is_finished(plan):
        say_finished(plan, display)
        Signpost(plan.identity).put_up(task.attempt)
        return EXIT_DONE
    if here.restarts:
        before = task.attempt.with_name(f"{here.job_id}.{here.restarts - 1}")
        display.say("; ".join([f"restart {here.restarts} of job {here.job_id}", *remembered(before)]))
        plan = started_again(plan, display.say)

    def ranks(started: Plan, folder: RunFolder, display: Display, redactor: Redactor) -> Outcome:
        share = execution(started)
        if len(here.hosts) > 1:
            signpost = Signpost(started.identity, started.command, here.host, rendezvous_port(here.job_id))
            display.say(f"job {here.job_id} on {', '.join(here.hosts)}; rank 0 listens on {here.host}:{signpost.port}")
            signpost.put_up(task.attempt)
            share = _share(started, signpost, here)
        with task.signals.while_ranks_run():
            outcome = supervise(share, folder, display, redactor)
        return _ended(task, outcome)

    with held(plan.folder, display.say):
        return carry_out(plan, composed, redactor, display, ranks)


def _follow(task: _Task) -> int:
    """Any other node: waits for node 0's word and runs its share; its logs are in nodes/N of the run folder."""
    plan, here = task.plan, task.here
    signpost = read_signpost(task.attempt)
    while signpost is None:
        time.sleep(_POLL)
        signpost = read_signpost(task.attempt)
    if signpost.identity != plan.identity:
        message = f"{here.host} plans {plan.identity} and {here.hosts[0]} {signpost.identity}"
        cure = "the nodes have different files: another checkout, configuration, or versions of the trainer's packages"
        raise UserError(Problem("nodes_differ", message, None, cure))
    if not signpost.command:
        return EXIT_DONE
    redactor = Redactor(os.environ)
    folder = RunFolder(task.record, redactor)
    folder.create()
    with task.signals.while_ranks_run():
        outcome = supervise(_share(plan, signpost, here), folder, _Quiet(here.host), redactor)
    folder.finish(_ended(task, outcome))
    return outcome.exit_code


def _share(plan: Plan, signpost: Signpost, here: Allocation) -> Execution:
    """This node's ranks. Node 0 has the trainer's numbers, so the guards that judge them are its own."""
    local = plan.parallel.width.local
    ranks = tuple(range(here.node_rank * local, (here.node_rank + 1) * local))
    watched = oversight(plan)
    watched = replace(watched, setup=replace(watched.setup, ranks=ranks))
    if here.node_rank and plan.config.guards is not None:
        blind = GuardsConfig(None, None, None, None, plan.config.guards.dead_rank, None, None, None)
        watched = replace(watched, guards=blind)
    place = Place(here.node_rank, signpost.host, signpost.port)
    return replace(execution(plan), argv=filled(signpost.command, place), ranks=ranks, oversight=watched)


def _ended(task: _Task, outcome: Outcome) -> Outcome:
    """The outcome of this node's ranks, with what the other nodes and Slurm know of it: ranks that were ended because
    another node failed have that node's cause, and so have those that fell over the connection to a lost one."""
    if outcome.exit_code == EXIT_DONE:
        return outcome
    task.peers.settle(outcome.cause)
    lost, ended = task.peers.lost, outcome.cause == OWN
    own = (outcome.cause,) if outcome.cause and not ended else ()
    if lost is not None and lost.silent:
        return replace(outcome, exit_code=EXIT_FAILED, cause=task.told(lost), detail=(*own, *outcome.detail))
    if task.signals.time_is_up and outcome.exit_code in (EXIT_FAILED, EXIT_INTERRUPTED):
        return replace(outcome, exit_code=EXIT_INTERRUPTED, cause=_TIME_IS_UP, detail=(*own, *outcome.detail))
    if lost is not None and ended:
        return replace(outcome, exit_code=EXIT_FAILED, cause=task.told(lost))
    blamed = f"node {task.here.host} "  # those that only say that this one failed
    failures = {rank: cause for rank, cause in task.peers.failures().items() if not cause.startswith(blamed)}
    others = nodes_said(failures, task.here.hosts)
    return replace(outcome, detail=(*outcome.detail, *others)) if others else outcome


class _Quiet:
    """The display of a node that is not the first: only what is said, with the node's name."""

    def __init__(self, host: str) -> None:
        self._host = host

    def start(self, total: int | None) -> None:
        """Node 0 shows the progress."""

    def show(self, event: Event) -> None:
        """Node 0 shows the progress."""

    def refresh(self) -> None:
        """Nothing is shown in place."""

    def say(self, text: str) -> None:
        print("\n".join(f"{self._host}: {line}" for line in text.splitlines()), flush=True)

    def close(self) -> None:
        """Nothing is shown in place."""
