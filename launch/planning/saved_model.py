"""Checks that the model that a stage starts from is complete, and is the one that its run saved.

The run's DONE holds digests of the model's files, which every later use of the model compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from launch.config.origins import Origins
from launch.config.schema import Launcher, RootConfig
from launch.data.sources import file_format, suggest_neighbours
from launch.digests import Digest, describe_file_changes, digest_folder
from launch.errors import UserError
from launch.files import read_json_object
from launch.planning.hub_cache import hub_snapshot
from launch.planning.input_source import MERGE, InputSource
from launch.planning.model_folder import EXPORT, NO_TOKENIZER, find_model_faults, is_unrelated
from launch.worker.finding import Finding, Fix

_CURE = "restore the file, or move the changed model to a folder of its own and name that"


def digest_model(folder: Path, digest: Digest) -> dict[str, str]:
    """Return the digest of each file of a model, or an adapter, by name; {} for a hub id.

    What does not belong to the model is left out (model_folder.py), unless it holds an exported one.
    """

    steps = {path.name: int(path.name[4:]) for path in folder.glob("step*") if _is_step(path)}
    earlier = {name for name, step in steps.items() if step < max(steps.values())}  # of OLMo-core

    def is_left_out(name: str) -> bool:
        holds_export = (folder / name / EXPORT).is_dir()
        return (name in earlier or is_unrelated(name)) and not holds_export

    return digest_folder(folder, digest, is_left_out)


def _is_step(path: Path) -> bool:
    return path.is_dir() and path.name.removeprefix("step").isdecimal()


def run_of(model: Path) -> Path | None:
    """Return the finished run whose model is in a folder, or whose exported model; None if no run's
    is.
    """
    above = model.parents if model.name == EXPORT else (model.parent,)
    return next((folder for folder in above if (folder / "DONE").is_file()), None)


def find_changes(run: Path, digest: Digest) -> list[Finding]:
    """Return how the model of a finished run, or its adapter's base, differs from what its DONE
    holds.

    [] for a run of a version that recorded no digests. The ids are model_changed and base_changed.
    """
    recorded = read_json_object(run / "DONE").get("model")
    if not isinstance(recorded, dict):
        return []
    problems = []
    output = run / "model"
    changes = _describe_model_changes(recorded.get("files"), output, digest)
    if changes:
        message = f"the model in {output} is not the one that this run saved: {changes}"
        problems.append(Finding.error("model_changed", message, None, _CURE))
    base = Path(str(recorded.get("base")))
    changes = _describe_model_changes(recorded.get("base_files"), base, digest)
    if changes:
        message = f"{base} is not the model that the adapter in {output} was trained on: {changes}"
        cure = "restore the base: on another one it means nothing"
        problems.append(Finding.error("base_changed", message, None, cure))
    return problems


def _describe_model_changes(recorded: object, folder: Path, digest: Digest) -> str | None:
    """Describe how the files of a folder differ from the recorded digests; None if they do not."""
    if not isinstance(recorded, dict) or not recorded:
        return None
    if not folder.is_dir():
        return "the folder no longer exists"
    return describe_file_changes(recorded, digest_model(folder, digest))


def check_model_folder(
    config: RootConfig,
    origins: Origins,
    model: InputSource,
    digest: Digest,
    environ: Mapping[str, str],
) -> list[Finding]:
    """Check that a local model is complete, which the trainer does only once the data is tokenised.
    The model of a run has to be the one that the run saved.

    A model that another run is to make (model.trained_by) is checked before this one starts.

    Returns what `allow` turns into a warning. Raises UserError: incomplete_model, model_changed,
    base_changed, short_context.
    """
    if config.model.trained_by:
        return []
    where = model.provenance.where
    problems = []
    # the other trainers convert a model before they load it
    if config.trainer.launcher == Launcher.accelerate:
        problems = _find_incomplete(config, model, where)
        if problems and "incomplete_model" in config.allow:
            return [problem.apply_allow(config.allow).as_warning() for problem in problems]
        if not problems:
            problems = find_short_context(config, origins, model, model.reference, environ)
    problems += [replace(change, where=where) for change in find_start_changes(model, digest)]
    problems = [problem.apply_allow(config.allow) for problem in problems]
    stopping = [problem for problem in problems if problem.stops]
    if stopping:
        raise UserError(stopping)
    return [problem.as_warning() for problem in problems]


def find_start_changes(model: InputSource, digest: Digest) -> list[Finding]:
    """Return how the model of a finished run, or its adapter's base, differs from what its DONE
    holds; [] for a model that no run has made.
    """
    source = model.adapter.folder if model.adapter is not None else model.local
    run = run_of(source) if source and model.build in (None, MERGE) else None
    return find_changes(run, digest) if run is not None else []


def _find_incomplete(config: RootConfig, model: InputSource, where: str | None) -> list[Finding]:
    """Return the problems of the local folders that a stage loads as a model or an adapter."""
    folders = [model.local] if model.build is None else []
    if model.adapter is not None:
        folders += [model.adapter.folder, model.adapter.local_base]
    problems = []
    for folder in dict.fromkeys(folders):
        if folder is None:
            continue
        needs_tokenizer = folder == model.local and "tokenizer_name_or_path" not in config.flags
        if folder.exists():
            problems += _find_incomplete_folder(folder, where, needs_tokenizer=needs_tokenizer)
        elif folder == model.local and folder.parent.is_dir():
            message = f"model.path={folder} does not exist"
            cure = suggest_neighbours(folder)
            problems.append(Finding.error("incomplete_model", message, where, cure))
    return problems


def _find_incomplete_folder(
    folder: Path, where: str | None, *, needs_tokenizer: bool
) -> list[Finding]:
    """Return the problem of a folder that is not a complete model."""
    faults = find_model_faults(folder)
    if not needs_tokenizer:
        faults = [fault for fault in faults if fault != NO_TOKENIZER]
    if not faults:
        return []
    message = f"{folder} is not a complete model: {faults[0]}"
    if len(faults) > 1:
        message += f" (and {len(faults) - 1} more)"
    cure: Fix | str = _cure_for_file(folder)
    if folder.is_dir():
        sentence = "complete the folder, or set {0} to plan without it"
        cure = Fix.of(sentence, "allow=[incomplete_model]")
    return [Finding.error("incomplete_model", message, where, cure)]


def find_short_context(
    config: RootConfig, origins: Origins, model: InputSource, whose: str, environ: Mapping[str, str]
) -> list[Finding]:
    """Return the problem short_context if samples may be longer than the positions of a model whose
    files are on this machine.
    """
    folder = model.adapter.local_base if model.adapter else model.local
    folder = folder or hub_snapshot(model.reference, environ)
    context = read_context(folder) if folder else None
    limit = config.recipe.max_seq_length
    if context is None or limit <= context:
        return []
    message = (
        f"recipe.max_seq_length={limit:,} is longer than the context of {whose}, {context:,} tokens"
    )
    cure = Fix.of("set {0}, or {1}", f"recipe.max_seq_length={context}", "allow=[short_context]")
    where = origins.of("recipe.max_seq_length").where
    return [Finding.error("short_context", message, where, cure)]


def read_context(folder: Path | str) -> int | None:
    """Return the positions of the model in a folder; None where its configuration does not give
    them.
    """
    context = read_json_object(Path(folder, "config.json")).get("max_position_embeddings")
    return context if isinstance(context, int) else None


def _cure_for_file(file: Path) -> str:
    """Return what to do where model.path is a file."""
    if file_format(file)[0]:
        return "it is a data file: set data.mix to it, and model.path to a hub id or a folder"
    return "set model.path to a hub id, or a folder that transformers can load, unlike a GGUF"
