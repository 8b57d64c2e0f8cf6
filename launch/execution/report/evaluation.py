"""Reads what a run's model answered: in the tasks of evaluation.json, and while it trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from launch.execution.record.events import Event
from launch.execution.record.run import Run, mapping, number, objects
from launch.files import iterate_json_lines, read_json_object
from launch.table import format_measurement

_ANSWERS = 3  # answers of each task that are shown
_MAX_ROWS = 2000  # rows of a file of answers that are read
_MAX_CHARACTERS = 600  # characters of a prompt or an answer that are shown


@dataclass(frozen=True)
class EvaluationSection:
    """The tables of an evaluation; the first row of each is its head."""

    rows: list[list[str]]  # a row for each task: the score of each model
    answers: list[list[str]]  # each model's answers to the first questions of each task
    source: str  # the model and the harness


@dataclass(frozen=True)
class _Answer:
    """A model's answer to one question of a task."""

    task: str
    prompt: str
    text: str
    target: str  # the expected answer


def read_evaluation(folder: Path) -> EvaluationSection | None:
    """Read evaluation.json and the answers that it names; None without a task."""
    record = read_json_object(folder / "evaluation.json")
    tasks = objects(record.get("tasks"))
    if not tasks:
        return None
    sample_files = _find_sample_files(tasks)
    models = list(sample_files)
    rows = [["task", "metric", *models, "verdict"]]
    rows += [_score_row(task, models) for task in tasks]
    source = f"{record.get('model')}, {record.get('harness')}"
    return EvaluationSection(rows, _answer_rows(sample_files), source)


def _find_sample_files(tasks: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the files with the answers of each model, each file once, by the model's name."""
    files: dict[str, list[str]] = {}
    for task in tasks:
        for model in objects(task.get("models")):
            of_model = files.setdefault(str(model.get("model")), [])
            file = str(model.get("samples"))
            if file not in of_model:
                of_model.append(file)
    return files


def _answer_rows(sample_files: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return a row for each prompt of a task: what is expected, and each model's answer."""
    models = list(sample_files)
    targets: dict[tuple[str, str], str] = {}  # {(task, prompt): expected answer}
    answers: dict[tuple[str, str], dict[str, str]] = {}  # {(task, prompt): {model: answer}}
    for model, files in sample_files.items():
        for file in files:
            for answer in _read_answers(Path(file)):
                question = (answer.task, answer.prompt)
                targets.setdefault(question, answer.target)
                answers.setdefault(question, {})[model] = answer.text
    rows = [["task", "prompt", "expected", *models]]
    for question, texts in answers.items():
        cells = [texts.get(model, "") for model in models]
        rows.append([*question, targets[question], *cells])
    return rows


def _read_answers(path: Path) -> Iterator[_Answer]:
    """Yield the first generated answers of each task in a file of lm-evaluation-harness.

    A task that only scores given texts has no generated answers.
    """
    counts: Counter[str] = Counter()
    for row in islice(iterate_json_lines(path), _MAX_ROWS):
        if row is None:
            continue
        text = _first_text(row.get("filtered_resps"))
        if text is None:
            continue
        task = str(row.get("task"))
        counts[task] += 1
        if counts[task] > _ANSWERS:
            continue
        prompt = _first_text(row.get("arguments"))
        yield _Answer(task, _truncate(prompt), _truncate(text), _truncate(row.get("target")))


def _first_text(value: object) -> str | None:
    while isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) else None


def _truncate(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def _score_row(task: Mapping[str, Any], models: Sequence[str]) -> list[str]:
    scores = {str(model.get("model")): model for model in objects(task.get("models"))}
    direction = "higher" if task.get("higher_is_better") else "lower"
    cells = [_describe_score(mapping(scores.get(name))) for name in models]
    verdict = _describe_verdict(task)
    broken = task.get("broken")
    if isinstance(broken, list) and broken:
        verdict = "broken: " + ", ".join(map(str, broken))
    elif len(models) > 2:
        against = mapping(scores.get(models[-1])).get("verdict_against_previous")
        if against:
            verdict += f"; {against} against the previous model"
    return [str(task.get("task")), f"{task.get('metric')}, {direction} is better", *cells, verdict]


def _describe_verdict(task: Mapping[str, Any]) -> str:
    """Return the verdict of a task with its number of questions and its interval."""
    interval = ""
    half_interval = number(task.get("gain_half_interval"))
    if half_interval is not None:
        interval = f"± {format_measurement(half_interval)} at 95 %, "
    summary = task.get("summary") or task.get("verdict")
    return f"{summary} ({interval}{task.get('questions')} questions)"


def _describe_score(model: Mapping[str, Any]) -> str:
    """Return a model's score of a task with its standard error; `-` without one."""
    score = number(model.get("score"))
    if score is None:
        return "-"
    error = number(model.get("stderr"))
    if error is None or not math.isfinite(error):
        return format_measurement(score)
    return f"{format_measurement(score)} ± {format_measurement(error)}"


def read_samples(run: Run) -> list[tuple[str, list[list[str]]]]:
    """Return the prompts that the model answered while it trained, each with a table of its answers
    by step.
    """
    answers: dict[str, dict[int, str]] = {}  # {prompt: {step: answer}}
    for event in run.events("completion"):
        prompt = _truncate(event.data.get("prompt"))
        answers.setdefault(prompt, {})[event.data["step"]] = _describe_completion(event)
    samples = []
    for prompt, by_step in answers.items():
        rows = [["step", "answer"]]
        rows += [[f"{step:,}", answer] for step, answer in sorted(by_step.items())]
        samples.append((prompt, rows))
    return samples


def _describe_completion(event: Event) -> str:
    """Return the sampled text, and the value of each reward function that judged it."""
    parts = [_truncate(event.data.get("completion"))]
    for name, value in mapping(event.data.get("rewards")).items():
        reward = number(value)
        if reward is not None:
            parts.append(f"{name} {format_measurement(reward)}")
    return ", ".join(parts)
