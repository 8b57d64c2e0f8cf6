"""Runs the stages of a pipeline in order on this machine; the same command resumes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from launch.check.machine.rules import preflight, wait_for_gpus
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError, actions_of, refusal
from launch.evaluation.record import read_summary
from launch.execution.display import Display, SafeDisplay
from launch.execution.record.lock import run_lock
from launch.execution.record.run import objects
from launch.execution.report.page import write_report
from launch.execution.resume import describe_continuation, is_finished, resume_problems
from launch.pipelines.links import Pipeline, plan_link
from launch.pipelines.page import answer_stage_prompts, render_pipeline
from launch.pipelines.record import stale_runs, write_record
from launch.planning.find_runs import run_name
from launch.planning.parallel import require_one_machine
from launch.planning.plan import Plan
from launch.terminal import echo
from launch.worker.finding import Action, Finding, Fix

# A function that runs a planned stage to its end and returns its exit code.
StageRunner = Callable[[Plan, Display], int]


def check_pipeline(pipeline: Pipeline) -> None:
    """Check this machine for every stage that is still to run.

    Raises UserError with what keeps a stage from running.
    """
    plans = [plan for plan in pipeline.plans if not is_finished(plan)]
    # The parsers come last, because each takes seconds.
    for asks_parser in (False, True):
        by_id: dict[str | None, list[Finding]] = {}
        for plan in plans:
            require_one_machine(plan.config)
            problems, _ = preflight(plan, asks_parser=asks_parser)
            for problem in [*problems, *resume_problems(plan)]:
                named = pipeline.request.name_stage(problem, plan.stage)
                by_id.setdefault(problem.id, []).append(named)
        if by_id:
            raise UserError([_merge(problems) for problems in by_id.values()])


def _merge(problems: Sequence[Finding]) -> Finding:
    """Return one problem for the same problem of several stages.

    Its cure has the overrides of all of them, if the cure of each has a single action.
    """
    first = problems[0]
    if not isinstance(first.cure, Fix):
        return first
    overrides: dict[str, None] = {}  # a dictionary keeps the order, without duplicates
    for problem in problems:
        actions = actions_of(problem.cure)
        if len(actions) != 1:
            return first
        overrides.update(dict.fromkeys(actions[0].sets))
    return replace(first, cure=Fix.of(first.cure.sentence, Action(tuple(overrides))))


def run_pipeline(
    pipeline: Pipeline, make_display: Callable[[Path], Display], run_stage: StageRunner
) -> int:
    """Run the stages in order and return the exit code.

    That is the code of the first stage that fails, and 3 if stop_if_worse=true ends the pipeline.

    Raises UserError when the pipeline cannot be started, or one of its stages.
    """
    check_pipeline(pipeline)
    stale = stale_runs(pipeline)
    if stale:
        origin = "of an earlier pipeline of these stages with other settings"
        echo(f"note: stale, not reused: {', '.join(stale)} {origin}")
    code = EXIT_DONE
    plan = pipeline.plans[0]
    with run_lock(pipeline.folder, echo):
        write_record(pipeline)
        try:
            for index, plan in enumerate(pipeline.plans):
                position = f"stage {index + 1} of {len(pipeline.plans)}"
                echo(f"{position}: {run_name(plan.folder)}", flush=True)
                with pipeline.request.cures_for(plan.stage):
                    code = _run_stage(pipeline, index, make_display, run_stage)
                if code != EXIT_DONE:
                    break
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        finally:
            if code != EXIT_DONE or sys.exception():
                echo(_describe_end(pipeline, plan), flush=True)
    return code


def _describe_end(pipeline: Pipeline, plan: Plan) -> str:
    """Describe where a pipeline ended and how to continue it."""
    request = pipeline.request

    def name_stage(problem: Finding) -> Finding:
        return request.name_stage(problem, plan.stage)

    remaining = request.stages[request.stages.index(plan.stage) + 1 :]
    not_started = f"; {', '.join(remaining)} not started" if remaining else ""
    continuation = describe_continuation(plan, request.stop_if_worse, name_stage)
    if isinstance(sys.exception(), UserError):  # its problems are printed after this line
        continuation = "to continue: put right what follows, then the same command"
    return f"pipeline {pipeline.name} ended in {plan.stage}{not_started}; {continuation}"


def _run_stage(
    pipeline: Pipeline, index: int, make_display: Callable[[Path], Display], run_stage: StageRunner
) -> int:
    """Run one stage, which is planned again once the model that it starts from exists."""
    planned = pipeline.plans[index]
    display = SafeDisplay(make_display(planned.folder), sys.stdout)
    plan = planned
    if index:
        plan = plan_link(pipeline.request, planned.stage, pipeline.plans[index - 1], display.say)
        if plan.identity != planned.identity:
            identities = f"planned as {planned.identity} and is {plan.identity} now"
            message = f"{planned.stage} was {identities}"
            cure = "an input has changed meanwhile: start the pipeline again"
            raise refusal("pipeline_changed", message, f"pipeline {pipeline.name}", cure)
        if not is_finished(plan):
            wait_for_gpus(plan, display.say)
    code = run_stage(plan, display)
    if code == EXIT_DONE and plan.config.report:
        answer_stage_prompts(pipeline, plan, display.say)
        write_report(pipeline.folder, lambda: render_pipeline(pipeline.folder), display.say)
    if code == EXIT_DONE and pipeline.request.stop_if_worse:
        code = _judge(plan, display)
    return code


def _judge(plan: Plan, display: Display) -> int:
    """Return EXIT_STOPPED if the evaluation found the model worse than the previous stage's.

    The same code is returned if the evaluation is broken or missing.
    """
    summary = read_summary(plan.folder) or {}
    tasks = objects(summary.get("tasks"))
    worse: list[str] = []
    broken: list[str] = []
    for task in tasks:
        evaluated_model = objects(task.get("models"))[-1]
        if task.get("broken"):
            broken.append(str(task.get("task")))
        elif evaluated_model.get("verdict_against_previous") == "worse":
            worse.append(str(task.get("task")))
    if worse:
        reason = f"is worse than the model that it started from on {', '.join(worse)}"
    elif broken:
        reason = f"has a broken evaluation on {', '.join(broken)}"
    elif not tasks:
        reason = "was not evaluated"
    else:
        return EXIT_DONE
    display.say(f"{run_name(plan.folder)} {reason}: stop_if_worse=true ends the pipeline")
    return EXIT_STOPPED
