"""A column of `compare`: the settings, data, versions, patches, losses, speed and memory of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from launch.errors import refusal
from launch.evaluation.record import read_summary
from launch.execution.completion import find_model_changes
from launch.execution.earlier_runs import FOLDER_KEYS
from launch.execution.record.progress import Progress
from launch.execution.record.run import Run, count_unreadable, mapping, number, objects

_CHECKPOINT = re.compile(r"(?P<run>.+)/(?:step_|checkpoint-)(?P<step>\d+)")
# The keys of config.yaml that are not compared.
_NOT_COMPARED = (*FOLDER_KEYS, "stage.description")


@dataclass(frozen=True)
class ComparedRun:
    """A run, or the part of it until a checkpoint, as `compare` sees it."""

    run: Run
    checkpoint: str | None = None  # step_N, None for all of the run

    is_base = False

    @property
    def name(self) -> str:
        if self.checkpoint:
            return f"{self.run.name}/{self.checkpoint}"
        return self.run.name

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
        """The settings by dotted key."""
        return _training_settings(self._resolved, self.run)

    @cached_property
    def data(self) -> Mapping[str, Any]:
        return _data_settings(self._resolved, self.run)

    @cached_property
    def versions(self) -> Mapping[str, Any]:
        """The versions of packages, Python and driver, the GPUs, and the commits."""
        return dict(_versions(self.run.versions, self.run.git))

    @cached_property
    def patches(self) -> Mapping[str, Any]:
        """The value of each patch, by its id."""
        return _patches(self.run)

    @property
    def progress(self) -> Progress:
        return self.run.progress

    @cached_property
    def scores(self) -> Mapping[str, Any]:
        """The scores of the last evaluation, by task and metric."""
        summary = read_summary(self.folder, self.checkpoint) or {}
        return _scores(summary.get("tasks"), -1)

    @property
    def notes(self) -> list[str]:
        """Notes on what could not be read, and on a model that is not the one that was saved."""
        notes = [change.message for change in find_model_changes(self.folder)]
        unreadable = count_unreadable("metrics.jsonl", self.progress.unreadable)
        if unreadable:
            notes.append(unreadable)
        return [f"{self.name}: {note}" for note in notes]


@dataclass(frozen=True)
class ComparedBase:
    """The model that runs start from: only its scores are known, from their evaluations."""

    name: str
    folder: Path
    runs: Sequence[Path]  # folders of the runs whose evaluations may have its scores

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
    last_counted = int(checkpoint.removeprefix("step_")) if checkpoint else None
    compared = ComparedRun(Run(folder, last_counted), checkpoint)
    last = compared.progress.last_step
    if last_counted is not None and last < last_counted:
        message = f"{compared.run.name} has no {checkpoint}: its last step is {last}"
        raise refusal("no_checkpoint", message, "command line", "name an earlier step")
    return compared


def _scores(tasks: object, model: int) -> dict[str, float]:
    """Return the score of one model in each task; `model` is its index among the models.

    A task whose record is damaged has no score.
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
    """Split `RUN/step_N` or `RUN/checkpoint-N` into the run and the checkpoint, `step_N`.

    The checkpoint of a run's own name is None.
    """
    match = _CHECKPOINT.fullmatch(name)
    if match is None:
        return name, None
    return match["run"], f"step_{match['step']}"


def _training_settings(settings: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the settings that affect the training, and the values that the plan computed from them.

    The trainer's description is represented by its name.
    """
    training = {}
    for key, value in settings.items():
        is_described_elsewhere = key.startswith(("data.", "trainer.")) and key != "trainer.name"
        if key not in _NOT_COMPARED and not is_described_elsewhere:
            training[key] = value
    for section in ("batch", "parallel"):
        for key, value in mapping(run.plan.get(section)).items():
            training[f"{section}.{key}"] = value
    if "model_name_or_path" in run.flags:
        training["model"] = run.flags["model_name_or_path"]
    return training


def _data_settings(settings: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the keys of the data, and the sources that the trainer reads.

    Local data is a copy whose path identifies its content.
    """
    data = {key: value for key, value in settings.items() if key.startswith("data.")}
    mixer = run.flags.get("dataset_mixer_list")  # names and shares alternate
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
            changes = " with changes" if state.get("dirty") else ""
            yield f"commit of {repository}", state["commit"][:9] + changes


def _patches(run: Run) -> dict[str, Any]:
    """Return the value of each patch; a path is left out, since it differs between runs."""
    values = {}
    for patch in run.patches:
        value = str(patch.get("value") or "applied")
        values[str(patch.get("id"))] = "applied" if value.startswith("/") else value
    return values


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
