"""What `tasks=` may name: a run's held-out rows, tasks of the harness, Tulu 3's suite, the demo's, or own tasks."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from launch.data.sources import VALIDATION_FILE
from launch.errors import UserError, refusal
from launch.evaluation.demo_suite import ensure_demo_suite, ensure_module_suite
from launch.execution.record.reader import RunRecord, mapping
from launch.files import encode_json, write_file
from launch.planning.find_runs import run_name
from launch.worker.evaluating import TaskSpec
from launch.worker.held_out import ROWS

DEMO, DEMO_RLVR, TULU3, HELD_OUT = "demo", "demo_modules", "tulu3", "held_out"
_OF_DEMO = {DEMO: ensure_demo_suite, DEMO_RLVR: ensure_module_suite}
RESULTS = "evaluation"  # the folder of the results in a run's
_MOST_ROWS = 200  # of those that a run held out

# Tulu 3's suite, as far as the harness has it. Shots, chain of thought and metric: the table of results in
# https://huggingface.co/allenai/Llama-3.1-Tulu-3-8B and section 7 of https://arxiv.org/abs/2411.15124; the names of its
# tasks in olmes: upstream scripts/eval/oe-eval.sh:175-187.
TULU3_SPECS = (
    TaskSpec(("mmlu_flan_cot_zeroshot",), num_fewshot=0, metric="exact_match"),  # 0 shots, CoT
    TaskSpec(("truthfulqa_mc2",), metric="acc"),  # 6 question-answer pairs, which the harness puts into each prompt
    TaskSpec(("bbh_cot_fewshot",), num_fewshot=3, multiturn=True, metric="exact_match", filter="get-answer"),
    TaskSpec(("drop",), num_fewshot=3, chat=False, metric="f1"),  # 3 shots, without the chat template
    TaskSpec(("hendrycks_math",), num_fewshot=4, multiturn=True, metric="exact_match"),  # 4 shots
    TaskSpec(("gsm8k_cot",), num_fewshot=8, multiturn=True, metric="exact_match", filter="flexible-extract"),
    TaskSpec(("ifeval",), num_fewshot=0, metric="prompt_level_loose_acc"),  # 0 shots, prompt loose
)


def digest_spec(spec: TaskSpec) -> str:
    """Identify the tasks by name and settings, own ones by their files too."""
    digest = hashlib.sha256(repr(sorted({**asdict(spec), "folder": None}.items())).encode())
    for path in sorted(spec.folder.rglob("*")) if spec.folder else ():
        if path.is_file() and path.parent.name != "__pycache__":  # written as a task's functions are imported
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def default_tasks(run: Path | None, given: Sequence[str] = ()) -> str:
    """Return the tasks of a run: those `given` or that its stage names, or in place of shipped ones its held-out rows.

    Raises UserError: no_held_out, where only the demo's questions are left and the data is not the demo's.
    """
    record = RunRecord(run) if run else None
    stage, data = (mapping(record.settings.get(key)) if record else {} for key in ("stage", "data"))
    tasks = list(map(str, given or stage.get("tasks") or [TULU3]))
    if record is None or (data.get("build") and not data.get("mix")) or not {*tasks} <= {DEMO, TULU3}:
        return ",".join(tasks)
    if ensure_held_out(record):
        return HELD_OUT
    if DEMO in tasks:
        raise _no_rows(run)
    return ",".join(tasks)


def ensure_held_out(run: RunRecord) -> Path | None:
    """Return the folder with up to 200 of the rows that a run held out, which are copied once; None without any."""
    folder = run.folder / RESULTS / HELD_OUT
    if (folder / ROWS).is_file():
        return folder
    staged = re.findall(r'[^"\\]+/data/[0-9a-f]{16}', encode_json(run.plan))  # of each data set, whatever the trainer
    copies = [Path(folder, VALIDATION_FILE) for folder in staged]
    rows = [line for copy in dict.fromkeys(copies) if copy.is_file() for line in copy.read_bytes().splitlines(True)]
    if not rows or mapping(run.settings.get("stage")).get("kind") not in ("sft", "dpo"):
        return None
    write_file(folder / ROWS, b"".join(rows[:: math.ceil(len(rows) / _MOST_ROWS)]).decode())
    return folder


def _no_rows(run: Path | None) -> UserError:
    message = f"{run_name(run)} held out no rows of its data" if run else "tasks=held_out needs a run"
    cure = "train with data.validation=0.1 to judge the model by rows that it has not seen, or name others with tasks="
    return refusal("no_held_out", message, "tasks", cure)


def find_specs(tasks: str, cache: Path, run: Path | None = None) -> tuple[TaskSpec, ...]:
    """Return the specs that a comma-separated list names; the demo's suite is made below `cache`.

    `run`: the folder of the run whose held-out rows `held_out` means. Raises UserError: no_held_out, no_task_files,
    bad_value; those of the demo's data.
    """
    specs: list[TaskSpec] = []
    for name in (part.strip() for part in tasks.strip("[]").split(",")):
        if not name:
            continue
        if name in _OF_DEMO:
            specs.append(TaskSpec((), _OF_DEMO[name](cache)))
        elif name == HELD_OUT:
            folder = ensure_held_out(RunRecord(run)) if run else None
            if folder is None:
                raise _no_rows(run)
            specs.append(TaskSpec((), folder))
        elif name == TULU3:
            specs += TULU3_SPECS
        elif "/" in name or Path(name).is_dir():
            specs.append(TaskSpec((), _check_folder(name)))
        else:
            specs.append(TaskSpec((name,)))
    if not specs:
        cure = "name held_out, tasks of the harness, tulu3, demo, or a folder of own tasks"
        raise refusal("bad_value", "tasks= names nothing", "override tasks", cure)
    return tuple(specs)


def _check_folder(name: str) -> Path:
    folder = Path(name).expanduser().absolute()
    if not any(folder.rglob("*.yaml")) and not (folder / ROWS).is_file():
        message = f"{folder} has no task file (.yaml)"
        cure = "a task is a .yaml with task, dataset_path, doc_to_text and doc_to_target"
        raise refusal("no_task_files", message, "override tasks", cure)
    return folder
