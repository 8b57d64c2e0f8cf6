"""The page of a pipeline: its stages' curves, evaluations, and answers to the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from launch.errors import UserError, refusal
from launch.evaluation.generation import Sampling, as_conversation, open_responder
from launch.evaluation.models import find_model
from launch.execution.record.run import Run, is_run_folder, mapping, objects
from launch.execution.report.evaluation import read_evaluation
from launch.execution.report.page import render_runs
from launch.execution.report.summary import find_state
from launch.files import iterate_json_lines, read_json_object, write_json
from launch.pipelines.links import Pipeline
from launch.pipelines.record import describe_stages, stage_runs
from launch.planning.find_runs import run_name
from launch.planning.plan import Plan
from launch.table import Table, format_duration
from launch.worker.json_codec import versioned

SAMPLES = "samples.json"  # file in the folder of a stage's run
_PROMPTS = 3
_SAMPLING = Sampling(max_tokens=128)
# Prompts that are used where the first stage's data is not on this machine.
_GENERAL = (
    "What is the difference between a list and a tuple in Python?",
    "Write a short, friendly email that moves a meeting to Friday.",
    "A train travels 120 km in 1.5 hours. How fast is it?",
)


def answer_stage_prompts(pipeline: Pipeline, plan: Plan, say: Callable[[str], None]) -> None:
    """Have the model of a finished stage answer the prompts, once; an error is only a warning."""
    if (plan.folder / SAMPLES).is_file():
        return
    prompts = _choose_prompts(pipeline.plans[0])
    say(f"the model of {plan.stage} answers {len(prompts)} prompts for the pipeline's page")
    try:
        with open_responder(find_model(str(plan.folder), plan.runs)) as responder:
            answers = {}
            for prompt in prompts:
                answers[prompt] = responder.answer(as_conversation(prompt), _SAMPLING).text
        write_json(plan.folder / SAMPLES, versioned({"answers": answers}))
    except (UserError, OSError) as error:
        reason = error.problems[0] if isinstance(error, UserError) else error
        say(f"warning: no sample answers: {reason}")


def _choose_prompts(plan: Plan) -> Sequence[str]:
    """Return the first user turns of the first stage's local data; without any, general prompts."""
    source = plan.inputs.mixture[0].source.local
    if source is None or not source.is_file():
        return _GENERAL
    prompts = []
    for row in islice(iterate_json_lines(source), _PROMPTS):
        prompt = _first_user_turn(row or {})
        if prompt is not None:
            prompts.append(prompt)
    return prompts if len(prompts) == _PROMPTS else _GENERAL


def _first_user_turn(row: Mapping[str, Any]) -> str | None:
    """Return the text of the first user turn of a row, None without one."""
    turns = objects(row.get("messages") or row.get("chosen") or row.get("prompt"))
    for turn in turns:
        if turn.get("role") == "user":
            return str(turn["content"]) if "content" in turn else None
    return None


def render_pipeline(folder: Path) -> str:
    """Return the page of the stages of a pipeline that have started.

    Raises UserError: no_record.
    """
    runs = [run for _, run in stage_runs(folder) if is_run_folder(run)]
    if not runs:
        raise refusal(
            "no_record", f"no stage of pipeline {folder.name} has started", "command line"
        )
    # An evaluation also has the scores of earlier stages, so that the last one of the same tasks is
    # shown.
    scores: dict[str, Sequence[Sequence[str]]] = {}
    for run in runs:
        evaluation = read_evaluation(run)
        if evaluation:
            tasks = [row[0] for row in evaluation.rows if row]
            scores[str(tasks)] = evaluation.rows
    tables = [Table("Evaluations side by side", rows) for rows in scores.values()]
    tables += _answer_table(runs)
    return render_runs(
        [Run(run) for run in runs],
        tables,
        title=f"pipeline {folder.name}",
        labels=_label_stages(folder),
        lead=_describe_state(folder),
        is_sequence=True,
    )


def _describe_state(folder: Path) -> tuple[str, str]:
    """Return the state of a pipeline, and a sentence with that of each stage and their time."""
    stages = stage_runs(folder)
    states = [find_state(Run(run)) if is_run_folder(run) else "not started" for _, run in stages]
    unfinished = [state for state in states if state != "done"]
    state = "done"
    if unfinished:
        state = unfinished[0] if unfinished[0] != "not started" else "unfinished"
    sentence = describe_stages(folder)
    outcomes = [Run(run).outcome for _, run in stages]
    seconds = sum(outcome.seconds for outcome in outcomes if outcome is not None)
    if seconds:
        sentence += f"; the finished attempts took {format_duration(seconds)}"
    return state, sentence


def _label_stages(folder: Path) -> list[str]:
    """Return the stage's name of each run that has started; a stage that comes twice is labelled by
    the name of its run.
    """
    started = [(stage, run) for stage, run in stage_runs(folder) if is_run_folder(run)]
    stages = [stage for stage, _ in started]
    return [run_name(run) if stages.count(stage) > 1 else stage for stage, run in started]


def _show_answer(answer: Any) -> str:
    if answer is None:
        return "-"
    text = str(answer)
    return text if text.strip() else "(empty: the model ended its answer at once)"


def _answer_table(runs: list[Path]) -> Iterator[Table]:
    """Yield a table with a row for each prompt and a column for each run, if there are answers."""
    answers: dict[str, Mapping[str, Any]] = {}
    prompts: dict[str, None] = {}  # a dictionary keeps the order, without duplicates
    for run in runs:
        answers[run_name(run)] = mapping(read_json_object(run / SAMPLES).get("answers"))
        prompts.update(dict.fromkeys(answers[run_name(run)]))
    if not prompts:
        return
    rows = [["prompt", *answers]]
    for prompt in prompts:
        cells = [_show_answer(texts.get(prompt)) for texts in answers.values()]
        rows.append([prompt, *cells])
    yield Table("What each stage answers", rows)
