"""The page of a pipeline: the curves of its stages, their evaluations side by side, and what each answers to the same
three prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from launch.errors import Problem, UserError
from launch.evaluation.generation import Sampling, as_conversation, open_responder
from launch.evaluation.models import find_model
from launch.evaluation.record import read_summary
from launch.execution.record.reader import RunRecord, mapping, objects, run_name
from launch.execution.report.page import render_runs
from launch.execution.report.run import ReportedRun, is_run_folder
from launch.files import iterate_json_lines, read_json_object, write_json
from launch.pipelines.links import Pipeline
from launch.pipelines.record import stage_runs
from launch.planning.plan import Plan
from launch.table import Table, format_number

SAMPLES = "samples.json"  # in the pipeline's folder
_PROMPTS = 3
_SAMPLING = Sampling(max_tokens=128)
# where the first stage's data is not on this machine
_GENERAL = (
    "What is the difference between a list and a tuple in Python?",
    "Write a short, friendly email that moves a meeting to Friday.",
    "A train travels 120 km in 1.5 hours. How fast is it?",
)


def answer_prompts(pipeline: Pipeline, plan: Plan, say: Callable[[str], None]) -> None:
    """Have the model of a finished stage answer the prompts, once; what goes wrong is a warning."""
    file, finished = pipeline.folder / SAMPLES, RunRecord(plan.folder).finished
    record = read_json_object(file)
    prompts = record.get("prompts") or list(_choose_prompts(pipeline.plans[0]))
    answers = mapping(record.get("answers"))
    name = run_name(plan.folder)
    if mapping(answers.get(name)).get("finished") == finished:
        return
    try:
        with open_responder(find_model(str(plan.folder), plan.runs)) as responder:
            texts = [responder.answer(as_conversation(prompt), _SAMPLING).text for prompt in prompts]
        answers[name] = {"finished": finished, "texts": texts}
        write_json(file, {"schema_version": 1, "prompts": prompts, "answers": answers})
    except (UserError, OSError) as error:
        say(f"warning: no sample answers: {error.problems[0] if isinstance(error, UserError) else error}")


def _choose_prompts(plan: Plan) -> Sequence[str]:
    """Return the first user turns of the first stage's local data; without any, general prompts."""
    source = plan.inputs.mixture[0].source.local
    rows = islice(iterate_json_lines(source), _PROMPTS) if source and source.is_file() else ()
    conversations = [objects(row.get("messages") or row.get("chosen") or row.get("prompt")) for row in rows if row]
    firsts = [next((turn for turn in turns if turn.get("role") == "user"), {}) for turns in conversations]
    texts = [str(turn["content"]) for turn in firsts if "content" in turn]
    return texts if len(texts) == _PROMPTS else _GENERAL


def render_pipeline(folder: Path) -> str:
    """Return the page of a pipeline, as far as its stages have begun. Raises UserError: no_record."""
    runs = [run for _, run in stage_runs(folder) if is_run_folder(run)]
    if not runs:
        raise UserError(Problem("no_record", f"no stage of pipeline {folder.name} has begun", "command line"))
    tables = [*_score_table(runs), *_answer_table(folder, runs)]
    return render_runs([ReportedRun(run) for run in runs], tables, title=f"pipeline {folder.name}")


def _score_table(runs: list[Path]) -> Iterator[Table]:
    """Yield the scores of each task, of all models that the last stage with it was compared with."""
    tasks = {str(task.get("task")): task for run in runs for task in objects((read_summary(run) or {}).get("tasks"))}
    models = [{str(model.get("model")): model for model in objects(task.get("models"))} for task in tasks.values()]
    labels = list(dict.fromkeys(label for scores in models for label in scores))
    rows = [["task", "metric", *labels]] if tasks else []
    for (name, task), scores in zip(tasks.items(), models, strict=True):
        rows.append([name, str(task.get("metric")), *(_describe_score(scores.get(label)) for label in labels)])
    if rows:
        yield Table("Evaluations, each model against the one before it", rows)


def _describe_score(model: Mapping[str, Any] | None) -> str:
    if model is None:
        return "-"
    verdict = model.get("verdict_against_previous")
    return format_number(model.get("score"), ".4f") + (f", {verdict}" if verdict else "")


def _answer_table(folder: Path, runs: list[Path]) -> Iterator[Table]:
    record = read_json_object(folder / SAMPLES)
    names = [name for name in map(run_name, runs) if name in mapping(record.get("answers"))]
    if names:
        columns = [record["prompts"], *(record["answers"][name]["texts"] for name in names)]
        rows = [list(map(str, row)) for row in zip(*columns, strict=False)]
        yield Table("What each stage answers", [["prompt", *names], *rows])
