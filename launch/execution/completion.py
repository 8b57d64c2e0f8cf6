"""Decide whether a run is done: every planned step, a complete model, and every requested setting proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launch.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from launch.execution.display import describe_early_stop
from launch.execution.record.events import Event
from launch.execution.record.evidence import unmet_settings
from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome, read_validation
from launch.execution.record.reader import RunRecord
from launch.planning.model_folder import find_output_faults
from launch.planning.plan import Plan
from launch.worker.finding import Evidence

_MOST_FAULTS = 5  # in an outcome


def verify_completion(outcome: Outcome, plan: Plan, run: RunRecord) -> Outcome:
    """Return `outcome`, or a failed one when the trainer succeeded with fewer steps or without a complete model.

    `run`: where the trainer's own number of steps is.
    """
    if outcome.exit_code != EXIT_DONE:
        return outcome
    planned = run.total_steps or plan.config.recipe.max_steps
    outcome = replace(outcome, planned_steps=planned)
    faults = find_output_faults(plan.model_dir, plan.config.trainer.leaves)
    if faults:
        cause = f"the trainer exited without an error, but {plan.model_dir} is not a complete model: {faults[0]}"
        return replace(outcome, exit_code=EXIT_FAILED, cause=cause, detail=tuple(faults[1:_MOST_FAULTS]))
    if _read_early_stop(run, outcome.steps):
        planned = outcome.steps
    interval = plan.flags["logging_steps"].value if "logging_steps" in plan.flags else 1
    unlogged = interval - 1 if isinstance(interval, int) else 0  # steps after the last logged one
    if outcome.steps == 0 or (planned is not None and outcome.steps + unlogged < planned):
        of = f" of {planned}" if planned is not None else ""
        cause = f"the trainer exited without an error after {outcome.steps}{of} steps"
        return replace(outcome, exit_code=EXIT_FAILED, cause=cause, cause_id="too_few_steps")
    return outcome


def add_validation(outcome: Outcome, plan: Plan, folder: RunFolder) -> Outcome:
    """Return `outcome` with what the run measured on its validation data, or that its last step was not evaluated."""
    stop = _read_early_stop(RunRecord(folder.path), outcome.steps)
    loads_best = plan.config.recipe.early_stop is not None and outcome.exit_code == EXIT_DONE
    validation = read_validation(folder.path, loads_best=loads_best, early_stop=stop)
    outcome = replace(outcome, validation=validation)
    if outcome.exit_code != EXIT_DONE or plan.config.data.validation is None or "eval_strategy" in plan.config.flags:
        return outcome
    if validation is None or validation.step != outcome.steps:
        missing = f"the trainer did not evaluate its last step, {outcome.steps}"
        return replace(outcome, afterwards="; ".join(filter(None, (outcome.afterwards, missing))))
    return outcome


def verify_evidence(outcome: Outcome, evidence: Sequence[Evidence], allow: Sequence[str]) -> Outcome:
    """Return `outcome`, or a stopped one when a requested setting is refuted, or was never proven, at the end."""
    unmet = unmet_settings(evidence, allow)
    if outcome.exit_code != EXIT_DONE or not unmet:
        return outcome
    ids = ",".join(finding.id for finding in unmet)
    cause = f"the run ended, but {'; '.join(map(str, unmet))}; allow=[{ids}] accepts it"
    return replace(outcome, exit_code=EXIT_STOPPED, cause=cause, cause_id=unmet[0].id)


def _read_early_stop(run: RunRecord, step: int) -> str | None:
    """Return why the trainer stopped at this step; None if it did not report that it does."""
    entries = list(run.events("early_stop"))
    if not entries or entries[-1].get("step") != step:
        return None
    return describe_early_stop(Event("early_stop", 0.0, 0, entries[-1]))
