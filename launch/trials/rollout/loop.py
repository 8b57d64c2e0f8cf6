"""Takes the widths in order: a width that passed earlier is reused, a failed gate stops the rollout."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from launch.config.gates import GatesConfig
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.record.folder import Outcome
from launch.trials.measure import attempt
from launch.trials.measurement import Measurement, archive_earlier_try, read_measurement
from launch.trials.record import State
from launch.trials.rollout.gates import apply_gates
from launch.trials.rollout.gates.gate import GateCase
from launch.trials.rollout.projection import compute_efficiency, project
from launch.trials.rollout.record import RolloutRecord, WidthRun
from launch.trials.rollout.request import SubmitMode

_EXITS = {State.done: EXIT_DONE, State.interrupted: EXIT_INTERRUPTED}
_ENDED = (State.failed, State.interrupted)


@dataclass(frozen=True)
class WidthRunner:
    """Where and how a rollout runs its widths."""

    run: Callable[[WidthRun], Outcome]  # to the end of its steps, in a new folder; UserError if it cannot start
    cards: int = 0  # visible GPUs of a node
    card_gib: float | None = None  # memory of one GPU
    nodes: int = 1  # of this Slurm job
    submit: SubmitMode = SubmitMode.none  # which widths become jobs instead


def run_widths(
    record: RolloutRecord,
    runner: WidthRunner,
    gates: GatesConfig,
    on_change: Callable[[WidthRun], None],
    *,
    allow: Collection[str] = (),
    restart: bool = False,
    only: WidthRun | None = None,
) -> int:
    """Take every width in its turn; `on_change` is called with a width that has changed.

    `allow`: ids of gates whose failure stops nothing. `restart`: run widths again that passed earlier. `only`: the
    width that this job runs; those before it have run already.

    Returns the exit code: 0 when all widths, or `only`, passed; 3 when a gate failed or a width cannot run here; 130
    when interrupted. Raises UserError when the first width cannot be started.
    """
    before: Measurement | None = None
    waits_for: str | None = None

    def passes_gates(run: WidthRun) -> bool:
        """Whether the run in the width's folder, if there is one, passes."""
        run.measured = read_measurement(run.plan, record.steps, runner.card_gib)
        run.gate_results = () if run.measured is None else apply_gates(GateCase(run.measured, before, gates), allow)
        return run.measured is not None and not run.failed_gates

    def start(run: WidthRun) -> Measurement:
        archive_earlier_try(run.plan)
        runner.run(run)
        passes_gates(run)
        assert run.measured is not None  # the run wrote its outcome
        return run.measured

    for run in record.runs:
        run.reused = (not restart or only not in (None, run)) and passes_gates(run)
        if run.reused:
            run.state = State.done
        elif only not in (None, run):
            run.state, run.message = State.failed, "it has not passed, so no wider width may run"
        else:
            # once a width becomes a job, the wider ones, which wait for it, do as well
            run.message = _why_not_here(run, runner) or (waits_for if runner.submit.makes_jobs else None)
            run.measured, run.gate_results = None, ()
            if run.message is not None:
                run.state, waits_for = State.not_run, f"it waits for {run.label}"
            elif attempt(run, start, on_change, is_first=run is record.runs[0]) and run.state != State.interrupted:
                run.state, run.message = State.failed if run.failed_gates else State.done, None  # the gates decide
        before = run.measured if run.message is None else before
        _project(record)
        on_change(run)
        if run.state in _ENDED or run is only:
            break
    if record.state in _ENDED:
        _forget_jobs(record)
    return _EXITS.get(record.state if only is None else only.state, EXIT_STOPPED)


def _forget_jobs(record: RolloutRecord) -> None:
    """Reset the widths whose jobs Slurm has cancelled because a width before them failed."""
    for run in record.runs:
        if run.state == State.submitted:
            run.state, run.job_id = State.planned, None


def _why_not_here(run: WidthRun, runner: WidthRunner) -> str | None:
    width = run.plan.parallel.width
    if runner.submit == SubmitMode.all:
        return "it becomes a job"
    if width.nodes > runner.nodes:
        return f"it needs {width.nodes} machines"
    if width.device != "cuda" or width.local <= runner.cards:
        return None
    visible = {0: "no GPU", 1: "one GPU"}.get(runner.cards, f"{runner.cards} GPUs")
    needed = "one GPU" if width.local == 1 else f"{width.local} GPUs"
    return f"it needs {needed} and this machine has {visible}"


def _project(record: RolloutRecord) -> None:
    measured = [run.measured for run in record.runs if run.measured is not None]
    one_rank = next((measurement for measurement in measured if measurement.plan.batch.width == 1), None)
    for run in record.runs:
        run.projection = project(run.requested.ranks, run.label, measured, record.skip, record.price)
        if run.measured is not None and run.measured.finished:
            run.efficiency = compute_efficiency(run.measured, one_rank, record.skip)
