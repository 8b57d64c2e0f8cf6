"""Decides whether the earlier run in a plan's folder is finished, is resumed, or starts over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch import resources
from launch.config.schema import Family
from launch.errors import EXIT_INTERRUPTED, UserError, refusal
from launch.execution.earlier_runs import has_same_training, other_plan_problem
from launch.execution.record.checkpoints import MARK, Checkpoint, find_checkpoints, layout_of
from launch.execution.record.folder import CONVERTED, RunFolder
from launch.execution.record.format import add_restart_cure
from launch.execution.record.outcome import folder_status, read_outcome
from launch.execution.record.run import Run, number, objects
from launch.execution.record.written import read_layouts, read_written
from launch.files import archive_folder, read_json_object, write_file
from launch.planning.digest_cache import DigestCache
from launch.planning.plan import Plan
from launch.table import format_duration
from launch.worker.finding import Finding, Fix
from launch.worker.patches import (
    EVIDENCE_PATCHES,
    EXACT_RESUME,
    RESUME_PATCHES,
    UNIVERSAL_CHECKPOINT,
)
from launch.worker.wording import count_of

_RESTART = Fix.of("{0} archives this run and starts over", "restart=true")
_SHORT = 600.0  # seconds of training that may be lost without the user's restart=true
# Relative difference up to which two losses of a step are the same: TRL may round those that it
# keeps in a checkpoint.
_SAME_LOSS = 1e-3


@dataclass(frozen=True)
class AttemptStart:
    """How the next attempt begins."""

    checkpoint: Checkpoint | None = None  # checkpoint to resume from; None for the first step
    incomplete: tuple[Checkpoint, ...] = ()  # checkpoints to move out of the trainer's way
    # Why the checkpoint is not this run's, which `allow` accepts; None for one that the run wrote.
    foreign: Finding | None = None
    # Why the run starts over, so that the whole folder is archived first; None if it does not.
    restart_reason: str | None = None


def is_finished(plan: Plan) -> bool:
    """Return whether the plan's folder holds a finished run of this plan.

    Raises UserError: name_taken, other_width, other_format, as `refuse_other_plan` does.
    """
    status = folder_status(plan.folder)
    if status == "absent":
        return False
    refuse_other_plan(plan)
    return status == "done" and not plan.config.restart


def refuse_other_plan(plan: Plan) -> None:
    """Refuse a plan whose folder holds a run that it does not continue.

    Raises UserError: name_taken, other_width, when it holds a run of another plan; other_format.
    """
    refuse_other_format(plan)
    run = Run(plan.folder)
    if run.other_format is None and run.plan and not has_same_training(run, plan):
        raise UserError(other_plan_problem(plan, run))


def needs_conversion(plan: Plan, checkpoint: Checkpoint) -> bool:
    """Return whether DeepSpeed can't read a checkpoint as it is, because other ranks wrote it."""
    return plan.parallel.zero_stage is not None and checkpoint.layout != layout_of(plan)


def converted_folder(plan: Plan) -> Path:
    """Return the folder of a checkpoint that was converted for an attempt at another width."""
    return plan.folder / CONVERTED


def refuse_other_format(plan: Plan) -> None:
    """Refuse to use the plan's folder if it holds a run of another format, unless it is to be
    archived.

    Raises UserError: other_format.
    """
    problem = Run(plan.folder).other_format
    if problem is not None and not plan.config.restart:
        raise UserError(add_restart_cure(problem))


def decide_start(plan: Plan) -> AttemptStart:
    """Decide how a run that is not finished continues; nothing is changed yet.

    Raises UserError: nothing_to_resume, resume_unsupported, foreign_checkpoint.
    """
    if folder_status(plan.folder) == "absent":
        return AttemptStart()
    if plan.config.restart:
        return AttemptStart(restart_reason="restart=true")
    layouts = read_layouts(plan.folder, layout_of(plan))
    checkpoints = find_checkpoints(plan.model_dir, layouts)
    if not checkpoints and last_logged_step(plan.folder) == 0:
        return AttemptStart()  # it ended before its first step: there is nothing to keep or lose
    complete = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    incomplete = [checkpoint for checkpoint in checkpoints if not checkpoint.complete]
    lost_seconds = None if complete else _short_interruption(plan)
    if lost_seconds is not None:
        duration = format_duration(lost_seconds)
        reason = f"interrupted after {duration} of training, before its first checkpoint"
        return AttemptStart(restart_reason=reason)
    if not plan.config.trainer.resumable:
        message = (
            f"{plan.folder} holds an unfinished run, and resuming {plan.trainer} is not supported"
        )
        raise refusal("resume_unsupported", message, None, _RESTART)
    if not complete:
        raise UserError(_nothing_to_resume(plan, checkpoints))
    # The last one is the one that upstream finds: it prefers step_ folders to epoch_ ones, whatever
    # their number (utils.py:793).
    chosen = complete[-1]
    foreign = _find_foreign(plan, complete)
    if foreign is not None and foreign.stops:
        raise UserError(foreign)
    return AttemptStart(chosen, tuple(incomplete), foreign)


def _find_foreign(plan: Plan, complete: list[Checkpoint]) -> Finding | None:
    """Return the problem of the last complete checkpoint if the run's record contradicts it.

    The cure moves away this checkpoint, and those before it that are contradicted too, so that the
    run resumes from the last one that it wrote itself.
    """
    contradiction = _find_contradiction(plan, complete[-1])
    if contradiction is None:
        return None
    accept = "allow=[foreign_checkpoint]"
    others = [complete[-1].path.name]
    own = None
    for checkpoint in reversed(complete[:-1]):
        if _find_contradiction(plan, checkpoint) is None:
            own = checkpoint
            break
        others.append(checkpoint.path.name)
    cure = Fix.of(
        f"{_RESTART.sentence}, or {{1}} resumes from it as it is", *_RESTART.actions, accept
    )
    if own is not None:
        cure = Fix.of(
            f"move {', '.join(others)} out of {plan.model_dir}, and the run resumes from "
            f"{own.path.name}; {cure.sentence}",
            *cure.actions,
        )
    message = f"{complete[-1].path} is not a checkpoint that this run wrote: {contradiction}"
    problem = Finding.error("foreign_checkpoint", message, None, cure)
    return problem.apply_allow(plan.config.allow)


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
    """Describe how to continue a run that was ended.

    The same command is not enough if it has restart=true, which would start the run over, or if
    stop_if_worse=true would end the run again by its evaluation (`judged`). `name` completes the
    problem of a run that cannot be resumed.
    """
    again = replace(plan, config=replace(plan.config, restart=False))
    finished = is_finished(again)
    problems = [] if finished else resume_problems(again)
    if problems:
        return f"to continue: {name(problems[0]).cure}"
    left_out = []
    if plan.config.restart:
        left_out.append("restart=true")
    if judged and finished:
        left_out.append("stop_if_worse=true")
    if not left_out:
        return "to continue: the same command"
    return f"to continue: the same command without {' and '.join(left_out)}"


def describe_next_attempt(plan: Plan) -> str | None:
    """Describe from which step the run in a plan's folder resumes, or why it does not; None for a
    run that is finished, has not started, or starts over.
    """
    try:
        start = AttemptStart() if is_finished(plan) else decide_start(plan)
    except UserError as error:
        return error.problems[0].message
    chosen = start.checkpoint
    if chosen is None:
        return None
    text = f"{plan.name} from {chosen.unit} {chosen.number} ({chosen.path.name})"
    ranks = chosen.layout.world_size if chosen.layout else plan.parallel.width.world_size
    if ranks != plan.parallel.width.world_size:
        text += f" of {count_of(ranks, 'rank')}"
    return f"{text}, which is converted first" if needs_conversion(plan, chosen) else text


def clear_run_folder(plan: Plan, start: AttemptStart, say: Callable[[str], None]) -> None:
    """Move the incomplete checkpoints aside, or the whole folder where the run starts over.

    The trainer itself then finds the checkpoint that `start` resumes from. Raises UserError:
    linked_record.
    """
    if start.restart_reason is not None:
        archive = archive_folder(plan.folder)
        say(f"{start.restart_reason}: the earlier run is archived in {archive}")
        return
    RunFolder(plan.folder).refuse_links()
    for checkpoint in start.incomplete:
        target = archive_folder(checkpoint.path, into=plan.folder / "incomplete")
        marked = ", although it is marked COMPLETED" if checkpoint.marked else ""
        faults = "; ".join(checkpoint.faults[:2])
        say(f"{checkpoint.path.name} is incomplete{marked} ({faults}): moved to {target.parent}")
    chosen = start.checkpoint
    needs_mark = _resume_patch(plan) == EXACT_RESUME  # open-instruct itself looks for the mark
    if chosen is not None and needs_mark and not chosen.marked:
        # The checkpoint's content was checked; open-instruct reads only checkpoints with the mark.
        write_file(chosen.path / MARK, MARK)


def resume_plan(plan: Plan, start: AttemptStart) -> Plan:
    """Return the plan with the command and patches that continue from the checkpoint of `start`."""
    chosen = start.checkpoint
    if chosen is None:
        return plan
    # The worker's options come after its path: two words, --patch and its value, for each patch.
    end_of_patches = plan.command.index(str(resources.WORKER)) + 1 + 2 * len(plan.patches)
    before = plan.command[:end_of_patches]
    after = plan.command[end_of_patches:]
    # The worker stops a run that does not continue at the checkpoint's step. A checkpoint named
    # after an epoch does not have the step in its name.
    expected: tuple[str, ...] = ()
    proves_steps = not set(EVIDENCE_PATCHES).isdisjoint(plan.patches)
    if chosen.unit == "step" and proves_steps:
        expected = ("--expect", f"resumed_step={chosen.number}")
    patches: list[str] = []
    flags: tuple[str, ...] = ()
    path = chosen.path
    if needs_conversion(plan, chosen):
        path = converted_folder(plan) / path.name
        patches.append(UNIVERSAL_CHECKPOINT)
    if plan.config.trainer.family == Family.trl:
        flags = ("--resume_from_checkpoint", str(path))
    else:
        value = path.name if path == chosen.path else str(path)
        patches.append(f"{_resume_patch(plan)}={value}")
    arguments: list[str] = []
    for patch in patches:
        arguments += ["--patch", patch]
    command = (*before, *arguments, *expected, *after, *flags)
    return replace(plan, command=command, patches=(*plan.patches, *patches))


def _resume_patch(plan: Plan) -> str | None:
    """Return the patch with which a plan's trainer resumes; None for TRL's, which have none."""
    named = (name for name in plan.config.trainer.patches if name in RESUME_PATCHES)
    default = EXACT_RESUME if plan.config.trainer.family == Family.open_instruct else None
    return next(named, default)


def _short_interruption(plan: Plan) -> float | None:
    """Return the seconds of training of a run that was interrupted so early that it starts over
    without restart=true; None for any other run.
    """
    run = Run(plan.folder)
    ended_by_itself = run.outcome is not None and run.outcome.exit_code != EXIT_INTERRUPTED
    seconds = _trained_seconds(run)
    if ended_by_itself or seconds is None or seconds >= _SHORT:
        return None
    model_is_complete = not plan.find_output_faults()
    return None if model_is_complete else seconds


def _trained_seconds(run: Run) -> float | None:
    """Return the time that the steps of a run took; None if it was not measured."""
    recorded = [number(entry.get("seconds")) for entry in run.steps()]
    times = [seconds for seconds in recorded if seconds]
    return sum(times) if times else None


def last_logged_step(run: Path) -> int:
    """Return the last step that a run logged; 0 without any. `run`: the run's folder."""
    steps = [entry["step"] for entry in Run(run).steps()]
    return max(steps, default=0)


def _find_contradiction(plan: Plan, checkpoint: Checkpoint) -> str | None:
    """Return how the run's record contradicts a checkpoint; None if it does not.

    The checkpoint's step is compared, and the losses that TRL keeps in it.
    """
    run = Run(plan.folder)
    change = _find_replaced(plan, run, checkpoint)
    if change is not None or checkpoint.unit != "step":
        return change
    losses = {entry["step"]: entry.get("loss") for entry in run.steps()}
    last = max(losses, default=0)
    went_on = run.outcome is None and _were_all_written(plan, last, checkpoint)
    if checkpoint.number > last + plan.most_unlogged and not went_on:
        return f"no attempt got beyond step {last}"
    kept_losses = _checkpoint_losses(checkpoint)
    last_kept = max(kept_losses, default=None)
    if last_kept is not None and last_kept + plan.most_unlogged < checkpoint.number:
        return f"its own losses end at step {last_kept}"
    for step in sorted(kept_losses.keys() & losses.keys()):
        kept = number(kept_losses[step])
        logged = number(losses[step])
        if kept is None or logged is None:
            continue
        if abs(kept - logged) > _SAME_LOSS * max(1.0, abs(logged)):
            return f"its loss at step {step} is {kept:.6g}, the run's was {logged:.6g}"
    return None


def _were_all_written(plan: Plan, last: int, checkpoint: Checkpoint) -> bool:
    """Whether all checkpoints that were due after the step `last`, up to this one, were written.

    A trainer whose launcher was killed may write a few more checkpoints before it is ended too.
    """
    due = plan.next_checkpoint(last)
    while due is not None and due < checkpoint.number:
        name = checkpoint.path.name.replace(str(checkpoint.number), str(due))
        if not checkpoint.path.with_name(name).is_dir():
            return False
        due = plan.next_checkpoint(due)
    return due == checkpoint.number


def _find_replaced(plan: Plan, run: Run, checkpoint: Checkpoint) -> str | None:
    """Return how a checkpoint's files differ from those that the run wrote; None if they do not.

    The last checkpoint of a trainer whose launcher was killed is not recorded.
    """
    written = read_written(plan.folder).get(checkpoint.path.name)
    if written is not None:
        digests = DigestCache(plan.cache / "digests.json")
        change = written.find_change(checkpoint.path, digests.of)
        digests.save()
        return change
    if not run.attempts:
        return None
    last = max((entry["step"] for entry in run.steps()), default=0)
    is_older = checkpoint.unit == "step" and checkpoint.number < last
    if run.outcome is None and not is_older:
        return None
    return "no attempt recorded that it wrote this one"


def _checkpoint_losses(checkpoint: Checkpoint) -> dict[int, Any]:
    """Return the losses in the trainer_state.json of a TRL checkpoint, by step."""
    history = read_json_object(checkpoint.path / "trainer_state.json").get("log_history")
    losses = {}
    for entry in objects(history):
        if "loss" in entry and "step" in entry:
            losses[int(entry["step"])] = entry["loss"]
    return losses


def _nothing_to_resume(plan: Plan, checkpoints: list[Checkpoint]) -> Finding:
    """Return the problem of an unfinished run that has no complete checkpoint."""
    outcome = read_outcome(plan.folder)
    facts = "it was killed externally"
    if outcome and outcome.cause:
        facts = f"it ended with: {outcome.cause}"
    seconds = _trained_seconds(Run(plan.folder))
    if seconds is not None:
        facts += f"; to start over loses {format_duration(seconds)} of training"
    step = last_logged_step(plan.folder)
    message = f"{plan.folder} holds an unfinished run of this plan, at step {step} ({facts})"
    cure = _RESTART
    if not plan.find_output_faults():
        message += (
            ", with no checkpoint. Its model folder is complete, but its trainer's exit was not "
            "recorded"
        )
        cure = Fix.of(f"use the model as it is, or: {_RESTART.sentence}", *_RESTART.actions)
    elif checkpoints:
        last_two = checkpoints[-2:]
        faults = [f"{checkpoint.path.name}: {checkpoint.faults[0]}" for checkpoint in last_two]
        message += f", with no complete checkpoint: {'; '.join(faults)}"
    elif plan.config.recipe.checkpoint_steps is None:
        message += ", and saves no checkpoints"
        sentence = f"{_RESTART.sentence}; with {{1}} the next one can be resumed"
        cure = Fix.of(sentence, "restart=true", "recipe.checkpoint_steps=N")
    else:
        every = plan.config.recipe.checkpoint_steps
        message += f", with no checkpoint yet (recipe.checkpoint_steps={every})"
    return Finding.error("nothing_to_resume", message, None, cure)
