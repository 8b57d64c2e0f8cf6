"""Scores models on tasks of lm-evaluation-harness, in the trainer's interpreter.

`main` takes an `EvaluationRequest`, and prints JSON lines: `{"done": label}` after each job, or one
`{"refused": reason, ...}`, with which it ends.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TextIO

from .held_out import ROWS, write_tasks
from .held_out_reward import RewardSpec, write_reward_task
from .json_codec import decode, versioned
from .model_loading import ModelRequest, load_model, read_base

_SHOWN = 60  # characters of an answer in a report
_NETWORK_ERRORS = (
    "Connection",
    "OfflineMode",
    "Timeout",
    "MaxRetry",
    "LocalEntryNotFound",
    "HubHTTP",
    "ConnectError",
)


@dataclass(frozen=True)
class TaskSpec:
    """Tasks that are evaluated with the same settings."""

    names: tuple[str, ...]  # tasks of the harness; () with a folder means all of its tasks
    folder: Path | None = None  # a folder of the user's own tasks
    num_fewshot: int | None = None  # None: the task's own
    chat: bool = True  # prompts in the run's chat template
    multiturn: bool = False  # few-shot examples as turns of the chat
    metric: str | None = None  # the metric of the verdict; None: the task's first
    filter: str | None = None  # the filter of the answers; None: the task's first
    reward: RewardSpec | None = None  # the folder has prompts of RLVR, scored by its verifiers


@dataclass(frozen=True)
class HarnessJob:
    """One model on the tasks of one spec."""

    label: str  # the model's name in reports
    model: ModelRequest
    spec: TaskSpec
    result: Path  # the file of the scores that is written
    samples: Path  # the file of every answer, as JSON lines


@dataclass(frozen=True)
class EvaluationRequest:
    """What is evaluated in one process."""

    jobs: tuple[HarnessJob, ...]
    tokenizer: str  # the folder of the evaluated run's tokenizer, which encodes every prompt
    limit: int | None  # maximum number of questions of a task
    batch_size: int


class RefusalError(Exception):
    """A task cannot be evaluated; the argument is the object that is printed."""


def main(arguments: Sequence[str]) -> None:
    """Check the tasks of all jobs, then do them in turn; what libraries print goes to stderr."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ["HF_ALLOW_CODE_EVAL"] = "0"
    request = decode(EvaluationRequest, arguments[0])
    try:
        distinct_specs = dict.fromkeys(job.spec for job in request.jobs)
        prepared = {spec: _prepare(spec, request, reports) for spec in distinct_specs}
        jobs_with_tasks = [replace(job, spec=prepared[job.spec]) for job in request.jobs]
        request = replace(request, jobs=tuple(jobs_with_tasks))
        check_prompts(request)
        for model, jobs in groupby(request.jobs, attrgetter("model")):
            loaded = load_harness_model(model, request.tokenizer, request.batch_size)
            for job in jobs:
                evaluate(loaded, job, request.limit)
                print(json.dumps({"done": job.label}), file=reports, flush=True)
            del loaded  # one model at a time in memory
    except RefusalError as refusal:
        print(json.dumps(refusal.args[0]), file=reports, flush=True)


def _prepare(spec: TaskSpec, request: EvaluationRequest, reports: TextIO) -> TaskSpec:
    """Return the spec with the names of its tasks.

    Held-out rows become tasks beside the results, whose prompts are rendered already. Raises
    RefusalError as `check_tasks` does, and if no row fits into the context.
    """
    if not spec.folder or not (spec.folder / ROWS).is_file():
        return replace(spec, names=check_tasks(spec))
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(request.tokenizer)
    folder = request.jobs[0].result.parent / "tasks"
    windows = []
    for job in request.jobs:
        config = AutoConfig.from_pretrained(read_base(job.model.folder))
        windows.append(getattr(config, "max_position_embeddings", tokenizer.model_max_length))
    context = min(windows)  # tokens
    if spec.reward is not None:
        folder = folder.with_name("reward_task")
        dropped = write_reward_task(spec.folder / ROWS, folder, spec.reward, tokenizer, context)
    else:
        dropped = write_tasks(spec.folder / ROWS, folder, tokenizer, context)
    if dropped:
        print(json.dumps({"dropped": dropped, "context": context}), file=reports, flush=True)
    spec = replace(spec, folder=folder, chat=False)
    return replace(spec, names=check_tasks(spec))


@cache
def task_manager(folder: Path | None) -> Any:
    """Return the harness's index of tasks: its own, or those of a folder alone."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=folder and str(folder), include_defaults=folder is None)


def check_tasks(spec: TaskSpec) -> tuple[str, ...]:
    """Return the names of a spec's tasks.

    Raises RefusalError if a task does not exist, or its data is not here.
    """
    manager = task_manager(spec.folder)
    names = spec.names or tuple(manager.all_subtasks)
    if not names:
        raise RefusalError({"refused": "no_tasks", "folder": str(spec.folder)})
    for name in names:
        if name not in manager.all_tasks:
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            raise RefusalError({"refused": "unknown_task", "task": name, "near": near})
        try:
            manager.load([name])
        except Exception as error:
            lines = str(error).strip().splitlines()
            reason = lines[0] if lines else type(error).__name__
            kind = "task_needs_network" if _needs_network(error) else "task_not_loadable"
            raise RefusalError({"refused": kind, "task": name, "reason": reason}) from error
    return names


def _needs_network(error: Exception) -> bool:
    """Whether an error of loading a task means that a server can't be reached."""
    chain = [error, error.__cause__, error.__context__]
    names = " ".join(type(item).__name__ for item in chain if item is not None)
    is_known = any(known in names for known in _NETWORK_ERRORS)
    return is_known or "offline" in str(error).lower()


def check_prompts(request: EvaluationRequest) -> None:
    """Check that the prompts of all jobs fit into their models' contexts, before any weights are
    loaded.

    Raises RefusalError.
    """
    measured = set()
    for job in request.jobs:
        model = load_measuring_model(job.model, request.tokenizer, request.batch_size)
        if (job.spec, model.max_length) in measured:
            continue
        measured.add((job.spec, model.max_length))
        try:
            _run_tasks(model, job.spec, request.limit, bootstrap_iters=0)
        except RefusalError:
            raise
        except Exception as error:
            # A task's scoring comes last, and may fail on the empty answers, which mean nothing.
            reason = f"{type(error).__name__}: {error}"
            print(f"after the prompts were measured: {reason}", file=sys.stderr)


def load_measuring_model(model: ModelRequest, tokenizer: str, batch_size: int) -> Any:
    """Return a model without weights as the harness takes it.

    It measures prompts, and answers nothing.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    class MeasuringModel(_checked_model_class(model.folder)):  # type: ignore[misc]
        def _loglikelihood_tokens(self, requests: Any, *arguments: Any, **options: Any) -> Any:
            self.check_targets(requests)
            return [(0.0, False)] * len(requests)

        def _model_generate(self, context: Any, *arguments: Any, **options: Any) -> Any:
            return context

    config = AutoConfig.from_pretrained(read_base(model.folder))
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    loaded_tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    measuring = MeasuringModel(pretrained=empty, tokenizer=loaded_tokenizer, batch_size=batch_size)
    measuring._device = torch.device("cpu")  # the prompts stay on the CPU
    return measuring


def load_harness_model(model: ModelRequest, tokenizer: str, batch_size: int) -> Any:
    """Load a model, with the tokenizer of the run that is evaluated, as the harness takes it."""
    loaded, own_tokenizer = load_model(
        model.folder, quantized=model.quantized, tokenizer=tokenizer, state=model.state
    )
    harness_model = _checked_model_class(model.folder)
    return harness_model(pretrained=loaded, tokenizer=own_tokenizer, batch_size=batch_size)


def _checked_model_class(folder: str) -> Any:
    """Return the harness's class of models, which refuses what it would cut."""
    from lm_eval.models.huggingface import HFLM

    class CheckedModel(HFLM):  # type: ignore[misc]
        """Refuses prompts that the harness would cut at their beginning."""

        is_rendered = False  # whether the prompts are in the chat template already

        def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
            """Encode a prompt and its answer apart.

            The harness would count the white space at the end of a prompt as a part of the answer.
            """
            if not self.is_rendered:
                return super()._encode_pair(context, continuation)  # type: ignore[no-any-return]
            return self.tok_encode(context), self.tok_encode(continuation)

        def check_targets(self, requests: Any) -> None:
            """Refuse a prompt that does not fit together with its answer (without its last token)."""
            lengths = [len(context) + len(target) - 1 for _, context, target in requests]
            self._check(max(lengths, default=0))

        def _loglikelihood_tokens(self, requests: Any, *arguments: Any, **options: Any) -> Any:
            self.check_targets(requests)
            return super()._loglikelihood_tokens(requests, *arguments, **options)

        def tok_batch_encode(self, strings: Any, *arguments: Any, **options: Any) -> Any:
            limit = options.get("left_truncate_len")
            if limit:
                lengths = [len(self.tokenizer.encode(text)) for text in strings]
                self._check(max(lengths), limit)
            return super().tok_batch_encode(strings, *arguments, **options)

        def _check(self, tokens: int, limit: int | None = None) -> None:
            context = limit or self.max_length
            if tokens > context:
                refusal = {"refused": "context_too_short", "tokens": tokens, "context": context}
                raise RefusalError({**refusal, "model": folder})

    return CheckedModel


def evaluate(model: Any, job: HarnessJob, limit: int | None) -> None:
    """Score a model on the tasks of a job, and write the result and every answer."""
    results = _run_tasks(model, job.spec, limit, bootstrap_iters=1000)
    tasks = {name: summarize(name, results, job.spec, model) for name in job.spec.names}
    lines = []
    for task, rows in results["samples"].items():
        for row in rows:
            sample = {"task": task, **_readable(row)}
            lines.append(json.dumps(sample, ensure_ascii=False, default=str) + "\n")
    job.samples.write_text("".join(lines), encoding="utf-8")
    content = versioned({"tasks": tasks})
    job.result.write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")


def _run_tasks(model: Any, spec: TaskSpec, limit: int | None, bootstrap_iters: int) -> Any:
    from lm_eval import simple_evaluate

    model.is_rendered = bool(spec.folder and not spec.chat)
    model.add_bos_token = False if model.is_rendered else None
    return simple_evaluate(
        model=model,
        tasks=list(spec.names),
        num_fewshot=spec.num_fewshot,
        limit=limit,
        apply_chat_template=spec.chat,
        fewshot_as_multiturn=spec.multiturn,
        task_manager=task_manager(spec.folder),
        log_samples=True,
        bootstrap_iters=bootstrap_iters,
    )


def summarize(name: str, results: Mapping[str, Any], spec: TaskSpec, model: Any) -> dict[str, Any]:
    """Return the scores of a task, or of a group over the questions of all its tasks."""
    tasks = _tasks_below(name, results)
    rows = [(task, row) for task in tasks for row in results["samples"][task]]
    config = results["configs"][tasks[0]]
    metric = spec.metric or _primary_metric(config, rows[0][1])
    filters = list(dict.fromkeys(row["filter"] for _, row in rows))
    chosen_filter = spec.filter if spec.filter in filters else filters[0]
    kept = [(task, row) for task, row in rows if row["filter"] == chosen_filter]
    kept_rows = [row for _, row in kept]
    scores = results["results"].get(name, {})
    reported = {key: score for key, score in scores.items() if isinstance(score, (int, float))}
    values = [_number(row[metric]) for row in kept_rows]
    responses = json.dumps([row["resps"] for row in kept_rows], default=str)
    is_higher_better = results["higher_is_better"].get(tasks[0], {}).get(metric) is not False
    return {
        "metric": metric,
        "filter": chosen_filter,
        "higher_is_better": is_higher_better,
        "score": reported.get(f"{metric},{chosen_filter}", sum(values) / len(values)),
        "stderr": reported.get(f"{metric}_stderr,{chosen_filter}"),
        "questions": [f"{task}:{row['doc_id']}:{row['prompt_hash'][:8]}" for task, row in kept],
        "values": values,
        "cut_off": _cut_off_share(kept_rows, config, model),
        "responses": hashlib.sha256(responses.encode()).hexdigest()[:16],
        **_count_commonest(kept_rows, config),
        "all": reported,
    }


def _tasks_below(name: str, results: Mapping[str, Any]) -> list[str]:
    """Return the tasks below a group; the name itself for a task."""
    if name in results["samples"]:
        return [name]
    tasks = []
    for child in results.get("group_subtasks", {}).get(name, []):
        tasks += _tasks_below(child, results)
    return tasks


def _primary_metric(config: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    listed = [str(entry["metric"]) for entry in config.get("metric_list") or ()]
    return next((metric for metric in listed if metric in row), row["metrics"][0])


def _number(value: Any) -> float:
    """Return a question's value; a list counts with its mean."""
    if isinstance(value, (list, tuple)):
        return sum(map(_number, value)) / len(value) if value else 0.0
    return float(value)


def _cut_off_share(
    rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any], model: Any
) -> float | None:
    """Return the share of generated answers that are as long as their limit.

    None is returned where nothing is generated.
    """
    if config.get("output_type") != "generate_until":
        return None
    cut_off = 0
    for row in rows:
        answer = str(row["resps"][0][0])
        tokens = model.tokenizer.encode(answer, add_special_tokens=False)
        if len(tokens) >= _generation_limit(row, model) - 1:
            cut_off += 1
    return cut_off / len(rows)


def _count_commonest(
    rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the most frequent of the generated answers, shortened, and how many questions got it.

    Nothing is returned where nothing is generated.
    """
    if config.get("output_type") != "generate_until":
        return {}
    answers = Counter(str(row["resps"][0][0]).strip() for row in rows)
    [(answer, count)] = answers.most_common(1)
    text = " ".join(answer.split())
    if len(text) > _SHOWN:
        text = text[: _SHOWN - 3] + "..."
    return {"commonest": text, "commonest_count": count}


def _generation_limit(row: Mapping[str, Any], model: Any) -> int:
    """Return the tokens that an answer may have: the question's own limit, else the model's."""
    arguments = row["arguments"][0]
    options = arguments[1] if len(arguments) > 1 else None
    if isinstance(options, Mapping) and "max_gen_toks" in options:
        return int(options["max_gen_toks"])
    return int(model.max_gen_toks)


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an answer that its file holds."""
    names = ("doc_id", "filter", "target", "arguments", "resps", "filtered_resps", *row["metrics"])
    return {name: row[name] for name in names}
