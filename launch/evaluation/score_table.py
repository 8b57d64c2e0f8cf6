"""The scores and verdicts of an evaluation as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launch.evaluation.evaluate import Evaluation, TaskResult

_WIDTH = 34  # characters of a model's label


def describe_scores(evaluation: Evaluation) -> Iterator[str]:
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
