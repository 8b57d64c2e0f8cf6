"""Decide what becomes of an earlier run in the same folder: it is finished, is resumed, or has to
start over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from launch import resources
from launch.config.schema import Family
from launch.errors import EXIT_INTERRUPTED, UserError, refusal
from launch.execution.display import format_duration
from launch.execution.record.checkpoints import MARK, Checkpoint, Layout, find_checkpoints
from launch.execution.record.format import in_the_way
from launch.execution.record.outcome import folder_status, read_outcome
from launch.execution.record.run import Run, mapping, number, objects
from launch.files import read_json_object
from launch.planning.plan import Plan
from launch.worker.finding import Finding, Fix
from launch.worker.json_codec import to_json

_RESTART = Fix.of("{0} archives this run and starts over", "restart=true")
_SHORT = 600.0  # seconds of training: what an interruption may cost without a question
_SAME_LOSS = 1e-3  # TRL may round the losses that it keeps


@dataclass(frozen=True)
class AttemptStart:
    """How the next attempt begins."""

    checkpoint: Checkpoint | None = None  # to resume from; None: the first step
    incomplete: tuple[Checkpoint, ...] = ()  # to move out of the trainer's way
    restart_reason: str | None = None  # set: the whole folder is archived first


def is_finished(plan: Plan) -> bool:
    """Whether the plan's folder holds a finished run of this plan.

    Raises UserError: name_taken, other_width, when it holds a run of another plan; other_format.
    """
    status = folder_status(plan.folder)
    if status == "absent":
        return False
    refuse_other_format(plan)
    run = Run(plan.folder)
    if run.other_format is None and run.plan and run.plan.get("identity") != plan.identity:
        raise UserError(_other_plan_problem(plan, run))
    return status == "done" and not plan.config.restart


def refuse_other_format(plan: Plan) -> None:
    """Refuse to use the plan's folder if it holds a run of another format, unless it is to be
    archived.

    Raises UserError: other_format.
    """
    problem = Run(plan.folder).other_format
    if problem is not None and not plan.config.restart:
        raise UserError(in_the_way(problem))


def decide_start(plan: Plan) -> AttemptStart:
    """Decide how a run that is not finished continues; nothing is changed yet.

    Raises UserError: nothing_to_resume, resume_unsupported, foreign_checkpoint.
    """
    if folder_status(plan.folder) == "absent":
        return AttemptStart()
    if plan.config.restart:
        return AttemptStart(restart_reason="restart=true")
    layout = Layout(plan.config.trainer.family, plan.batch.width, plan.parallel.zero_stage)
    checkpoints = find_checkpoints(plan.model_dir, layout)
    if not checkpoints and last_logged_step(plan.folder) == 0:
        return AttemptStart()  # it ended before its first step: there is nothing to keep or lose
    if (
        not any(checkpoint.complete for checkpoint in checkpoints)
        and (lost := _short_interruption(plan)) is not None
    ):
        reason = (
            f"interrupted after {format_duration(lost)} of training, before its first checkpoint"
        )
        return AttemptStart(restart_reason=reason)
    if not plan.config.trainer.resumable:
        message = (
            f"{plan.folder} holds an unfinished run, and resuming {plan.trainer} is not supported"
        )
        raise refusal("resume_unsupported", message, None, _RESTART)
    complete = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if not complete:
        raise UserError(_nothing_to_resume(plan, checkpoints))
    if contradiction := _find_contradiction(plan, complete[-1]):
        message = f"{complete[-1].path} is not a checkpoint that this run wrote: {contradiction}"
        sentence = (
            f"move it out of {plan.model_dir}; the run then resumes from an earlier one, "
            "or "
            f"{_RESTART.sentence}"
        )
        cure = Fix.of(sentence, *_RESTART.ways)
        raise refusal("foreign_checkpoint", message, None, cure)
    # upstream prefers step_ folders to epoch_ ones, whatever their number (utils.py:793)
    return AttemptStart(
        complete[-1], tuple(checkpoint for checkpoint in checkpoints if not checkpoint.complete)
    )


def resume_problems(plan: Plan) -> list[Finding]:
    """Find what keeps the unfinished run of a plan from being resumed."""
    try:
        decide_start(plan)
    except UserError as error:
        return list(error.problems)
    return []


def describe_continuation(
    plan: Plan, judged: bool = False, name: Callable[[Finding], Finding] = lambda problem: problem
) -> str:
    """Say how to go on with a run that was ended: not by the same command where that would start it
    over, or end it again because its evaluation is `judged`. `name` completes the problem of a run
    that cannot be resumed.
    """
    again = replace(plan, config=replace(plan.config, restart=False))
    finished = is_finished(again)
    if not finished and (problems := resume_problems(again)):
        return f"to go on: {name(problems[0]).cure}"
    keys = {"restart=true": plan.config.restart, "stop_if_worse=true": judged and finished}
    without = " and ".join(key for key, is_set in keys.items() if is_set)
    return f"to go on: the same command{without and f' without {without}'}"


def clear_run_folder(plan: Plan, start: AttemptStart, say: Callable[[str], None]) -> None:
    """Move aside what `start` lists, so that the trainer itself finds the chosen checkpoint."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    if start.restart_reason is not None:
        archive = plan.folder.with_name(f"{plan.folder.name}.{stamp}")
        plan.folder.rename(archive)
        say(f"{start.restart_reason}: the earlier run is archived in {archive}")
        return
    for checkpoint in start.incomplete:
        target = plan.folder / "incomplete" / f"{checkpoint.path.name}.{stamp}"
        target.parent.mkdir(exist_ok=True)
        checkpoint.path.rename(target)
        marked = ", although it is marked COMPLETED" if checkpoint.marked else ""
        faults = "; ".join(checkpoint.faults[:2])
        say(f"{checkpoint.path.name} is incomplete{marked} ({faults}): moved to {target.parent}")
    chosen = start.checkpoint
    if (
        chosen is not None
        and plan.config.trainer.family == Family.open_instruct
        and not chosen.marked
    ):
        # its content was checked, and upstream needs the mark
        (chosen.path / MARK).write_text(MARK, encoding="utf-8")


def resume_plan(plan: Plan, start: AttemptStart) -> Plan:
    """Return the plan with the command and patches that continue from the checkpoint of `start`."""
    chosen = start.checkpoint
    if chosen is None:
        return plan
    # of the worker's --patch options
    end = plan.command.index(str(resources.WORKER)) + 1 + 2 * len(plan.patches)
    # the worker stops a run that does not continue at this checkpoint's step, which an epoch's name
    # does not give
    has_step = chosen.unit == "step" and "evidence" in plan.patches
    expected = ("--expect", f"resumed_step={chosen.number}") if has_step else ()
    if plan.config.trainer.family == Family.trl:
        flags = ("--resume_from_checkpoint", str(chosen.path))
        return replace(plan, command=(*plan.command[:end], *expected, *plan.command[end:], *flags))
    patch = f"exact_resume={chosen.path.name}"
    command = (*plan.command[:end], "--patch", patch, *expected, *plan.command[end:])
    return replace(plan, command=command, patches=(*plan.patches, patch))


def _short_interruption(plan: Plan) -> float | None:
    """Return the seconds of training of a run that was interrupted so early that it starts again
    without being asked; None for any other.
    """
    run = Run(plan.folder)
    ended_by_itself = run.outcome is not None and run.outcome.exit_code != EXIT_INTERRUPTED
    seconds = _trained_seconds(run)
    if ended_by_itself or seconds is None or seconds >= _SHORT:
        return None
    return seconds if plan.find_output_faults() else None


def _trained_seconds(run: Run) -> float | None:
    """Return the time that the steps of a run took; None if it was not measured."""
    times = [number(entry.get("seconds")) for entry in run.steps()]
    return sum(filter(None, times)) if any(times) else None


def last_logged_step(run: Path) -> int:
    """Return the last step that a run logged; 0 without any."""
    return max((entry["step"] for entry in Run(run).steps()), default=0)


def _find_contradiction(plan: Plan, checkpoint: Checkpoint) -> str | None:
    """Return how the run's record contradicts a checkpoint: by its step, or by the losses that TRL
    keeps in it.
    """
    if checkpoint.unit != "step":
        return None
    run = Run(plan.folder)
    losses = {entry["step"]: entry.get("loss") for entry in run.steps()}
    unlogged = plan.most_unlogged
    last = max(losses, default=0)
    # a trainer whose launcher was killed may have written one more checkpoint before it ended too
    is_next = run.outcome is None and checkpoint.number == plan.next_checkpoint(last)
    if checkpoint.number > last + unlogged and not is_next:
        return f"no attempt got beyond step {last}"
    history = read_json_object(checkpoint.path / "trainer_state.json").get("log_history")
    kept = {
        int(entry["step"]): entry["loss"]
        for entry in objects(history)
        if {"loss", "step"} <= entry.keys()
    }
    if kept and max(kept) + unlogged < checkpoint.number:
        return f"its own losses end at step {max(kept)}"
    for step in sorted(kept.keys() & losses.keys()):
        own, recorded = number(kept[step]), number(losses[step])
        if (
            own is not None
            and recorded is not None
            and abs(own - recorded) > _SAME_LOSS * max(1.0, abs(recorded))
        ):
            return f"its loss at step {step} is {own:.6g}, the run's was {recorded:.6g}"
    return None


def _nothing_to_resume(plan: Plan, checkpoints: list[Checkpoint]) -> Finding:
    outcome = read_outcome(plan.folder)
    ending = (
        f"it ended with: {outcome.cause}"
        if outcome and outcome.cause
        else "it was killed externally"
    )
    step = last_logged_step(plan.folder)
    seconds = _trained_seconds(Run(plan.folder))
    lost = (
        f"; to start over loses {format_duration(seconds)} of training"
        if seconds is not None
        else ""
    )
    message = f"{plan.folder} holds an unfinished run of this plan, at step {step} ({ending}{lost})"
    cure = _RESTART
    if not plan.find_output_faults():
        message += (
            ", with no checkpoint. Its model folder is complete, but its trainer's exit "
            "was "
            "not recorded"
        )
        cure = Fix.of(f"use the model as it is, or: {_RESTART.sentence}", *_RESTART.ways)
    elif checkpoints:
        faults = "; ".join(
            f"{checkpoint.path.name}: {checkpoint.faults[0]}" for checkpoint in checkpoints[-2:]
        )
        message += f", with no complete checkpoint: {faults}"
    elif plan.config.recipe.checkpoint_steps is None:
        message += ", and saves no checkpoints"
        sentence = f"{_RESTART.sentence}; with {{1}} the next one can be resumed"
        cure = Fix.of(sentence, "restart=true", "recipe.checkpoint_steps=N")
    else:
        message += (
            ", with no checkpoint yet "
            f"(recipe.checkpoint_steps={plan.config.recipe.checkpoint_steps})"
        )
    return Finding.error("nothing_to_resume", message, None, cure)


def differing_flags(run: Run, plan: Plan) -> list[str]:
    """Return the trainer's flags whose values a recorded plan and this one set differently."""
    before = run.flags
    after = {name: to_json(flag.value) for name, flag in plan.flags.items()}
    names = sorted({*before, *after})
    return [f"--{name}" for name in names if before.get(name) != after.get(name)]


def _other_plan_problem(plan: Plan, run: Run) -> Finding:
    old_width = (
        mapping(run.plan.get("batch")).get("width"),
        mapping(run.plan.get("parallel")).get("device"),
    )
    new_width = plan.batch.width, plan.parallel.width.device.value
    if old_width != new_width and None not in old_width:
        old, new = (f"{count} {device}" for count, device in (old_width, new_width))
        message = (
            f"{plan.folder} holds a run of another plan at width {old}; this plan has width {new}"
        )
        cure = "resume it at its own width, use another name=, or leave the name out"
        return Finding.error("other_width", message, "name", cure)
    names = [name for name in differing_flags(run, plan) if name != "--output_dir"]
    differences = f", which differs in {', '.join(names[:3])}" if names else ""
    message = (
        f"{plan.folder} holds a run of plan {run.plan.get('identity')}; this one is "
        f"{plan.identity}{differences}"
    )
    return Finding.error("name_taken", message, "name", "use another name=, or leave it out")
