"""`evaluate=true`: score the model of a run that is done. Whatever happens here leaves the run's outcome as it is."""

from __future__ import annotations

from collections.abc import Callable

from launch.errors import UserError
from launch.evaluation.evaluate import evaluate_model
from launch.evaluation.models import find_model
from launch.evaluation.score_table import describe_scores
from launch.evaluation.suites import default_tasks, find_specs
from launch.execution.report.write import write_run_report
from launch.planning.plan import Plan

BATCH_SIZE = 8  # questions at once


def evaluate_finished_run(plan: Plan, notify: Callable[[str], None]) -> None:
    """Evaluate the model of a plan's run on the tasks of its stage; why that fails is only reported."""
    try:
        model = find_model(str(plan.folder), plan.runs)
        tasks = ",".join(plan.config.stage.tasks) or default_tasks(plan.folder)
        specs = find_specs(tasks, plan.runs / ".cache")
        evaluation = evaluate_model(model, specs, limit=None, batch_size=BATCH_SIZE, notify=notify)
    except UserError as error:
        for problem in error.problems:
            notify(f"warning: the model was not evaluated: {problem}")
        return
    except OSError as error:
        notify(f"warning: the model was not evaluated: {error}")
        return
    for line in describe_scores(evaluation):
        notify(line)
    if plan.config.report:
        write_run_report(plan.folder, notify)
