"""`run`: plan, preflight, run, watch, record."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from omegaconf import OmegaConf

from launch import project
from launch.commands.machine import this_machine
from launch.config.compose import Composed, compose
from launch.config.line import Line
from launch.errors import EXIT_DONE, EXIT_FAILED, Problem, UserError
from launch.planning.plan import Plan, build_plan
from launch.preflight.rules import preflight
from launch.prepare import prepare
from launch.redact import Redactor
from launch.runtime.folder import Outcome, RunFolder, last_outcome, status
from launch.runtime.progress import Display, display_for, duration
from launch.runtime.supervise import Execution, supervise
from launch.worker.patches import PATCHES


def run(line: Line) -> int:
    """Run the composed stage to its end. Raises UserError when it cannot be started; returns its exit code."""

    def one(composed: Composed) -> int:
        plan = build_plan(composed, this_machine(composed))
        redactor = Redactor(os.environ)
        display = display_for(sys.stdout)
        for warning in plan.warnings:
            display.say(f"warning: {redactor.redact_text(str(warning))}")
        if _is_done(plan, display):
            return EXIT_DONE
        problems = preflight(plan)
        if problems:
            raise UserError(problems)
        return _run(plan, composed, redactor, display)

    return compose(line, one)


def _is_done(plan: Plan, display: Display) -> bool:
    """Whether the plan's folder holds a finished run of it. An unfinished one is put aside when that was asked.

    Raises UserError (`name_taken`, `unfinished_run`) when the folder holds something else.
    """
    folder = plan.folder
    state = status(folder)
    if state == "absent":
        return False
    recorded = _recorded_identity(folder)
    if recorded not in (None, plan.identity):
        message = f"{folder} holds another plan ({recorded}, this one is {plan.identity})"
        raise UserError(Problem("name_taken", message, "name", "say another name=, or leave it out"))
    if plan.config.restart:
        aside = folder.with_name(f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        folder.rename(aside)
        display.say(f"restart: the earlier run is kept in {aside}")
        return False
    if state == "done":
        outcome = last_outcome(folder)
        loss = f", loss {outcome.last_loss:.4g}" if outcome and outcome.last_loss is not None else ""
        steps = f"{outcome.steps} steps{loss}" if outcome else "done"
        display.say(f"already done: {folder} ({steps}); restart=true runs it again")
        return True
    message = (
        f"{folder} holds an unfinished run of this plan" if state == "unfinished" else f"{folder} holds a failed run"
    )
    raise UserError(Problem("unfinished_run", message, None, "restart=true keeps it aside and starts over"))


def _recorded_identity(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "plan.json").read_text(encoding="utf-8"))["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _run(plan: Plan, composed: Composed, redactor: Redactor, display: Display) -> int:
    display.say(f"{plan.stage} with {plan.trainer}: {plan.upstream.description}")
    display.say(f"batch: global {plan.batch}; run folder: {plan.folder}")
    prepare(plan, display.say)
    folder = RunFolder(plan.folder, redactor)
    _record(plan, composed, folder)
    execution = Execution(
        argv=plan.command,
        trainer=plan.trainer,
        env=plan.env,
        unset=plan.unset,
        cwd=None,
        ranks=tuple(range(plan.batch.width)),
        total_steps=plan.config.recipe.max_steps,
        model_dir=plan.model_dir,
    )
    outcome = supervise(execution, folder, display, redactor)
    outcome = _checked(outcome, plan)
    folder.finish(outcome)
    if outcome.exit_code == EXIT_DONE:
        loss = f", last loss {outcome.last_loss:.4g}" if outcome.last_loss is not None else ""
        display.say(
            f"done: {outcome.steps} steps in {duration(outcome.seconds)}{loss}; the model is in {plan.model_dir}"
        )
    return outcome.exit_code


def _record(plan: Plan, composed: Composed, folder: RunFolder) -> None:
    """Everything that is known before the start goes into the run folder."""
    folder.create()
    folder.write_config(OmegaConf.to_yaml(OmegaConf.create(dict(composed.plain))))
    folder.write_plan(plan.as_json())
    folder.write_command(plan.command, plan.env, plan.unset)
    folder.write_patches([_patch(word) for word in plan.patches])
    folder.write_versions(plan.command[0])
    folder.write_git(project.ROOT, plan.upstream.checkout)


def _patch(word: str) -> dict[str, object]:
    name, _, value = word.partition("=")
    info = PATCHES[name]
    return {"id": name, "value": value or None, "reason": info.reason, "upstream": list(info.upstream)}


def _checked(outcome: Outcome, plan: Plan) -> Outcome:
    """A trainer that ended well without leaving a model did not end well."""
    if outcome.exit_code != EXIT_DONE or any(plan.model_dir.glob(plan.config.trainer.leaves)):
        return outcome
    cause = f"the trainer ended without an error and left no model in {plan.model_dir}"
    return Outcome(EXIT_FAILED, outcome.seconds, outcome.steps, outcome.last_loss, outcome.ended, cause)
