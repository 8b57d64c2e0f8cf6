"""Evaluates a run's model and the models it was trained from on the same questions, with verdicts."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from launch.errors import UserError, refusal
from launch.evaluation.models import (
    ModelSource,
    find_chain,
    find_model,
    require_chat_template,
    require_packages,
)
from launch.evaluation.record import ResultFiles, read_scores, write_summary
from launch.evaluation.suites import default_tasks, find_specs
from launch.evaluation.verdict import PairedDifference, TaskScore, compare_scores, find_breakage
from launch.execution.record.run import Run
from launch.execution.report.page import write_run_report
from launch.files import find_link
from launch.host.interpreter import inventory, open_worker
from launch.planning.find_runs import run_name
from launch.planning.plan import Plan
from launch.worker.evaluating import EvaluationRequest, HarnessJob, TaskSpec
from launch.worker.finding import Finding
from launch.worker.held_out import BITS, EXACT
from launch.worker.wording import count_of

_HARNESS = "lm_eval"
_BATCH_SIZE = 8  # questions in a batch, if none is set
_WIDTH = 34  # characters of a model's label


@dataclass(frozen=True)
class TaskResult:
    """One task: the scores of all models, the oldest first and the evaluated one last."""

    name: str
    scores: Mapping[str, TaskScore]  # scores by the model's label
    samples: Mapping[str, Path]  # files with every answer, by the model's label

    @property
    def labels(self) -> list[str]:
        return list(self.scores)

    @property
    def against_base(self) -> PairedDifference:
        """The gain of the evaluated model over the oldest one."""
        return self.gain(self.labels[-1], self.labels[0])

    @property
    def broken(self) -> list[str]:
        """The signs that the evaluation itself is at fault; none for a single model."""
        return list(find_breakage(self.scores)) if len(self.labels) > 1 else []

    def gain(self, label: str, other: str) -> PairedDifference:
        return compare_scores(self.scores[label], self.scores[other])

    @property
    def summary(self) -> str | None:
        """The verdict as text, `0.71 bits a byte better than base`; None for a single model."""
        if len(self.labels) == 1:
            return None
        gain = self.against_base
        if gain.verdict == "same":
            return f"no significant difference from {self.labels[0]}"
        first = self.scores[self.labels[0]]
        last = self.scores[self.labels[-1]]
        if last.metric == EXACT:
            exact = f"{last.score:.0%} of its answers are exact, against {first.score:.0%}"
            return f"{gain.verdict} than {self.labels[0]}: {exact}"
        unit = " bits a byte" if last.metric == BITS else ""
        return f"{abs(gain.mean):.3g}{unit} {gain.verdict} than {self.labels[0]}"

    def json_fields(self) -> dict[str, Any]:
        gain = self.against_base
        last = self.scores[self.labels[-1]]
        return {
            "task": self.name,
            "verdict": gain.verdict if self.summary else None,
            "summary": self.summary,
            "gain": gain.mean,
            "gain_half_interval": gain.half,
            "gained": gain.gained,
            "lost": gain.lost,
            "exact_p": gain.chance,
            "questions": gain.questions,
            "metric": last.metric,
            "higher_is_better": last.higher_is_better,
            "broken": self.broken,
            "models": [self._model_fields(index) for index in range(len(self.labels))],
        }

    def _model_fields(self, index: int) -> dict[str, Any]:
        label = self.labels[index]
        score = self.scores[label]
        verdict = None
        if index > 0:
            verdict = self.gain(label, self.labels[index - 1]).verdict
        return {
            "model": label,
            "score": score.score,
            "stderr": score.stderr,
            "cut_off": score.cut_off,
            "repeated_answer": score.repeated_answer,
            "verdict_against_previous": verdict,
            "samples": str(self.samples[label]),
        }


@dataclass(frozen=True)
class Evaluation:
    """The results of `launch eval`."""

    model: ModelSource
    tasks: tuple[TaskResult, ...]
    harness: str
    computed: int  # number of results that were not cached
    seconds: float

    @property
    def not_risen(self) -> Finding | None:
        """The warning of the run's own end, if its reward in training did not rise."""
        outcome = Run(self.model.run).outcome if self.model.run else None
        return outcome.reward.finding() if outcome and outcome.reward else None

    @property
    def is_broken(self) -> bool:
        return any(task.broken for task in self.tasks)

    def json_fields(self) -> dict[str, Any]:
        return {
            "model": self.model.label,
            "run": run_name(self.model.run) if self.model.run else None,
            "harness": self.harness,
            "computed": self.computed,
            "seconds": round(self.seconds, 1),
            "not_risen": self.not_risen,
            "tasks": self.tasks,
        }


def evaluate_model(
    model: ModelSource,
    specs: Sequence[TaskSpec],
    *,
    cache: Path,
    limit: int | None,
    batch_size: int,
    notify: Callable[[str], None],
) -> Evaluation:
    """Score a model and, if a run trained it, the models that it was trained from.

    The results are written into the run folder, or below `cache`.

    Raises UserError: no_chat_template, missing_packages, no_interpreter, not_writable, linked_record,
    base_gone;
    those of _run_jobs.
    """
    began = time.monotonic()
    if any(spec.chat for spec in specs):
        require_chat_template(model)
    chain = find_chain(model)
    require_packages(model, _HARNESS, "torch", "transformers")
    version = inventory(model.python).packages.get("lm-eval") or metadata.version("lm-eval")
    harness = f"lm-eval {version}"
    files = ResultFiles(model.run or cache, model.folder, harness)
    _require_room(files.folder)
    jobs = [files.job(link, spec, limit) for link in chain for spec in specs]
    files.save_digests()
    missing = [job for job in jobs if read_scores(job.result) is None]
    if missing:
        labels = dict.fromkeys(job.label for job in missing)
        notify(f"evaluating {', '.join(labels)} with {harness}")
        _run_jobs(
            missing, model.python, model.folder, limit=limit, batch_size=batch_size, notify=notify
        )
    tasks: list[TaskResult] = []
    for spec in specs:
        tasks += _collect_results([job for job in jobs if job.spec == spec])
    seconds = time.monotonic() - began
    evaluation = Evaluation(model, tuple(tasks), harness, len(missing), seconds)
    if model.run:
        write_summary(model.run, evaluation, model.checkpoint)
    return evaluation


def evaluate_finished_run(plan: Plan, notify: Callable[[str], None]) -> None:
    """Evaluate the model of a plan's run on the tasks of its stage, as `evaluate=true` does.

    An error does not change the outcome of the run: it is only reported.
    """
    try:
        model = find_model(str(plan.folder), plan.runs)
        cache = plan.runs / ".cache"
        tasks = default_tasks(plan.folder, plan.config.stage.tasks)
        specs = find_specs(tasks, cache, plan.folder)
        evaluation = evaluate_model(
            model, specs, cache=cache, limit=None, batch_size=_BATCH_SIZE, notify=notify
        )
    except (UserError, OSError) as error:
        for reason in error.problems if isinstance(error, UserError) else [error]:
            notify(f"warning: the model was not evaluated: {reason}")
        return
    for line in describe_scores(evaluation):
        notify(line)
    if plan.config.report:
        write_run_report(Run(plan.folder), notify)


def describe_scores(evaluation: Evaluation) -> Iterator[str]:
    """Yield the scores and verdicts as a table, task by task."""
    for task in evaluation.tasks:
        yield from _describe_task(task)
    if evaluation.not_risen is not None:
        yield f"warning: in the run's training {evaluation.not_risen}"
    folders = []
    for task in evaluation.tasks:
        folders += [Path(path).parent for path in task.samples.values()]
    folder = folders[0] if folders else None
    computed = f"{evaluation.computed} results computed in {evaluation.seconds:.0f} s"
    yield f"{computed}; every answer is in {folder}"


def _describe_task(task: TaskResult) -> Iterator[str]:
    gain = task.against_base
    evaluated = task.scores[task.labels[-1]]
    direction = "higher" if evaluated.higher_is_better else "lower"
    questions = count_of(gain.questions, "question")
    yield f"{task.name}  {evaluated.metric} ({direction} is better), {questions}"
    previous = None
    for label in task.labels:
        score = task.scores[label]
        error = "" if score.stderr is None else f" +- {score.stderr:.4f}"
        if score.is_constant:
            error = " on every one"
        comparison = ""
        if previous is not None:
            verdict = task.gain(label, previous).verdict
            conjunction = "as" if verdict == "same" else "than"
            comparison = f"{verdict} {conjunction} the previous model"
        name = label[-_WIDTH:].ljust(_WIDTH)
        yield f"  {name}  {score.score:.4f}{error:<13}  {comparison}".rstrip()
        previous = label
    if task.summary:
        yield f"  verdict: {task.summary} ({gain.describe()})"
    for label in task.labels:
        repeated = task.scores[label].repeated_answer
        if repeated is not None:
            yield f"  note: {label} gives {repeated}"
    for reason in task.broken:
        yield f"  broken: {reason}"


def _collect_results(jobs: Sequence[HarnessJob]) -> Iterator[TaskResult]:
    """Yield the results of the tasks of one spec.

    `jobs` are those of its models, the evaluated one last.
    """
    scores_by_label = {job.label: read_scores(job.result) or {} for job in jobs}
    samples = {job.label: job.samples for job in jobs}
    for name in scores_by_label[jobs[-1].label]:
        scores = {label: by_task[name] for label, by_task in scores_by_label.items()}
        yield TaskResult(name, scores, samples)


def _require_room(folder: Path) -> None:
    """Create the folder of the results. Raises UserError: not_writable, linked_record."""
    link = folder if folder.is_symlink() else find_link(folder)
    if link is not None:
        message = f"{link} is a link, and the results would be written to where it points"
        raise refusal("linked_record", message, None, "remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b" " * (1 << 20))  # the answers of a task take about as much
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror}"
        cure = "free some space, or correct its permissions"
        raise refusal("not_writable", message, None, cure) from error


def _run_jobs(
    jobs: Sequence[HarnessJob],
    python: str,
    tokenizer: Path,
    *,
    limit: int | None,
    batch_size: int,
    notify: Callable[[str], None],
) -> None:
    """Run all jobs in one process of `python`; every prompt is tokenised by `tokenizer`.

    Raises UserError: unknown_task, task_needs_network, task_not_loadable, no_task_files,
    context_too_short, evaluation_failed, no_space.
    """
    request = EvaluationRequest(tuple(jobs), str(tokenizer), limit, batch_size)
    with open_worker(python, "evaluating", request) as worker:
        for line in worker.answers:
            report = json.loads(line)
            if "refused" in report:
                raise UserError(_explain_refusal(report))
            if "dropped" in report:
                limit_text = f"longer than {report['context']:,} tokens"
                notify(f"{report['dropped']} rows are {limit_text}: dropped")
            else:
                notify(f"evaluated {report['done']}")
        reason = worker.wait()
        if reason:
            raise UserError(_explain_failure(reason, jobs[0].result.parent))


def _explain_failure(reason: str, folder: Path) -> Finding:
    if "No space left" in reason:
        message = f"the disk of {folder} is full"
        return Finding.error("no_space", message, None, "free some space, and evaluate again")
    message = f"the harness failed: {reason}"
    return Finding.error("evaluation_failed", message, None, "run it with limit=2 to see it sooner")


def _explain_refusal(report: Mapping[str, Any]) -> Finding:
    """Return the problem for which the worker refused a task."""
    where = "override tasks"
    task = report.get("task")
    if report["refused"] == "unknown_task":
        names = " or ".join(f"'{name}'" for name in report["near"])
        cure = f"did you mean {names}?" if names else "`lm_eval ls tasks` lists the harness's tasks"
        return Finding.error("unknown_task", f"the harness has no task '{task}'", where, cure)
    if report["refused"] == "task_needs_network":
        message = f"the data of task '{task}' is not on this machine, and the hub cannot be reached"
        cure = "load it once with network access: HF_HOME caches it"
        return Finding.error("task_needs_network", message, where, cure)
    if report["refused"] == "no_tasks":
        message = f"{report['folder']} defines no task"
        return Finding.error("no_task_files", message, where, "add a task: NAME")
    if report["refused"] == "context_too_short":
        message = (
            f"a prompt has {report['tokens']:,} tokens, "
            f"and the context of {report['model']} leaves {report['context']:,} for it"
        )
        cure = "choose tasks with shorter prompts"
        return Finding.error("context_too_short", message, where, cure)
    message = f"task '{task}' cannot be loaded: {report.get('reason')}"
    return Finding.error("task_not_loadable", message, where)
