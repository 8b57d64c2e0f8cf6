"""Carry out one run: its lock, its record, its processes and its outcome."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from launch import resources
from launch.check.machine.reward import proven_files
from launch.check.machine.rules import inspect_fast, stopping_problems, warnings
from launch.config.schema import Tracking
from launch.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    UserError,
    refusal,
)
from launch.execution.announcements import announce_done, announce_failure
from launch.execution.caches import cache_lock, plan_cache_pass, read_dataset_event
from launch.execution.completion import (
    add_digests,
    add_reward,
    add_validation,
    check_first_loss,
    compare_unchanged,
    digest_base,
    keep_finished_work,
    required_proofs,
    verify_completion,
    verify_evidence,
    verify_inputs,
)
from launch.execution.diagnosis.advice import cure_for_errors
from launch.execution.diagnosis.tracebacks import RaisedError
from launch.execution.display import Display
from launch.execution.inputs import refuse_changed_model, report_later_changes, snapshot_files
from launch.execution.prepare import prepare_inputs
from launch.execution.preview import refuse_data
from launch.execution.record.attempts import (
    add_earlier_steps,
    begin_attempt,
    drop_repeated_steps,
    latest_attempt,
)
from launch.execution.record.changes import describe_patches
from launch.execution.record.evidence import (
    add_earlier_proofs,
    evidence_table,
    read_evidence,
    unchecked_settings,
)
from launch.execution.record.folder import RunFolder
from launch.execution.record.lock import run_lock
from launch.execution.record.outcome import Outcome
from launch.execution.record.run import Run
from launch.execution.record.written import record_found
from launch.execution.resume import AttemptStart, clear_run_folder, decide_start, resume_plan
from launch.execution.supervise.processes import ServerProgram, wait_for_orphans
from launch.execution.supervise.stop_signals import hold_signals
from launch.execution.supervise.supervisor import Execution, supervise
from launch.execution.supervise.watch import build_watch_config
from launch.execution.tensorboard import tensorboard_writer
from launch.execution.universal import converted
from launch.planning.expectations import overridden_settings, requested_settings
from launch.planning.plan import Plan
from launch.planning.read_files import LoadedFiles
from launch.planning.rlvr import refuse_untested_trainer
from launch.planning.vllm_server import planned_server, server_environment
from launch.table import format_duration
from launch.worker.evidence import FEW_STEPS, TOO_SHORT, UNPROVEN, Evidence
from launch.worker.json_codec import versioned
from launch.worker.patches import EVIDENCE_PATCHES

# A function that runs a plan's processes to their end, and compares the files that they load.
RankRunner = Callable[[Plan, RunFolder, Display, LoadedFiles], Outcome]


def run_on_this_machine(
    plan: Plan, folder: RunFolder, display: Display, inputs: LoadedFiles
) -> Outcome:
    """Run all ranks of the plan on this machine."""
    return supervise(build_execution(plan, inputs), folder, display)


def carry_out(plan: Plan, display: Display, run_ranks: RankRunner = run_on_this_machine) -> int:
    """Start or resume the run and return its exit code. The caller holds the run's lock.

    Raises UserError when it cannot be started, or when most samples of its data are wrong.
    """
    wait_for_orphans(plan.model_dir, display.say)
    start = decide_start(plan)
    proven = _run_preflight(plan, display, asks_parser=True)
    display.say(f"{plan.stage} with {plan.trainer}: {plan.upstream.description}")
    display.say(f"batch: global {plan.batch}; run folder: {plan.folder}")
    refuse_changed_model(plan)
    prepare_inputs(plan, display.say)
    if start.checkpoint is None:
        for warning in refuse_data(plan):
            display.say(f"warning: {warning}")
    inputs = snapshot_files(plan, proven)
    clear_run_folder(plan, start, display.say)
    base = digest_base(plan)
    with converted(plan, start, display.say), _prepared(plan, display) as folder:
        supervised = _run_recorded(plan, start, folder, display, run_ranks, inputs)
        run = Run(folder.path)
        checkpoint = start.checkpoint.path if start.checkpoint is not None else None
        evidence = _read_evidence(plan, run, required_proofs(plan), checkpoint)
        outcome = keep_finished_work(supervised, plan, run, evidence)
        outcome = add_earlier_steps(outcome, folder.metrics)
        outcome = verify_completion(outcome, plan, run)
        outcome = add_validation(outcome, plan, run)
        outcome = add_reward(outcome, run)
        outcome = verify_evidence(outcome, evidence, plan.config.allow)
        outcome = verify_inputs(outcome, inputs, plan.config.allow)
        outcome = add_digests(outcome, plan, base)
        _record_end(folder, outcome, evidence, display)
        report_later_changes(folder, inputs, display)
    if outcome.exit_code == EXIT_DONE:
        announce_done(outcome, plan, display)
    elif outcome.exit_code != supervised.exit_code:  # supervise() could not announce this cause
        announce_failure(outcome, display)
    ended = Run(folder.path)  # it is read again, now with its outcome
    if plan.config.report:
        from launch.execution.report.page import write_run_report

        write_run_report(ended, display.say)
    for note in ended.damaged_lines:
        display.say(f"warning: {note}")
    return outcome.exit_code


def _run_recorded(  # noqa: PLR0917
    plan: Plan,
    start: AttemptStart,
    folder: RunFolder,
    display: Display,
    run_ranks: RankRunner,
    inputs: LoadedFiles,
) -> Outcome:
    """Record the start and run the ranks. An error of this process in that time (a full disk, a
    signal) becomes an outcome.
    """
    began = time.monotonic()
    try:
        resumed = resume_plan(plan, start)
        _record_start(resumed, plan, folder)
        if start.foreign is not None:
            display.say(f"warning: {start.foreign}")
        if start.checkpoint is not None:
            is_foreign = start.foreign is not None
            record_found(plan.folder, start.checkpoint.path, is_foreign=is_foreign)
        attempt = begin_attempt(plan.folder, start.checkpoint, start.incomplete, plan)
        if start.checkpoint is not None:
            display.say(f"resumes from {start.checkpoint.path.name} (attempt {attempt})")
        elif attempt > 1:
            display.say(f"attempt {attempt}: the previous one ended before its first step")
        with _tracking(plan, display):
            return run_ranks(resumed, folder, display, inputs)
    except KeyboardInterrupt as interrupt:
        cause = f"interrupted by {interrupt}" if str(interrupt) else "interrupted by SIGINT"
        outcome = Outcome(EXIT_INTERRUPTED, time.monotonic() - began, 0, None, cause=cause)
        display.say(f"{cause}: no process was left")
    except OSError as error:
        cause = f"launch could not continue: {error}"
        outcome = Outcome(EXIT_FAILED, time.monotonic() - began, 0, None, cause=cause)
        raised = RaisedError(type(error).__name__, str(error))
        cured = cure_for_errors([raised], build_watch_config(plan).situation)
        if cured is not None:
            _, cure = cured
            outcome = replace(outcome, cause_id=cure.id, cure=cure.text)
        display.say(f"the run failed: {cause}")
        if outcome.cure_line:
            display.say(outcome.cure_line)
    return outcome


def _tracking(plan: Plan, display: Display) -> AbstractContextManager[None]:
    """Write TensorBoard's files during a run that requests it. Trainers send to W&B themselves."""
    if plan.config.tracking != Tracking.tensorboard:
        return nullcontext()
    return tensorboard_writer(plan.folder, display.say)


def _record_end(
    folder: RunFolder, outcome: Outcome, evidence: tuple[Evidence, ...], display: Display | None
) -> None:
    """Write DONE or FAILED first: an error in what follows must not change the outcome."""
    with hold_signals():
        try:
            folder.finish(outcome)
        except OSError as error:
            if display is not None:
                display.say(f"warning: the outcome could not be recorded in {folder.path}: {error}")
        with contextlib.suppress(OSError):
            drop_repeated_steps(folder.metrics)
        with contextlib.suppress(OSError):
            folder.write_json("evidence.json", versioned({"items": evidence}))
    if display is not None:
        for line in evidence_table(evidence, is_whole=not sys.stdout.isatty()):
            display.say(line)


def run_steps(
    plan: Plan,
    display: Display,
    steps: int,
    *,
    inspected: bool = False,
    seconds: float | None = None,
    run_ranks: RankRunner | None = None,
) -> Outcome:
    """Run the plan in its folder, which is new, until `steps` optimizer steps are logged, and save
    no model.

    A plan of fewer steps runs to its end. Raises UserError when the run cannot be started.

    Args:
        inspected: the same plan has just run here, so preflight is skipped and the evidence is not
            printed again.
        seconds: stop the run after this time, whatever it has logged.
        run_ranks: run the processes until then, when they are not all on this machine.
    """
    with run_lock(plan.folder, display.say):
        proven = {} if inspected else _run_preflight(plan, display, ends_after=steps)
        prepare_inputs(plan, display.say)
        inputs = snapshot_files(plan, proven)
        with _prepared(plan, display) as folder:
            _record_start(plan, plan, folder)
            if run_ranks is None:
                execution = build_execution(plan, inputs)
                execution = replace(execution, stop_after=steps, seconds=seconds)
                outcome = supervise(execution, folder, display)
            else:
                outcome = run_ranks(plan, folder, display, inputs)
            run = Run(folder.path)
            evidence = _read_evidence(plan, run)
            if outcome.steps < steps:
                timed_out = _mark_timed_out(outcome, seconds)
                outcome = timed_out or verify_completion(outcome, plan, run)
            _record_end(folder, outcome, evidence, None if inspected else display)
    return outcome


def build_cache(planned: Plan, display: Display) -> int:
    """Build the tokenised data of a run, print its folder and return the exit code.

    It writes no DONE, since nothing was trained.
    """
    plan = plan_cache_pass(planned)
    with run_lock(plan.folder, display.say):
        proven = _run_preflight(plan, display, asks_parser=True)
        prepare_inputs(plan, display.say)
        inputs = snapshot_files(plan, proven)
        with _prepared(plan, display) as folder:
            _record_start(plan, plan, folder)
            folder.events.unlink(missing_ok=True)
            outcome = run_on_this_machine(plan, folder, display, inputs)
        if outcome.exit_code != EXIT_DONE:
            return outcome.exit_code
        dataset = read_dataset_event(Run(folder.path))
        if dataset is None:
            log = f"see its log in {folder.logs}"
            display.say(f"the trainer exited without reporting a data set; {log}")
            return EXIT_FAILED
        source = "built" if dataset.built else "already there"
        seconds = format_duration(outcome.seconds)
        display.say(f"tokenised data: {dataset.path} ({source}, {seconds}); nothing was trained")
    return EXIT_DONE


def build_execution(plan: Plan, inputs: LoadedFiles) -> Execution:
    """Return what the supervisor needs to run all ranks of the plan on this machine."""
    execution = Execution(
        plan.command,
        plan.env,
        plan.unset,
        watch_config=replace(build_watch_config(plan), inputs=inputs),
        server=_server_program(plan),
    )
    return replace(execution, recorded=()) if plan.only_tokenizes else execution


def _server_program(plan: Plan) -> ServerProgram | None:
    server = planned_server(plan)
    if server is None:
        return None
    return ServerProgram(server.command, server.port, server_environment(server, plan))


def _run_preflight(
    plan: Plan, display: Display, *, asks_parser: bool = False, ends_after: int | None = None
) -> Mapping[Path, str]:
    """Raise UserError with the reasons why this machine cannot run the plan; print warnings and
    what `allow` permits.

    Returns the digests of the files that the verifiers used in the reward proof.
    """
    refuse_untested_trainer(plan.config)
    findings = inspect_fast(plan, asks_parser=asks_parser, ends_after=ends_after)
    problems = stopping_problems(findings)
    if problems:
        raise UserError(problems)
    for warning in warnings(findings):
        display.say(f"warning: {warning}")
    return proven_files(findings)


@contextmanager
def _prepared(plan: Plan, display: Display) -> Iterator[RunFolder]:
    """Tokenise for a trainer that does not do it itself, and hold the caches; yield the folder.

    Raises UserError: not_tokenized.
    """
    if plan.config.trainer.tokenized_first and not plan.only_tokenizes:
        display.say(f"{plan.trainer} needs its data tokenised first")
        code = build_cache(plan, display)
        if code != EXIT_DONE:
            message = (
                f"tokenising the data failed (exit {code}), and {plan.trainer} trains only "
                "on tokenised data"
            )
            cure = "cache_only=true runs this pass by itself"
            raise refusal("not_tokenized", message, None, cure)
    with cache_lock(plan, display.say):
        yield RunFolder(plan.folder)


def _record_start(started: Plan, planned: Plan, folder: RunFolder) -> None:
    """Record everything that is known before the start.

    The command is that of `started`, which resumes from a checkpoint if there is one; everything
    else is the plan as it was `planned`.
    """
    folder.create()
    changes = describe_patches(started)
    folder.write_config(planned.resolved)
    folder.write_json("plan.json", versioned(planned))
    folder.write_command(
        started.command, {**started.env, **resources.PYTHON_VARIABLES}, started.unset
    )
    folder.write_json("patches.json", changes)
    folder.write_versions(started.command[0])
    folder.write_git(resources.ROOT, started.upstream.checkout)


def _read_evidence(
    plan: Plan,
    run: Run,
    proofs: Mapping[str, str] | None = None,
    checkpoint: Path | None = None,
) -> tuple[Evidence, ...]:
    """Return the evidence of the requested settings from the latest attempt, and from those that
    made the `checkpoint` that it resumed from.

    `proofs` has further evidence that the run must show; it is None for a run that keeps no model.
    """
    requested = requested_settings(plan.config, plan.parallel, plan.inputs.mixture)
    if proofs is not None:
        requested |= proofs
    inspects = any(patch in EVIDENCE_PATCHES for patch in plan.patches)
    attempt = max(1, latest_attempt(run.folder))  # the short runs of a trial record no attempt
    found = read_evidence(run, requested, attempt, inspects=inspects)
    if checkpoint is not None:
        found = add_earlier_proofs(found, run, requested, checkpoint.name)
        found = compare_unchanged(found, plan, run, checkpoint)
    items = [*found, *check_first_loss(plan, run)]
    if proofs is not None:
        overridden = overridden_settings(plan.config, plan.parallel)
        return (*items, *unchecked_settings(overridden))
    if sum(1 for _ in run.steps()) <= FEW_STEPS:
        items = [_excuse_first_update(item) for item in items]
    how = "a trial of a few steps saves none: its weights are not checked"
    return (*items, Evidence("saved_weights", "no model", how))


def _excuse_first_update(item: Evidence) -> Evidence:
    """Mark a missing first update as too early to judge: the learning rate of the first step or two
    may have been 0.
    """
    if item.what == "first_update" and item.verdict == UNPROVEN:
        return replace(item, how=TOO_SHORT)
    return item


def _mark_timed_out(outcome: Outcome, seconds: float | None) -> Outcome | None:
    """Return the outcome of a run that was stopped at its time limit; None for any other."""
    if seconds is None or outcome.seconds < seconds or outcome.exit_code != EXIT_DONE:
        return None
    cause = f"stopped after its time limit of {seconds:.0f} s"
    return replace(outcome, exit_code=EXIT_STOPPED, cause=cause, cause_id="time_used")
