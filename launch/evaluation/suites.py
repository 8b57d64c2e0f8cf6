"""What `tasks=` may name: tasks of the harness, Tulu 3's suite, the demo's, or a folder of own tasks."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

from launch.errors import Problem, UserError
from launch.evaluation.demo_suite import ensure_demo_suite, ensure_module_suite
from launch.execution.record.reader import RunRecord, mapping
from launch.worker.evaluating import TaskSpec

DEMO, DEMO_RLVR, TULU3 = "demo", "demo_modules", "tulu3"


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


def default_tasks(run: Path | None) -> str:
    """Return the tasks that the stage of a run names; without any the demo's for a model built here, else Tulu 3's."""
    stage, data, model = (
        mapping(RunRecord(run).settings.get(key)) if run else {} for key in ("stage", "data", "model")
    )
    if stage.get("tasks"):
        return ",".join(map(str, stage["tasks"]))
    is_demo = data.get("build") or model.get("build")
    return DEMO if is_demo else TULU3


def find_specs(tasks: str, cache: Path) -> tuple[TaskSpec, ...]:
    """Return the specs that a comma-separated list names; the demo's suite is made below `cache`.

    Raises UserError: no_task_files, bad_value; those of the demo's data.
    """
    specs: list[TaskSpec] = []
    for name in (part.strip() for part in tasks.strip("[]").split(",")):
        if not name:
            continue
        if name == DEMO:
            specs.append(TaskSpec((), ensure_demo_suite(cache), chat=True))
        elif name == DEMO_RLVR:
            specs.append(TaskSpec((), ensure_module_suite(cache), chat=True))
        elif name == TULU3:
            specs += TULU3_SPECS
        elif "/" in name or Path(name).is_dir():
            specs.append(TaskSpec((), _check_folder(name)))
        else:
            specs.append(TaskSpec((name,)))
    if not specs:
        cure = "name tasks of the harness, tulu3, demo, or a folder of own tasks"
        raise UserError(Problem("bad_value", "tasks= names nothing", "override tasks", cure))
    return tuple(specs)


def _check_folder(name: str) -> Path:
    folder = Path(name).expanduser().absolute()
    if not any(folder.rglob("*.yaml")):
        message = f"{folder} has no task file (.yaml)"
        cure = "a task is a .yaml with task, dataset_path, doc_to_text and doc_to_target"
        raise UserError(Problem("no_task_files", message, "override tasks", cure))
    return folder
