"""`eval RUN`: score a run's model against those it comes from, with a verdict per task."""

from __future__ import annotations

from launch.commands.run_parsers import build_eval_parser
from launch.errors import EXIT_DONE, EXIT_STOPPED
from launch.evaluation.evaluate import describe_scores, evaluate_model
from launch.evaluation.models import find_model
from launch.evaluation.suites import default_tasks, find_specs
from launch.execution.report.page import write_run_report
from launch.terminal import echo, notify, print_json


def eval(argv: list[str]) -> int:
    """Evaluate a run and print the scores.

    Raises UserError: those of VerbParser.parse, find_model, find_specs and evaluate_model.
    """
    options = build_eval_parser().parse(argv)
    model = find_model(options.name, options.runs)
    specs = find_specs(options.tasks or default_tasks(model.run), options.runs.absolute() / ".cache")
    evaluation = evaluate_model(model, specs, limit=options.limit, batch_size=options.batch_size, notify=notify)
    if options.report and model.run is not None:
        write_run_report(model.run, notify)
    if options.json:
        print_json(evaluation)
    else:
        echo("\n".join(describe_scores(evaluation)))
    return EXIT_STOPPED if evaluation.is_broken else EXIT_DONE
