"""One column of `compare`: the settings, data, versions, patches, losses, speed and memory of a run."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from launch.errors import refusal
from launch.evaluation.record import read_summary
from launch.execution.record.run import Run, count_unreadable, mapping, number, objects
from launch.execution.record.steps import is_step, logged_number
from launch.files import iterate_json_lines

_CHECKPOINT = re.compile(r"(?P<run>.+)/(?:step_|checkpoint-)(?P<step>\d+)")
_LARGEST_STEP = 1 << 53  # that a float holds
_WARMUP = 2  # first steps without a speed that counts
# keys of config.yaml that describe the run folder and not the training
_NOT_TRAINED = (
    "name",
    "runs",
    "cache",
    "restart",
    "detach",
    "cache_only",
    "report",
    "evaluate",
    "stage.description",
)


@dataclass(frozen=True)
class Progress:
    """The logged steps of a run; those that logged a loss are kept as arrays, since there may be
    millions.
    """

    last_step: int = 0
    tokens: float | None = None  # trained, without padding; None if they are not counted
    losses: Sequence[float] = ()  # in the order of their steps; NaN is possible
    at_steps: Sequence[float] = ()  # the step of each loss
    at_tokens: Sequence[
        float
    ] = ()  # the tokens trained until each loss, as far as they are counted
    # tokens per second, or steps per second where tokens are not counted
    speed: float | None = None
    memory_gib: float | None = None  # highest peak of rank 0
    unreadable: int = 0  # lines of metrics.jsonl that are no logged step


@dataclass(frozen=True)
class ComparedRun:
    """A run, or the part of it until a checkpoint, as `compare` sees it."""

    run: Run
    checkpoint: str | None = None  # step_N; None: all of the run

    is_base = False

    @property
    def name(self) -> str:
        return f"{self.run.name}/{self.checkpoint}" if self.checkpoint else self.run.name

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def state(self) -> str:
        return self.run.status.state

    @cached_property
    def _resolved(self) -> dict[str, Any]:
        return dict(_flatten(self.run.settings))

    @property
    def kind(self) -> str | None:
        """sft, dpo, rm or rlvr."""
        return self._resolved.get("stage.kind")

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """By dotted key."""
        return _training_settings(self._resolved, self.run)

    @cached_property
    def data(self) -> Mapping[str, Any]:
        return _data_settings(self._resolved, self.run)

    @cached_property
    def versions(self) -> Mapping[str, Any]:
        """Of packages, Python, driver, GPUs, and the commits."""
        return dict(_versions(self.run.versions, self.run.git))

    @cached_property
    def patches(self) -> Mapping[str, Any]:
        """The value of each patch, by its id."""
        return _patches(self.run)

    @cached_property
    def progress(self) -> Progress:
        return _read_progress(self.run, self.checkpoint)

    @cached_property
    def scores(self) -> Mapping[str, Any]:
        """Of the last evaluation: task and metric -> score."""
        summary = read_summary(self.folder, self.checkpoint) or {}
        return _scores(summary.get("tasks"), -1)

    @property
    def notes(self) -> list[str]:
        """What of the record could not be read."""
        note = count_unreadable("metrics.jsonl", self.progress.unreadable)
        return [f"{self.name}: {note}"] if note else []


@dataclass(frozen=True)
class ComparedBase:
    """The model that runs start from: only its scores are known, from their evaluations."""

    name: str
    folder: Path
    runs: Sequence[Path]  # whose evaluations may have them

    is_base = True
    state = "not a run"
    kind: None = None
    settings: ClassVar[Mapping[str, Any]] = {}
    data: ClassVar[Mapping[str, Any]] = {}
    versions: ClassVar[Mapping[str, Any]] = {}
    patches: ClassVar[Mapping[str, Any]] = {}
    notes: ClassVar[list[str]] = []
    progress = Progress()

    @cached_property
    def scores(self) -> Mapping[str, Any]:
        tasks = []
        for folder in self.runs:
            start = Run(folder).flags.get("model_name_or_path")
            if start in (self.name, str(self.folder)):
                tasks += objects((read_summary(folder) or {}).get("tasks"))
        return _scores(tasks, -2)


Compared = ComparedRun | ComparedBase


def compared_run(folder: Path, checkpoint: str | None = None) -> ComparedRun:
    """Return a run for a comparison, or with a `checkpoint` (step_N) its training until then.

    Raises UserError: no_checkpoint, for a step after the last.
    """
    compared = ComparedRun(Run(folder), checkpoint)
    last = compared.progress.last_step
    if checkpoint and last < int(checkpoint.removeprefix("step_")):
        message = f"{compared.run.name} has no {checkpoint}: its last step is {last}"
        raise refusal("no_checkpoint", message, "command line", "name an earlier step")
    return compared


def _scores(tasks: object, model: int) -> dict[str, float]:
    """Return the scores of one model of each task, by its index among them; a task whose record is
    damaged has none.
    """
    scores = {}
    for task in objects(tasks):
        models = objects(task.get("models"))
        if len(models) < abs(model):
            continue
        score = number(models[model].get("score"))
        if score is not None:
            scores[f"{task.get('task')} {task.get('metric')}"] = score
    return scores


def split_checkpoint(name: str) -> tuple[str, str | None]:
    """Return the run and the checkpoint, `step_N`, of `RUN/step_N` or `RUN/checkpoint-N`; None for
    a run's own name.
    """
    match = _CHECKPOINT.fullmatch(name)
    return (match["run"], f"step_{match['step']}") if match else (name, None)


def _training_settings(settings: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the settings, with what the plan computed from them; of the trainer's description only
    its name.
    """
    kept = {
        key: value
        for key, value in settings.items()
        if key not in _NOT_TRAINED
        and (key == "trainer.name" or not key.startswith(("data.", "trainer.")))
    }
    computed = {f"batch.{key}": value for key, value in mapping(run.plan.get("batch")).items()}
    computed |= {
        f"parallel.{key}": value for key, value in mapping(run.plan.get("parallel")).items()
    }
    if "model_name_or_path" in run.flags:
        computed["model"] = run.flags["model_name_or_path"]
    return {**kept, **computed}


def _data_settings(settings: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the keys of the data, and what the trainer reads: local data is a copy whose path
    names its content.
    """
    data = {key: value for key, value in settings.items() if key.startswith("data.")}
    mixer = run.flags.get("dataset_mixer_list")  # names and shares in turn
    sources = mixer[::2] if isinstance(mixer, list) else [run.flags.get("dataset_name")]
    data["sources"] = [str(source).removesuffix("/train.jsonl") for source in sources if source]
    for index, structure in enumerate(run.plan.get("data") or (), start=1):
        data |= {f"file {index} {key}": value for key, value in _flatten(structure or {})}
    return data


def _versions(versions: Mapping[str, Any], git: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from mapping(versions.get("packages")).items()
    for key in ("python", "platform", "driver"):
        if key in versions:
            yield key, versions[key]
    if "gpus" in versions:
        yield "gpus", ", ".join(str(gpu.get("name")) for gpu in objects(versions["gpus"]))
    for repository, state in git.items():
        if isinstance(state, dict) and state.get("commit"):
            yield (
                f"commit of {repository}",
                state["commit"][:9] + (" with changes" if state.get("dirty") else ""),
            )


def _patches(run: Run) -> dict[str, Any]:
    values = {str(patch.get("id")): str(patch.get("value") or "applied") for patch in run.patches}
    return {id_: "applied" if value.startswith("/") else value for id_, value in values.items()}


def _read_progress(run: Run, checkpoint: str | None) -> Progress:
    until = int(checkpoint.removeprefix("step_")) if checkpoint else _LARGEST_STEP
    losses, at_steps, at_tokens = array("d"), array("d"), array("d")
    last_step, steps, timed_steps = 0, 0, 0
    tokens, timed_tokens, seconds, is_counted = 0.0, 0.0, 0.0, True
    peak: float | None = None
    unreadable = 0
    for entry in iterate_json_lines(run.folder / "metrics.jsonl"):
        if entry is None or not is_step(entry):
            unreadable += 1
            continue
        step = entry["step"]
        if step > until:
            continue
        last_step, steps = step, steps + 1
        count = logged_number(entry, "tokens")
        is_counted = is_counted and count is not None
        tokens += count or 0.0
        if steps > _WARMUP:
            timed_steps, timed_tokens = timed_steps + 1, timed_tokens + (count or 0.0)
            seconds += logged_number(entry, "seconds") or 0.0
        if (loss := logged_number(entry, "loss")) is not None:
            losses.append(loss)
            at_steps.append(step)
            at_tokens.append(tokens)
        if (memory := logged_number(entry, "memory_gib")) is not None and math.isfinite(memory):
            peak = memory if peak is None else max(peak, memory)
    is_counted = is_counted and steps > 0
    done = timed_tokens if is_counted else timed_steps
    return Progress(
        last_step=last_step,
        tokens=tokens if is_counted else None,
        losses=losses,
        at_steps=at_steps,
        at_tokens=at_tokens,
        speed=done / seconds if seconds > 0 else None,
        memory_gib=peak,
        unreadable=unreadable,
    )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
