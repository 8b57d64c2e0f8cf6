"""What `launch eval` left in a run folder: scores of the run's model and those before it, and some answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from launch.execution.record.reader import mapping, number, objects
from launch.execution.report.charts import format_value
from launch.files import iterate_json_lines, read_json_object

_ANSWERS = 3  # of each task
_MAX_ROWS = 2000  # of a file of answers
_MAX_CHARACTERS = 2000


@dataclass(frozen=True)
class Answer:
    task: str
    prompt: str
    text: str
    target: str


@dataclass(frozen=True)
class EvaluationSection:
    rows: list[list[str]]  # the first is the head
    answers: list[Answer]
    source: str  # the model and the harness


def read_evaluation(folder: Path) -> EvaluationSection | None:
    """Read evaluation.json and the answers that it names; None without a task."""
    record = read_json_object(folder / "evaluation.json")
    tasks = objects(record.get("tasks"))
    if not tasks:
        return None
    models = list(dict.fromkeys(str(model.get("model")) for task in tasks for model in objects(task.get("models"))))
    rows = [["task", "metric", *models, "gain over the first", "verdict"]]
    rows += [_score_row(task, models) for task in tasks]
    files = [str(scored[-1].get("samples")) for task in tasks if (scored := objects(task.get("models")))]
    answers = [answer for file in dict.fromkeys(files) for answer in _read_answers(Path(file))]
    return EvaluationSection(rows, answers, f"{record.get('model')}, {record.get('harness')}")


def _score_row(task: Mapping[str, Any], models: Sequence[str]) -> list[str]:
    scores = {str(model.get("model")): model for model in objects(task.get("models"))}
    better = "higher" if task.get("higher_is_better") else "lower"
    broken = ", ".join(map(str, task["broken"])) if isinstance(task.get("broken"), list) else ""
    return [
        str(task.get("task")),
        f"{task.get('metric')}, {better} is better",
        *(_plus_minus(mapping(scores.get(name)), "score", "stderr") for name in models),
        f"{_plus_minus(task, 'gain', 'gain_half_interval')} ({task.get('questions')} questions, 95 %)",
        f"broken: {broken}" if broken else str(task.get("verdict")),
    ]


def _plus_minus(fields: Mapping[str, Any], value: str, spread: str) -> str:
    center, half = number(fields.get(value)), number(fields.get(spread))
    if center is None:
        return "-"
    return format_value(center) + (f" ± {format_value(half)}" if half is not None and math.isfinite(half) else "")


def _read_answers(path: Path) -> list[Answer]:
    """Return the first generated answers of each task; a task that only scores given texts has none."""
    counts: dict[str, int] = {}
    answers = []
    for row in islice(iterate_json_lines(path), _MAX_ROWS):
        prompt, text = _first_text((row or {}).get("arguments")), _first_text((row or {}).get("filtered_resps"))
        if row is None or text is None:
            continue
        task = str(row.get("task"))
        counts[task] = counts.get(task, 0) + 1
        if counts[task] <= _ANSWERS:
            answers.append(Answer(task, _cut(prompt), _cut(text), _cut(row.get("target"))))
    return answers


def _first_text(value: object) -> str | None:
    while isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) else None


def _cut(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
