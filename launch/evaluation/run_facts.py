"""Read from run folders what `compare` compares: settings, data, versions, patches, losses, speed,
memory.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import refusal
from launch.evaluation.record import read_summary
from launch.execution.record.reader import RunRecord, RunStatus, mapping, objects
from launch.trials.measurement import number

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
    speed: float | None = (
        None  # tokens per second, or steps per second where tokens are not counted
    )
    memory_gib: float | None = None  # highest peak of rank 0


@dataclass(frozen=True)
class RunFacts:
    """What a run folder records."""

    name: str
    folder: Path
    kind: str | None  # sft, dpo, rm
    status: RunStatus
    settings: Mapping[str, Any]  # by dotted key
    data: Mapping[str, Any]
    versions: Mapping[str, Any]  # of packages, Python, driver, GPUs, and the commits
    patches: Mapping[str, Any]  # id -> its value
    progress: Progress
    scores: Mapping[str, Any]  # of its last evaluation: task and metric -> score
    is_base: bool = False  # a model that no run here has trained


def read_run_facts(folder: Path, checkpoint: str | None = None) -> RunFacts:
    """Read a run folder, of a `checkpoint` (step_N) the training until then.

    Files that are missing or not readable have no facts. Raises UserError: no_checkpoint, for a
    step after the last.
    """
    run = RunRecord(folder)
    progress = _read_progress(run, checkpoint)
    if checkpoint and progress.last_step < int(checkpoint.removeprefix("step_")):
        message = f"{run.name} has no {checkpoint}: its last step is {progress.last_step}"
        raise refusal("no_checkpoint", message, "command line", "name an earlier step")
    settings = dict(_flatten(run.settings))
    tasks = (read_summary(folder, checkpoint) or {}).get("tasks", [])
    return RunFacts(
        name=run.name + (f"/{checkpoint}" if checkpoint else ""),
        folder=folder,
        kind=settings.get("stage.kind"),
        status=run.status(),
        settings=_training_settings(settings, run),
        data=_data_settings(settings, run),
        versions=dict(_versions(run.versions, run.git)),
        patches=_patches(run),
        progress=progress,
        scores=_scores(tasks, -1),
    )


def read_base_facts(name: str, folder: Path, runs: Sequence[Path]) -> RunFacts:
    """Return what is known of a base model: its scores, from the evaluations of the runs that start
    from it.
    """
    tasks = [
        task
        for run in runs
        if RunRecord(run).flags.get("model_name_or_path") in (name, str(folder))
        for task in (read_summary(run) or {}).get("tasks", [])
    ]
    status = RunStatus(folder, name, "not a run", 0.0)
    return RunFacts(
        name, folder, None, status, {}, {}, {}, {}, Progress(), _scores(tasks, -2), is_base=True
    )


def _scores(tasks: Sequence[Mapping[str, Any]], model: int) -> dict[str, Any]:
    return {f"{task['task']} {task['metric']}": task["models"][model]["score"] for task in tasks}


def split_checkpoint(name: str) -> tuple[str, str | None]:
    """Return the run and the checkpoint, `step_N`, of `RUN/step_N` or `RUN/checkpoint-N`; None for
    a run's own name.
    """
    match = _CHECKPOINT.fullmatch(name)
    return (match["run"], f"step_{match['step']}") if match else (name, None)


def _training_settings(settings: Mapping[str, Any], run: RunRecord) -> dict[str, Any]:
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


def _data_settings(settings: Mapping[str, Any], run: RunRecord) -> dict[str, Any]:
    """Return the keys of the data, and what the trainer reads: local data is a copy whose path
    names its content.
    """
    data = {key: value for key, value in settings.items() if key.startswith("data.")}
    mixer = run.flags.get("dataset_mixer_list")  # names and shares in turn
    sources = mixer[::2] if isinstance(mixer, list) else [run.flags.get("dataset_name")]
    data["sources"] = [str(source).removesuffix("/train.jsonl") for source in sources if source]
    for number_, structure in enumerate(run.plan.get("data") or (), start=1):
        data |= {f"file {number_} {key}": value for key, value in _flatten(structure or {})}
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


def _patches(run: RunRecord) -> dict[str, Any]:
    values = {str(patch.get("id")): str(patch.get("value") or "applied") for patch in run.patches}
    return {id_: "applied" if value.startswith("/") else value for id_, value in values.items()}


def _read_progress(run: RunRecord, checkpoint: str | None) -> Progress:
    until = int(checkpoint.removeprefix("step_")) if checkpoint else _LARGEST_STEP
    losses, at_steps, at_tokens = array("d"), array("d"), array("d")
    last_step, steps, timed_steps = 0, 0, 0
    tokens, timed_tokens, seconds, is_counted = 0.0, 0.0, 0.0, True
    peak: float | None = None
    for entry in run.steps():
        step = entry["step"]
        if step > until:
            continue
        last_step, steps = step, steps + 1
        count = number(entry, "tokens")
        is_counted = is_counted and count is not None
        tokens += count or 0.0
        if steps > _WARMUP:
            timed_steps, timed_tokens = timed_steps + 1, timed_tokens + (count or 0.0)
            seconds += number(entry, "seconds") or 0.0
        if (loss := number(entry, "loss")) is not None:
            losses.append(loss)
            at_steps.append(step)
            at_tokens.append(tokens)
        if (memory := number(entry, "memory_gib")) is not None and math.isfinite(memory):
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
    )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
