"""`eval RUN`: score a run's model against those it comes from, with a verdict per task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.commands.run_parsers import build_eval_parser
from launch.errors import EXIT_DONE, EXIT_STOPPED
from launch.evaluation.evaluate import Evaluation, TaskResult, evaluate_model
from launch.evaluation.models import ModelSource, find_model
from launch.evaluation.suites import DEMO, TULU3, find_specs
from launch.execution.record.events import to_strict_json
from launch.execution.report.write import write_run_report
from launch.files import read_file
from launch.terminal import print_json, printable

_WIDTH = 34  # characters of a model's label


def eval(argv: list[str]) -> int:
    """Evaluate a run and print the scores.

    Raises UserError: those of VerbParser.parse, find_model, find_specs and evaluate_model.
    """
    options = build_eval_parser().parse(argv)
    model = find_model(options.name, options.runs)
    specs = find_specs(options.tasks or default_tasks(model), options.runs.absolute() / ".cache")
    evaluation = evaluate_model(model, specs, limit=options.limit, batch_size=options.batch_size, notify=_notify)
    if model.run is not None:
        write_run_report(model.run, _notify)
    if options.json:
        print_json(to_strict_json(evaluation.as_json()))
    else:
        print("\n".join(map(printable, describe(evaluation))))
    return EXIT_STOPPED if evaluation.is_broken else EXIT_DONE


def default_tasks(model: ModelSource) -> str:
    """Return the tasks of a run's stage: the demo's own for a model that was built here, else Tulu 3's."""
    import yaml

    config: dict[str, Any] = {}
    if model.run is not None and (model.run / "config.yaml").is_file():
        config = yaml.safe_load(read_file(model.run / "config.yaml")) or {}
    is_demo = config.get("data", {}).get("build") or config.get("model", {}).get("build")
    return DEMO if is_demo else TULU3


def describe(evaluation: Evaluation) -> Iterator[str]:
    """Yield the scores and verdicts as a table, task by task."""
    for task in evaluation.tasks:
        yield from _describe_task(task)
    folder = next((Path(path).parent for task in evaluation.tasks for path in task.samples.values()), None)
    yield f"{evaluation.computed} results computed in {evaluation.seconds:.0f} s; every answer is in {folder}"


def _describe_task(task: TaskResult) -> Iterator[str]:
    gain, labels = task.against_base, task.labels
    arrow = "higher" if task.scores[labels[-1]].higher_is_better else "lower"
    yield f"{task.name}  {task.scores[labels[-1]].metric} ({arrow} is better), {gain.questions} questions"
    for previous, label in zip([None, *labels], labels, strict=False):
        score = task.scores[label]
        error = "" if score.stderr is None else f" +- {score.stderr:.4f}"
        against = f"{task.gain(label, previous).verdict} than the one before" if previous else ""
        against = against.replace("same than", "same as")
        yield f"  {label[-_WIDTH:]:<{_WIDTH}}  {score.score:.4f}{error:<12}  {against}".rstrip()
    if len(labels) > 1:
        words = "not told apart from" if gain.verdict == "same" else f"{gain.verdict} than"
        yield f"  verdict: {words} {labels[0]}, by {gain.mean:+.4f} +- {gain.half:.4f} a question"
    yield from (f"  broken: {reason}" for reason in task.broken)


def _notify(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
