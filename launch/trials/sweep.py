"""A sweep: whole runs of every combination of a line's values, with one report of all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launch.config.compose import Composed, map_all
from launch.config.line import override_key
from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, refusal
from launch.execution.display import Display
from launch.execution.earlier_runs import note_earlier_run
from launch.execution.record.lock import run_lock
from launch.execution.record.run import command_for
from launch.execution.resume import is_finished
from launch.planning.build import plan_on_this_machine
from launch.planning.identity import compute_identity
from launch.planning.parallel import require_one_machine
from launch.planning.plan import Plan
from launch.trials.record import State, TrialRecord, TrialRun
from launch.trials.trial import Runner, finish_trial, refuse_failing_preflight, say_plan


@dataclass
class SweepRun(TrialRun):
    """The whole run of one combination, in the folder that `run` would give it."""

    overrides: Sequence[str] = ()  # the run's overrides that not all runs have
    was_done: bool = False  # whether an earlier call finished it

    @property
    def best_validation_loss(self) -> float | None:
        """The lowest validation loss; None without a validation."""
        validation = self.measured.outcome.validation if self.measured else None
        if validation is None or validation.best is None:
            return None
        return validation.best.eval_loss

    def json_fields(self) -> dict[str, Any]:
        validation = self.measured.outcome.validation if self.measured else None
        return {
            **super().json_fields(),
            "overrides": list(self.overrides),
            "validation_loss": validation.eval_loss if validation else None,
            "best_validation_loss": self.best_validation_loss,
        }


@dataclass
class SweepRecord(TrialRecord[SweepRun]):
    """A sweep and its runs so far."""

    planning_notes: Sequence[str] = ()
    verb = "sweep"

    def judge(self, run: SweepRun) -> None:
        if run.measured is None or run.measured.outcome.exit_code != EXIT_DONE:
            return
        # A run that stopped early with success has fewer steps than planned, and is done as well.
        run.state = State.done
        run.message = None
        run.reused = run.was_done
        run.seconds = run.measured.outcome.seconds

    @property
    def summary(self) -> list[str]:
        done = [run for run in self.runs if run.state == State.done]
        lines = [f"{len(done)} of {len(self.runs)} runs are done"]
        losses = {
            run.label: run.best_validation_loss
            for run in done
            if run.best_validation_loss is not None
        }
        if len(done) > 1 and len(losses) == len(done):
            best = min(losses, key=lambda label: losses[label])
            lines.append(f"The lowest validation loss is that of {best}: {losses[best]:.4f}")
        lines += [
            f"{run.label} {run.state.value}: {run.message}" for run in self.runs if run.message
        ]
        if len(done) > 1:
            first, *others = [run.plan.folder for run in done]
            names = " ".join(f"{folder.parent.name}/{folder.name}" for folder in others)
            command = f"{command_for('compare', first)} {names}"
            lines.append(f"`{command}` compares their settings, losses and speeds")
        return lines

    @property
    def notes(self) -> list[str]:
        return list(self.planning_notes)

    def json_fields(self) -> dict[str, Any]:
        keys = [override_key(override) for run in self.runs for override in run.overrides]
        return {**super().json_fields(), "options": {}, "keys": list(dict.fromkeys(keys))}


def run_sweep(
    configurations: Sequence[Composed], display: Display, run_one: Callable[[Plan], int]
) -> tuple[SweepRecord, int]:
    """Run every configuration to its end, one after another; `run_one` runs a plan as the verb
    `run` does.

    All runs are planned and checked before the first one starts, and run as they were planned. A
    failed run does not keep the next one from starting; an interrupt ends the sweep.

    Returns the record and the exit code: 0 all are done, 130 interrupted, else that of the first
    run that failed.
    Raises UserError when one of them cannot work.
    """
    record = plan_sweep(configurations)
    with run_lock(record.folder, display.say):
        say_plan(display, record, [f"  {len(record.runs)} runs"])
        remaining = [run.plan for run in record.runs if not run.was_done]
        refuse_failing_preflight(remaining, asks_parser=True)

        def start(run: SweepRun, seconds: float | None) -> None:
            number = record.runs.index(run) + 1
            overrides = " ".join(run.overrides)
            display.say(f"run {number} of {len(record.runs)}: {overrides}")
            run_one(run.plan)

        runner = Runner(record, display, start, reuse=False, raises=False)
        for run in record.runs:
            runner.take(run)
            if run.state == State.interrupted:
                break
        finish_trial(display, record)
    return record, _exit_code(record)


def plan_sweep(configurations: Sequence[Composed]) -> SweepRecord:
    """Plan every run. Raises UserError with the problems of all of them, each once; and:
    sweep_folder.
    """
    notes: list[str] = []
    names = [composed.config.name for composed in configurations]

    def plan(composed: Composed) -> Plan:
        require_one_machine(composed.config)
        name = composed.config.name
        if name and names.count(name) > 1:
            message = f"name={name} would give several runs of the sweep one folder"
            cure = "leave it out: each run's name has its identity"
            raise refusal("sweep_folder", message, "name", cure)
        planned = plan_on_this_machine(composed, is_swept=True)
        note_earlier_run(planned, notes.append)
        return planned

    plans = map_all(configurations, plan)
    shared = _shared_overrides([composed.origins.overrides for composed in configurations])
    runs: dict[str, SweepRun] = {}  # the runs by identity
    for composed, planned in zip(configurations, plans, strict=True):
        differing = [text for text in composed.origins.overrides if text not in shared]
        label = " ".join(_short_override(text) for text in differing)
        if planned.identity in runs:
            notes.append(f"{label} is the same run as {runs[planned.identity].label}")
            continue
        runs[planned.identity] = SweepRun(
            label,
            planned,
            overrides=differing,
            was_done=is_finished(planned),
        )
    first = next(iter(runs.values())).plan
    name = compute_identity({run.label: run.plan.identity for run in runs.values()}, {}, {})
    return SweepRecord(
        folder=first.runs / first.stage / f"sweep-{name}",
        plan=first,
        steps=sys.maxsize,  # every run takes all the steps that it has
        warmup=1,
        planning_notes=notes,
        runs=list(runs.values()),
    )


def _shared_overrides(lines: Sequence[Sequence[str]]) -> set[str]:
    """Return the overrides that every line of a sweep has."""
    first, *others = lines
    return set(first).intersection(*others)


def _short_override(override: str) -> str:
    """Return an override without the groups of its key: `lr=1e-5` for `recipe.lr=1e-5`."""
    name = override_key(override).rpartition(".")[2]
    value = override.partition("=")[2]
    return f"{name}={value}"


def _exit_code(record: SweepRecord) -> int:
    """Return 0 if all runs are done, 130 for an interrupt, else the first failed run's exit code."""
    if record.state == State.interrupted:
        return EXIT_INTERRUPTED
    for run in record.runs:
        code = run.measured.outcome.exit_code if run.measured else EXIT_FAILED
        if code:
            return code
    return EXIT_DONE
