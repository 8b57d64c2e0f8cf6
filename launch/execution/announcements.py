"""Print how a run ended: done, failed, or done by an earlier call."""

from __future__ import annotations

from launch.errors import EXIT_FAILED
from launch.execution.completion import refuse_changes
from launch.execution.display import Display
from launch.execution.record.outcome import Outcome, read_outcome
from launch.execution.record.run import Run, command_for, mapping
from launch.planning.adapter import ADAPTER_CONFIG
from launch.planning.plan import Plan
from launch.table import format_duration
from launch.worker.wording import count_of


def announce_failure(outcome: Outcome, display: Display) -> None:
    """Print the cause of a run that failed, or that was not done at its end."""
    if outcome.exit_code == EXIT_FAILED:
        display.say(f"the run failed: {outcome.cause}")
    else:
        display.say(f"the run reached its end but is not done: {outcome.cause}")
    for line in outcome.detail:
        display.say(f"  {line}")


def announce_done(outcome: Outcome, plan: Plan, display: Display) -> None:
    """Print how a run was done and where its model is, with warnings about what failed after it."""
    if outcome.afterwards:
        display.say(f"warning: after the model was saved: {outcome.afterwards}")
    steps = count_of(outcome.steps, "step")
    sentence = f"done: {steps} in {format_duration(outcome.seconds)}"
    if outcome.result is not None:
        sentence += f", {outcome.result}"
    if outcome.validation:
        sentence += f", {outcome.validation.describe()}"
    display.say(f"{sentence}; {_describe_output(plan)}")
    not_risen = outcome.reward.finding() if outcome.reward else None
    if not_risen is not None:
        display.say(f"warning: {not_risen}")


def report_finished(plan: Plan, display: Display) -> None:
    """Print how the finished run of this plan ended, and a warning when its model is no longer
    complete.

    Raises UserError: model_changed, base_changed.
    """
    outcome = read_outcome(plan.folder)
    summary = "done"
    if outcome is not None:
        summary = count_of(outcome.steps, "step")
        if outcome.result is not None:
            summary += f", {outcome.result}"
    display.say(f"already done: {plan.folder} ({summary}); restart=true runs it again")
    faults = plan.find_output_faults()
    if faults:
        display.say(f"warning: its model is no longer complete: {faults[0]}")
    else:
        refuse_changes(plan.folder, plan.config.allow)
    repository = plan.config.hub.push
    pushed_to = mapping(Run(plan.folder).settings.get("hub")).get("push")
    if repository not in (None, pushed_to):
        display.say(
            f"warning: nothing was pushed: this run had finished without hub.push={repository}, and "
            f"the trainer pushes at its end; `hf upload {repository} {plan.model_dir}` pushes the "
            "model"
        )


def _describe_output(plan: Plan) -> str:
    if (plan.model_dir / ADAPTER_CONFIG).is_file():
        command = command_for("merge", plan.folder)
        return f"the adapter is in {plan.model_dir}; `{command}` merges it into its base model"
    return f"the model is in {plan.saved_model}"
