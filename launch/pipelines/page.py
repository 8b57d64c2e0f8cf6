"""The page of a pipeline: the curves of its stages, their evaluations side by side, and what each
answers to the same three prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from launch.errors import UserError, refusal
from launch.evaluation.generation import Sampling, as_conversation, open_responder
from launch.evaluation.models import find_model
from launch.execution.record.run import Run, is_run_folder, mapping, objects
from launch.execution.report.evaluation import read_evaluation
from launch.execution.report.page import render_runs
from launch.files import iterate_json_lines, read_json_object, write_json
from launch.pipelines.links import Pipeline
from launch.pipelines.record import stage_runs
from launch.planning.find_runs import run_name
from launch.planning.plan import Plan
from launch.table import Table
from launch.worker.json_codec import versioned

SAMPLES = "samples.json"  # in the folder of a stage's run
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
    if (plan.folder / SAMPLES).is_file():
        return
    prompts = _choose_prompts(pipeline.plans[0])
    say(f"the model of {plan.stage} answers {len(prompts)} prompts for the pipeline's page")
    try:
        with open_responder(find_model(str(plan.folder), plan.runs)) as responder:
            answers = {
                prompt: responder.answer(as_conversation(prompt), _SAMPLING).text
                for prompt in prompts
            }
        write_json(plan.folder / SAMPLES, versioned({"answers": answers}))
    except (UserError, OSError) as error:
        say(
            "warning: no sample answers: "
            f"{error.problems[0] if isinstance(error, UserError) else error}"
        )


def _choose_prompts(plan: Plan) -> Sequence[str]:
    """Return the first user turns of the first stage's local data; without any, general prompts."""
    source = plan.inputs.mixture[0].source.local
    rows = islice(iterate_json_lines(source), _PROMPTS) if source and source.is_file() else ()
    conversations = [
        objects(row.get("messages") or row.get("chosen") or row.get("prompt"))
        for row in rows
        if row
    ]
    firsts = [
        next((turn for turn in turns if turn.get("role") == "user"), {}) for turns in conversations
    ]
    texts = [str(turn["content"]) for turn in firsts if "content" in turn]
    return texts if len(texts) == _PROMPTS else _GENERAL


def render_pipeline(folder: Path) -> str:
    """Return the page of a pipeline, as far as its stages have begun. Raises UserError:
    no_record.
    """
    runs = [run for _, run in stage_runs(folder) if is_run_folder(run)]
    if not runs:
        raise refusal("no_record", f"no stage of pipeline {folder.name} has begun", "command line")
    evaluations = filter(None, map(read_evaluation, runs))
    # of tasks: the last stage with them
    scores = {str([row[0] for row in each.rows]): each.rows for each in evaluations}
    tables = [
        *(Table("Evaluations side by side", rows) for rows in scores.values()),
        *_answer_table(runs),
    ]
    return render_runs([Run(run) for run in runs], tables, title=f"pipeline {folder.name}")


def _answer_table(runs: list[Path]) -> Iterator[Table]:
    answers = {
        run_name(run): mapping(read_json_object(run / SAMPLES).get("answers")) for run in runs
    }
    prompts = list(dict.fromkeys(prompt for of_run in answers.values() for prompt in of_run))
    if prompts:
        rows = [
            [prompt, *(str(of_run.get(prompt, "-")) for of_run in answers.values())]
            for prompt in prompts
        ]
        yield Table("What each stage answers", [["prompt", *answers], *rows])
