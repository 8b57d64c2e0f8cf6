"""Run the stages of a pipeline one after the other on this machine; the same command resumes where
it stopped.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from launch.check.machine.rules import preflight, wait_for_gpus
from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED, UserError, refusal, ways_of
from launch.evaluation.record import read_summary
from launch.execution.display import Display, SafeDisplay
from launch.execution.record.lock import run_lock
from launch.execution.record.run import objects
from launch.execution.report.page import write_report
from launch.execution.resume import describe_continuation, is_finished, resume_problems
from launch.pipelines.links import Pipeline, plan_link
from launch.pipelines.page import answer_prompts, render_pipeline
from launch.pipelines.record import stale_runs, write_record
from launch.planning.find_runs import run_name
from launch.planning.parallel import require_one_machine
from launch.planning.plan import Plan
from launch.terminal import echo
from launch.worker.finding import Finding, Fix, Way

# runs a planned stage to its end and returns its exit code
StageRunner = Callable[[Plan, Display], int]


def check_pipeline(pipeline: Pipeline) -> None:
    """Check this machine for every stage that is still to run. Raises UserError with what keeps one
    from running.
    """
    plans = [plan for plan in pipeline.plans if not is_finished(plan)]
    for asks_parser in (False, True):  # the parser takes seconds
        found: dict[str | None, list[Finding]] = {}  # by id
        for plan in plans:
            require_one_machine(plan.config)
            problems = preflight(plan, asks_parser=asks_parser)[0] + resume_problems(plan)
            for problem in problems:
                found.setdefault(problem.id, []).append(
                    pipeline.request.name_stage(problem, plan.stage)
                )
        if found:
            raise UserError([_merge(problems) for problems in found.values()])


def _merge(problems: Sequence[Finding]) -> Finding:
    """Return one problem for the same one of several stages: its cure has the overrides of all of
    them.
    """
    first, ways = problems[0], [ways_of(problem.cure) for problem in problems]
    if not isinstance(first.cure, Fix) or not all(len(each) == 1 for each in ways):
        return first
    together = dict.fromkeys(override for (way,) in ways for override in way.sets)
    return replace(first, cure=Fix.of(first.cure.sentence, Way(tuple(together))))


def run_pipeline(
    pipeline: Pipeline, make_display: Callable[[Path], Display], run_stage: StageRunner
) -> int:
    """Run the stages in order and return the exit code: that of the first stage that fails, 3 after
    a significant loss with stop_if_worse=true.

    Raises UserError when the pipeline cannot be started, or one of its stages.
    """
    check_pipeline(pipeline)
    if stale := stale_runs(pipeline):
        echo(
            f"note: stale, not reused: {', '.join(stale)} of an earlier pipeline of these stages "
            "with other settings"
        )
    code, plan = EXIT_DONE, pipeline.plans[0]
    with run_lock(pipeline.folder, echo):
        write_record(pipeline)
        try:
            for index, plan in enumerate(pipeline.plans):
                echo(
                    f"stage {index + 1} of {len(pipeline.plans)}: {run_name(plan.folder)}",
                    flush=True,
                )
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
    """Say where a pipeline ended and how to go on."""
    request, stage = pipeline.request, plan.stage
    left = request.stages[request.stages.index(stage) + 1 :]
    begun = f"; {', '.join(left)} not begun" if left else ""
    goes_on = describe_continuation(
        plan, request.stop_if_worse, lambda problem: request.name_stage(problem, stage)
    )
    return f"pipeline {pipeline.name} ended in {stage}{begun}; {goes_on}"


def _run_stage(
    pipeline: Pipeline, index: int, make_display: Callable[[Path], Display], run_stage: StageRunner
) -> int:
    planned = pipeline.plans[index]
    display = SafeDisplay(make_display(planned.folder), sys.stdout)
    plan = planned
    if index:  # the model that it starts from is there now
        plan = plan_link(pipeline.request, planned.stage, pipeline.plans[index - 1], display.say)
        if plan.identity != planned.identity:
            message = (
                f"{planned.stage} was planned as {planned.identity} and is {plan.identity} now"
            )
            cure = "an input has changed meanwhile: start the pipeline again"
            raise refusal("pipeline_changed", message, f"pipeline {pipeline.name}", cure)
        if not is_finished(plan):
            wait_for_gpus(plan, display.say)
    code = run_stage(plan, display)
    if code == EXIT_DONE and plan.config.report:
        answer_prompts(pipeline, plan, display.say)
        write_report(pipeline.folder, lambda: render_pipeline(pipeline.folder), display.say)
    if code == EXIT_DONE and pipeline.request.stop_if_worse:
        code = _judge(plan, display)
    return code


def _judge(plan: Plan, display: Display) -> int:
    """Return EXIT_STOPPED if the evaluation found the model worse than the one before it, or did
    not judge it.
    """
    tasks = objects((read_summary(plan.folder) or {}).get("tasks"))
    found = defaultdict[str, list[str]](list)
    for task in tasks:
        verdict = objects(task.get("models"))[-1].get("verdict_against_previous")
        found["broken" if task.get("broken") else str(verdict)].append(str(task.get("task")))
    worse, broken = (", ".join(found[verdict]) for verdict in ("worse", "broken"))
    if tasks and not (worse or broken):
        return EXIT_DONE
    what = f"has a broken evaluation on {broken}" if broken else "was not evaluated"
    what = f"is worse than the model that it started from on {worse}" if worse else what
    display.say(f"{run_name(plan.folder)} {what}: stop_if_worse=true ends the pipeline")
    return EXIT_STOPPED
