"""Run lm-evaluation-harness in the run's interpreter, once for what has no result yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.errors import Problem, UserError
from launch.host.interpreter import open_worker
from launch.worker.evaluating import Job, Request

MODULE = "lm_eval"


def run_jobs(
    jobs: Sequence[Job],
    python: str,
    tokenizer: Path,
    *,
    limit: int | None,
    batch_size: int,
    notify: Callable[[str], None],
) -> None:
    """Do all jobs in one process of `python`; every prompt is tokenised by `tokenizer`.

    Raises UserError: unknown_task, task_needs_network, task_not_loadable, no_task_files, context_too_short,
    evaluation_failed, no_space.
    """
    request = Request(tuple(jobs), str(tokenizer), limit, batch_size)
    with open_worker(python, "evaluating", request) as worker:
        for line in worker.answers:
            report = json.loads(line)
            if "refused" in report:
                raise UserError(_explain_refusal(report))
            if "left_out" in report:
                notify(f"{report['left_out']} rows are longer than {report['context']:,} tokens: left out")
            else:
                notify(f"evaluated {report['done']}")
        if reason := worker.wait():
            raise UserError(_explain_failure(reason, jobs[0].result.parent))


def _explain_failure(reason: str, folder: Path) -> Problem:
    if "No space left" in reason:
        return Problem("no_space", f"the disk of {folder} is full", None, "free some space, and evaluate again")
    return Problem("evaluation_failed", f"the harness failed: {reason}", None, "run it with limit=2 to see it sooner")


def _explain_refusal(report: Mapping[str, Any]) -> Problem:
    task = report.get("task")
    if report["refused"] == "unknown_task":
        near = " or ".join(f"'{name}'" for name in report["near"])
        cure = f"did you mean {near}?" if near else "`lm_eval ls tasks` lists the harness's tasks"
        return Problem("unknown_task", f"the harness has no task '{task}'", "override tasks", cure)
    if report["refused"] == "task_needs_network":
        message = f"the data of task '{task}' is not on this machine, and the hub cannot be reached"
        return Problem(
            "task_needs_network", message, "override tasks", "load it once with network access: HF_HOME caches it"
        )
    if report["refused"] == "no_tasks":
        return Problem("no_task_files", f"{report['folder']} defines no task", "override tasks", "add a task: NAME")
    if report["refused"] == "context_too_short":
        tokens, room = report["tokens"], report["context"]
        message = f"a prompt has {tokens:,} tokens, and the context of {report['model']} leaves {room:,} for it"
        return Problem("context_too_short", message, "override tasks", "choose tasks with shorter prompts")
    message = f"task '{task}' cannot be loaded: {report.get('reason')}"
    return Problem("task_not_loadable", message, "override tasks")
