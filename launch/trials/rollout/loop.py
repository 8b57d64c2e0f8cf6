"""Takes the widths in order: a width that passed earlier is reused, a failed gate stops the rollout."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from launch.config.gates import GatesConfig
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError
from launch.execution.record.folder import Outcome
from launch.trials.measurement import Measurement, archive_earlier_try, read_measurement
from launch.trials.rollout.gates import apply_gates
from launch.trials.rollout.gates.gate import GateCase
from launch.trials.rollout.projection import compute_efficiency, project
from launch.trials.rollout.record import RolloutRecord, WidthRecord, WidthState
from launch.trials.rollout.request import SubmitMode
from launch.trials.rollout.widths import PlannedWidth

_EXITS = {WidthState.passed: EXIT_DONE, WidthState.interrupted: EXIT_INTERRUPTED}


@dataclass(frozen=True)
class WidthRunner:
    """Where and how a rollout runs its widths."""

    run: Callable[[PlannedWidth], Outcome]  # to the end of its steps, in a new folder; UserError if it cannot start
    cards: int = 0  # visible GPUs of a node
    card_gib: float | None = None  # memory of one GPU
    nodes: int = 1  # of this Slurm job
    submit: SubmitMode = SubmitMode.none  # which widths become jobs instead


def run_widths(
    record: RolloutRecord,
    runner: WidthRunner,
    gates: GatesConfig,
    on_change: Callable[[WidthRecord], None],
    *,
    allow: Collection[str] = (),
    restart: bool = False,
    only: WidthRecord | None = None,
) -> int:
    """Take every width in its turn; `on_change` is called with a width that has changed.

    `allow`: ids of gates whose failure stops nothing. `restart`: run widths again that passed earlier. `only`: the
    width that this job runs; those before it have run already.

    Returns the exit code: 0 when all widths, or `only`, passed; 3 when a gate failed or a width cannot run here; 130
    when interrupted. Raises UserError when the first width cannot be started.
    """
    before: Measurement | None = None
    waits_for: str | None = None

    def passes_gates(width: WidthRecord) -> bool:
        """Whether the run in the width's folder, if there is one, passes."""
        width.measured = read_measurement(width.planned.plan, record.steps, runner.card_gib)
        now = width.measured
        width.gate_results = () if now is None else apply_gates(GateCase(now, before, gates), allow)
        return now is not None and not width.failed_gates

    for width in record.widths:
        width.reused = (not restart or only not in (None, width)) and passes_gates(width)
        if width.reused:
            width.state = WidthState.passed
        elif only not in (None, width):
            width.state, width.why = WidthState.stopped, "it has not passed, so no wider width may run"
        else:
            # once a width becomes a job, the wider ones, which wait for it, do as well
            width.why = _why_not_here(width.planned, runner) or (waits_for if runner.submit.makes_jobs else None)
            width.measured, width.gate_results = None, ()
            if width.why is not None:
                width.state, waits_for = WidthState.not_run, f"it waits for {width.planned.label}"
            else:
                _run_width(width, record, runner, passes_gates, on_change)
        before = width.measured if width.why is None else before
        _project(record)
        on_change(width)
        if width.state in (WidthState.stopped, WidthState.interrupted) or width is only:
            break
    if record.state in (WidthState.stopped, WidthState.interrupted):
        _forget_jobs(record)
    return _EXITS.get(record.state if only is None else only.state, EXIT_STOPPED)


def _forget_jobs(record: RolloutRecord) -> None:
    """Reset the widths whose jobs Slurm has cancelled because a width before them failed."""
    for width in record.widths:
        if width.state == WidthState.submitted:
            width.state, width.job_id = WidthState.planned, None


def _run_width(
    width: WidthRecord,
    record: RolloutRecord,
    runner: WidthRunner,
    passes_gates: Callable[[WidthRecord], bool],
    on_change: Callable[[WidthRecord], None],
) -> None:
    width.state = WidthState.running
    on_change(width)
    archive_earlier_try(width.planned.plan)
    try:
        outcome = runner.run(width.planned)
    except UserError as error:
        width.state, width.why = WidthState.stopped, "; ".join(str(problem) for problem in error.problems)
        if width is record.widths[0]:
            on_change(width)
            raise  # nothing was started
        return
    passed = passes_gates(width)
    if outcome.exit_code == EXIT_INTERRUPTED:
        width.state = WidthState.interrupted
    else:
        width.state = WidthState.passed if passed else WidthState.stopped


def _why_not_here(planned: PlannedWidth, runner: WidthRunner) -> str | None:
    width = planned.plan.parallel.width
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
    measured = [width.measured for width in record.widths if width.measured is not None]
    one_rank = next((measurement for measurement in measured if measurement.plan.batch.width == 1), None)
    for width in record.widths:
        width.projection = project(width.planned.ranks, width.planned.label, measured, record.skip, record.price)
        if width.measured is not None and width.measured.finished:
            width.efficiency = compute_efficiency(width.measured, one_rank, record.skip)
