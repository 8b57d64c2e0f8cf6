"""A sweep: whole runs of every combination of a line's values, one after another, in one report
with their curves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.config.compose import Composed, map_all
from launch.config.line import override_key
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, refusal
from launch.execution.display import Display
from launch.execution.earlier_runs import note_earlier_run
from launch.execution.record.lock import run_lock
from launch.execution.record.run import command_for
from launch.execution.resume import is_finished
from launch.planning.identity import compute_identity
from launch.planning.machine import this_machine
from launch.planning.parallel import require_one_machine
from launch.planning.plan import Plan, build_plan
from launch.trials.record import State, TrialRecord, TrialRun
from launch.trials.trial import Runner, refuse_failing_preflight, say_document, say_plan


@dataclass
class SweepRun(TrialRun):
    """The whole run of one combination, in the folder that `run` would give it."""

    composed: Composed = field(kw_only=True)
    overrides: Sequence[str] = ()  # those in which the runs differ
    was_done: bool = False  # by an earlier call

    def as_json(self) -> dict[str, Any]:
        validation = self.measured.outcome.validation if self.measured else None
        return {
            **super().as_json(),
            "overrides": list(self.overrides),
            "validation_loss": validation.eval_loss if validation else None,
            "best_validation_loss": validation.best.eval_loss
            if validation and validation.best
            else None,
        }


@dataclass
class SweepRecord(TrialRecord[SweepRun]):
    """A sweep, as far as it has come."""

    planning_notes: Sequence[str] = ()
    verb = "sweep"

    def judge(self, run: SweepRun) -> None:
        # it may have stopped early
        if run.measured is not None and run.measured.outcome.exit_code == EXIT_DONE:
            run.state, run.message, run.reused = State.done, None, run.was_done
            run.seconds = run.measured.outcome.seconds

    @property
    def summary(self) -> list[str]:
        done = [run for run in self.runs if run.state == State.done]
        lines = [f"{len(done)} of {len(self.runs)} runs are done"]
        losses = {run.label: run.as_json()["best_validation_loss"] for run in done}
        if len(done) > 1 and None not in losses.values():
            best = min(losses, key=lambda label: float(losses[label]))
            lines.append(f"the lowest validation loss is that of {best}: {losses[best]:.4f}")
        lines += [
            f"{run.label} {run.state.value}: {run.message}" for run in self.runs if run.message
        ]
        if len(done) > 1:
            first, *others = [run.plan.folder for run in done]
            names = " ".join(f"{folder.parent.name}/{folder.name}" for folder in others)
            lines.append(
                f"`{command_for('compare', first)} {names}` compares their settings, losses and "
                "speeds"
            )
        return lines

    @property
    def notes(self) -> list[str]:
        return list(self.planning_notes)

    def contents(self) -> dict[str, Any]:
        return {
            "options": {},
            "keys": list(
                dict.fromkeys(override_key(text) for run in self.runs for text in run.overrides)
            ),
        }


def run_sweep(
    configurations: Sequence[Composed], display: Display, run_one: Callable[[Composed], int]
) -> tuple[SweepRecord, int]:
    """Run every configuration to its end, one after another; `run_one` runs one as the verb `run`
    does.

    All are planned and checked before the first starts. A run that fails ends no other; an
    interrupt ends the sweep.
    Returns the record and the exit code: 0 all are done, 130 interrupted, else that of the first
    run that failed.
    Raises UserError when one of them cannot work.
    """
    record = plan_sweep(configurations)
    with run_lock(record.folder, display.say):
        say_plan(display, record, [f"  {len(record.runs)} runs"])
        refuse_failing_preflight(
            (run.plan for run in record.runs if not run.was_done), asks_parser=True
        )

        def start(run: SweepRun, seconds: float | None) -> None:
            display.say(
                f"run {record.runs.index(run) + 1} of {len(record.runs)}: {' '.join(run.overrides)}"
            )
            run_one(run.composed)

        runner = Runner(record, display, start, reuse=False, raises=False)
        for run in record.runs:
            runner.take(run)
            if run.state == State.interrupted:
                break
        say_document(display, record)
    return record, _exit_code(record)


def plan_sweep(configurations: Sequence[Composed]) -> SweepRecord:
    """Plan every run. Raises UserError with the problems of all of them, each once; and:
    sweep_folder.
    """
    notes, names = list[str](), [composed.config.name for composed in configurations]

    def plan(composed: Composed) -> Plan:
        require_one_machine(composed.config)
        name = composed.config.name
        if name and names.count(name) > 1:
            message = f"name={name} would give several runs of the sweep one folder"
            raise refusal(
                "sweep_folder", message, "name", "leave it out: each run's name has its identity"
            )
        planned = build_plan(composed, this_machine(composed))
        note_earlier_run(planned, notes.append)
        return planned

    lines = [composed.origins.overrides for composed in configurations]
    differing = [
        [text for text in line if not all(text in other for other in lines)] for line in lines
    ]
    runs: dict[str, SweepRun] = {}
    for composed, planned, own in zip(
        configurations, map_all(configurations, plan), differing, strict=True
    ):
        label = " ".join(
            f"{override_key(text).rpartition('.')[2]}={text.partition('=')[2]}" for text in own
        )
        if planned.identity in runs:
            notes.append(f"{label} is the same run as {runs[planned.identity].label}")
            continue
        run = SweepRun(
            label, planned, composed=composed, overrides=own, was_done=is_finished(planned)
        )
        runs[planned.identity] = run
    first = next(iter(runs.values())).plan
    name = compute_identity({run.label: run.plan.identity for run in runs.values()}, {}, {})
    steps = sys.maxsize  # all that a run has
    folder = first.runs / first.stage / f"sweep-{name}"
    return SweepRecord(folder, first, steps, 1, notes, runs=list(runs.values()))


def _exit_code(record: SweepRecord) -> int:
    if record.state == State.interrupted:
        return EXIT_INTERRUPTED
    codes = [run.measured.outcome.exit_code if run.measured else EXIT_FAILED for run in record.runs]
    return next(filter(None, codes), EXIT_DONE)
