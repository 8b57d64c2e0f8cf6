"""`node`: what a node's task of a Slurm job runs: the same supervisor as on one machine, around this node's ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from launch.commands.machine import this_machine
from launch.commands.run import carry_out, execution, say_finished
from launch.config.compose import Composed, compose
from launch.config.line import Line
from launch.config.schema import GuardsConfig
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, Problem, UserError
from launch.lifecycle.lock import held
from launch.lifecycle.model_folder import faults_of_model
from launch.lifecycle.resume import is_finished
from launch.planning.plan import Plan, build_plan
from launch.planning.rendezvous import Place, filled
from launch.redact import Redactor
from launch.runtime.events import Event
from launch.runtime.folder import Outcome, RunFolder, last_outcome
from launch.runtime.oversight import oversight
from launch.runtime.progress import Display, display_for
from launch.runtime.supervise import Execution, supervise
from launch.slurm.allocation import Allocation, this_allocation
from launch.slurm.ask import ask_once
from launch.slurm.jobs import JobFolder
from launch.slurm.peers import Lost, Peers, nodes_said
from launch.slurm.port import rendezvous_port
from launch.slurm.signpost import Signpost, read_signpost

_POLL = 0.2  # seconds


def node(line: Line) -> int:
    """Run this node's share of the composed stage. Raises UserError; returns the exit code of this node's task."""
    return compose(line, _node)


def _node(composed: Composed) -> int:
    here = this_allocation(os.environ)
    if here.restarts:  # what was asked of the first start: a requeued job goes on with what that one left
        composed = replace(composed, config=replace(composed.config, restart=False))
    plan = build_plan(composed, this_machine(composed))
    _refuse(plan, here)
    attempt = JobFolder.of(plan.runs, plan.stage, plan.name).path / f"{here.job_id}.{here.restarts}"
    peers = Peers(attempt, here.node_rank, len(here.hosts), plan.config.cluster.heartbeat, _end_this_node(here))
    cause: str | None = "it did not start"
    peers.start()
    try:
        lead = here.node_rank == 0
        code = _lead(plan, composed, here, attempt, peers) if lead else _follow(plan, here, attempt, peers)
        outcome = last_outcome(_record(plan, here))
        cause = (outcome.cause if outcome else None) or f"exit code {code}"
        cause = cause if code else None
    except UserError as error:
        cause = str(error.problems[0])
        raise
    finally:
        peers.finish(cause)
        if peers.lost and peers.lost.silent:  # srun would wait for that node's task for as long as Slurm does
            with contextlib.suppress(UserError):  # a container without Slurm's commands
                ask_once(["scancel", here.job_id])
    return code


def _end_this_node(here: Allocation) -> Callable[[Lost], None]:
    def end(lost: Lost) -> None:
        print(f"launch: {_told(lost, here)}", file=sys.stderr, flush=True)
        if threading.main_thread().is_alive():
            os.kill(os.getpid(), signal.SIGTERM)

    return end


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


def _lead(plan: Plan, composed: Composed, here: Allocation, attempt: Path, peers: Peers) -> int:
    """Node 0: checks, records, tells the others, shows the progress."""
    redactor = Redactor(os.environ)
    display = display_for(sys.stdout)
    for warning in plan.warnings:
        display.say(f"warning: {redactor.redact_text(str(warning))}")
    if is_finished(plan):
        say_finished(plan, display)
        Signpost(plan.identity).put_up(attempt)
        return EXIT_DONE

    def ranks(started: Plan, folder: RunFolder, display: Display, redactor: Redactor) -> Outcome:
        if len(here.hosts) == 1:
            return supervise(execution(started), folder, display, redactor)
        signpost = Signpost(started.identity, started.command, here.host, rendezvous_port(here.job_id))
        display.say(f"job {here.job_id} on {', '.join(here.hosts)}; rank 0 listens on {here.host}:{signpost.port}")
        signpost.put_up(attempt)
        outcome = supervise(_share(started, signpost, here), folder, display, redactor)
        return _with_the_others(outcome, peers, here)

    with held(plan.folder, display.say):
        return carry_out(plan, composed, redactor, display, ranks)


def _follow(plan: Plan, here: Allocation, attempt: Path, peers: Peers) -> int:
    """Any other node: waits for node 0's word and runs its share; its logs are in nodes/N of the run folder."""
    signpost = read_signpost(attempt)
    while signpost is None:
        time.sleep(_POLL)
        signpost = read_signpost(attempt)
    if signpost.identity != plan.identity:
        message = f"{here.host} plans {plan.identity} and {here.hosts[0]} {signpost.identity}"
        cure = "the nodes have different files: another checkout, configuration, or versions of the trainer's packages"
        raise UserError(Problem("nodes_differ", message, None, cure))
    if not signpost.command:
        return EXIT_DONE
    redactor = Redactor(os.environ)
    folder = RunFolder(_record(plan, here), redactor)
    folder.create()
    outcome = supervise(_share(plan, signpost, here), folder, _Quiet(here.host), redactor)
    folder.finish(_with_the_others(outcome, peers, here))
    return outcome.exit_code


def _record(plan: Plan, here: Allocation) -> Path:
    """Where a node's logs and its end are: the run folder for node 0, nodes/N in it for the others."""
    return plan.folder / "nodes" / str(here.node_rank) if here.node_rank else plan.folder


def _told(lost: Lost, here: Allocation) -> str:
    return f"node {here.hosts[lost.node_rank]} {'was lost' if lost.silent else 'failed'}: {lost.cause}"


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


def _with_the_others(outcome: Outcome, peers: Peers, here: Allocation) -> Outcome:
    """The outcome of this node; one that was ended because another node failed has that node's cause."""
    if outcome.exit_code == EXIT_DONE:
        return outcome
    if peers.lost is not None and outcome.exit_code == EXIT_INTERRUPTED:
        return replace(outcome, exit_code=EXIT_FAILED, cause=_told(peers.lost, here))
    others = nodes_said(peers.failures(), here.hosts)
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
