"""Finds the model that a name means: that of a run, a checkpoint, a folder or a hub id."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from launch.errors import UserError, refusal
from launch.execution import merge
from launch.execution.completion import refuse_changes
from launch.execution.record.checkpoints import names_checkpoint
from launch.execution.record.outcome import folder_status
from launch.execution.record.run import Run
from launch.execution.record.written import read_written
from launch.files import read_json_object
from launch.planning.adapter import Adapter, check_adapter, read_adapter
from launch.planning.chat_template import read_template
from launch.planning.digest_cache import open_digests
from launch.planning.estimate.shape import read_shape
from launch.planning.find_runs import resolve_newest, resolve_run, run_name
from launch.planning.hub_cache import hub_snapshot
from launch.planning.model_folder import EXPORT, find_foreign_pickle, find_model_faults
from launch.planning.saved_model import run_of
from launch.terminal import notify
from launch.worker.model_loading import ModelRequest

_MODEL_FILES = ("config.json", "adapter_config.json")
# The files of accelerate's save_state that have the weights.
_STATE_FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model")
_CHECKPOINT = re.compile(r"(step|epoch|checkpoint)[_-](\d+)")
# Patterns of the folders below model/ in which some trainers write the model.
_EXPORTS = (f"**/{EXPORT}", "*")


@dataclass(frozen=True)
class ModelSource:
    """A model that can be loaded, and what is needed to load it as its run trained it."""

    label: str  # its name in reports
    folder: Path  # folder of a whole model, or of an adapter
    run: Path | None  # run folder, None if it is not the model of a run
    python: str  # interpreter of its run
    adapter: Adapter | None = None
    quantized: bool = False  # whether the adapter was trained on a base in 4 bit
    state: Path | None = None  # training state, whose weights replace those of the folder

    @property
    def request(self) -> ModelRequest:
        """The request by which the worker loads the model."""
        state = str(self.state) if self.state else None
        return ModelRequest(str(self.folder), self.quantized, state)

    @property
    def checkpoint(self) -> str | None:
        """The name of its checkpoint, `step_N`; None for the final model of a run."""
        match = _CHECKPOINT.fullmatch((self.state or self.folder).name)
        if match is None:
            return None
        unit = match[1].replace("checkpoint", "step")
        return f"{unit}_{match[2]}"


def find_model(name: str, runs: Path) -> ModelSource:
    """Return the model that `name` means: of a run, of a folder, or of a hub id in the cache.

    Raises UserError: unknown_run, ambiguous_run, run_without_model, no_transformers_model,
    incomplete_model, not_generative, adapter_base, bad_adapter, no_checkpoint, checkpoint_state,
    model_changed, base_changed, other_format.
    """
    checkpoint = _find_checkpoint(name, runs)
    path = checkpoint or Path(name).expanduser().absolute()
    if names_checkpoint(path) and (path.parents[1] / "plan.json").is_file():
        _refuse_replaced(path)
    if not _holds_model(path) and (checkpoint or _holds_state(path)):
        return _describe_state(path)
    if _holds_model(path):
        parents = list(path.parents)[:2]
        run_folders = [folder for folder in parents if (folder / "plan.json").is_file()]
        return _describe_model(name, path, run_folders[0] if run_folders else None)
    try:
        run = resolve_run(name, runs)
    except UserError:
        snapshot = hub_snapshot(name, os.environ)
        if snapshot:
            return _describe_model(name, snapshot, None)
        raise
    _refuse_other_format(run)
    status = folder_status(run)
    if status != "done":
        message = f"the run in {run} is {status}, so it has no model"
        raise refusal("run_without_model", message, "command line", "start it again to its end")
    return _describe_model(run_name(run), _find_output(run), run)


def find_run_or_model(name: str, runs: Path) -> Path | ModelSource:
    """Return the folder of the run that `name` means, or else the model that it means.

    Raises UserError as `resolve_newest`.
    """
    try:
        return resolve_newest(name, runs, notify)
    except UserError:
        with contextlib.suppress(UserError):
            model = find_model(name, runs)
            return model.run or model
        raise


def find_chain(model: ModelSource) -> tuple[ModelSource, ...]:
    """Return the models that a run's model was trained from, the oldest first, and the model last.

    A hub id, or a model that is not that of a run, ends the chain.

    Raises UserError: base_gone; as find_model.
    """
    chain = [model]
    while chain[0].run is not None:
        base = _read_start(chain[0])
        if base is None:
            break
        path = Path(base).expanduser()
        if path.is_absolute() and not path.exists():
            message = f"{chain[0].label} was trained from {path}, which no longer exists"
            raise refusal("base_gone", message, chain[0].label, "restore the folder")
        if not path.exists():  # a hub id
            on_hub = replace(model, label=base, folder=Path(base), run=None)
            chain.insert(0, replace(on_hub, adapter=None, quantized=False))
            break
        run = next((at for at in list(path.parents)[:2] if (at / "plan.json").is_file()), None)
        label = run_name(run) if run else "base"
        chain.insert(0, _describe_model(label, path, run))
    return tuple(chain)


def _read_start(model: ModelSource) -> str | None:
    """Return the model that a run started from: a folder or a hub id."""
    assert model.run is not None
    if model.adapter is not None:
        return model.adapter.base
    start = Run(model.run).flags.get("model_name_or_path")
    return str(start) if start else None


def _find_checkpoint(name: str, runs: Path) -> Path | None:
    """Return the folder that `RUN/step_N` (or `epoch_N`, `checkpoint-N`) means; None for another
    name.

    Raises UserError: unknown_run, no_checkpoint.
    """
    run_part, _, last = name.rpartition("/")
    match = _CHECKPOINT.fullmatch(last)
    if match is None or not run_part or Path(name).expanduser().is_dir():
        return None
    output = resolve_run(run_part, runs) / "model"
    candidates = [output / last]
    if match[1] == "step":
        candidates.append(output / f"checkpoint-{match[2]}")
    for folder in candidates:
        if folder.is_dir():
            return folder
    names = [path.name for path in output.glob("*")]
    saved = sorted(name for name in names if _CHECKPOINT.fullmatch(name))
    cure = f"there are {', '.join(saved)}" if saved else "the run kept no checkpoints"
    raise refusal("no_checkpoint", f"{output} has no checkpoint {last}", "command line", cure)


def _refuse_replaced(checkpoint: Path) -> None:
    """Raise UserError (model_changed) if a checkpoint of a run is not the one that the run wrote."""
    run = checkpoint.parents[1]
    change = find_foreign_pickle(checkpoint)
    written = read_written(run).get(checkpoint.name)
    if written is not None and change is None:
        digests = open_digests(run)
        change = written.find_change(checkpoint, digests.of)
        digests.save(create_folder=False)
    if change is not None:
        message = f"{checkpoint} is not the checkpoint that its run wrote: {change}"
        cure = "restore the file, or move the changed model to a folder of its own and name that"
        raise refusal("model_changed", message, "command line", cure)


def _describe_state(state: Path) -> ModelSource:
    """Return the model of a training state: its weights, with the configuration and the tokenizer
    that its run wrote at its end.

    An unfinished run has those of the model that it started from, unless training changes them.
    Raises UserError: checkpoint_state; as find_model.
    """
    run = state.parents[1]
    _refuse_other_format(run)
    if not _holds_state(state):
        message = f"{state} holds neither a model nor the weights of one"
        raise refusal("checkpoint_state", message, "command line", "name another checkpoint")
    label = f"{run_name(run)}/{state.name}"
    if _holds_model(state.parent):
        return replace(_describe_model(label, state.parent, run), state=state)
    flags = Run(run).flags
    start = Path(str(flags.get("model_name_or_path") or ""))
    if (
        flags.get("chat_template_name")
        or flags.get("use_lora")
        or not (start.is_absolute() and _holds_model(start))
    ):
        message = (
            f"{state} has weights alone; their configuration and tokenizer are written when "
            "the run ends"
        )
        cure = "end the run first; flags.clean_checkpoints_at_end=false keeps its checkpoints"
        raise refusal("checkpoint_state", message, "command line", cure)
    return replace(_describe_model(label, start, run), state=state)


def require_packages(model: ModelSource, *names: str) -> None:
    """Refuse a model whose interpreter lacks a module. Raises UserError: no_interpreter,
    missing_packages.
    """
    needed = [
        *names,
        *(["peft"] if model.adapter else []),
        *(["bitsandbytes"] if model.quantized else []),
    ]
    merge.require_modules(model.python, needed, model.label)


def require_chat_template(model: ModelSource) -> None:
    """Refuse a model whose tokenizer has no chat template. Raises UserError: no_chat_template."""
    if not read_template(model.folder):
        message = f"the tokenizer in {model.folder} has no chat template"
        raise refusal(
            "no_chat_template", message, model.label, "train with recipe.chat_template=tulu"
        )


def _refuse_other_format(run: Path) -> None:
    problem = Run(run).other_format
    if problem is not None:
        raise UserError(problem)


def _holds_model(path: Path) -> bool:
    return any((path / name).is_file() for name in _MODEL_FILES)


def _holds_state(path: Path) -> bool:
    is_named = _CHECKPOINT.fullmatch(path.name) and (path.parent.parent / "plan.json").is_file()
    return bool(is_named) and any((path / file).exists() for file in _STATE_FILES)


def _find_output(run: Path) -> Path:
    """Return the folder of a finished run's model.

    Raises UserError: no_transformers_model, model_gone.
    """
    output = run / "model"
    if not output.is_dir():
        message = f"the run is done, but {output} no longer exists"
        cure = "restore the folder, or train again with restart=true"
        raise refusal("model_gone", message, run_name(run), cure)
    if _holds_model(output):
        return output
    for pattern in _EXPORTS:
        for path in sorted(output.glob(pattern)):
            if _holds_model(path):
                return path
    message = f"{output} holds no model that transformers can load"
    cure = (
        "export it first; for OLMo-core: open-instruct's scripts/train/convert_olmo_core_to_hf.py"
    )
    raise refusal("no_transformers_model", message, run_name(run), cure)


def _describe_model(label: str, folder: Path, run: Path | None) -> ModelSource:
    if run is not None:
        _refuse_other_format(run)
    faults = find_model_faults(folder)
    if faults:
        raise refusal("incomplete_model", f"{folder} is not a complete model: {faults[0]}", label)
    refuse_changes(run_of(folder) if folder.name in ("model", EXPORT) else None)
    adapter = read_adapter(folder)
    if adapter is not None:
        check_adapter(adapter, read_shape(adapter.local_base) if adapter.local_base else None)
    _refuse_other_families(label, folder if adapter is None else adapter.local_base)
    training = merge.read_training(Adapter(folder if run is None else run / "model", "", 0))
    is_quantized = training.quantized and adapter is not None
    return ModelSource(label, folder, run, training.python, adapter, is_quantized)


def _refuse_other_families(label: str, folder: Path | None) -> None:
    """Refuse a model that predicts no text, such as a reward model.

    Raises UserError: not_generative.
    """
    config = read_json_object(folder / "config.json") if folder else {}
    for architecture in config.get("architectures") or ():
        if "CausalLM" not in architecture and "ConditionalGeneration" not in architecture:
            message = f"{folder} is a {architecture}, which generates no text"
            raise refusal("not_generative", message, label, "name a run of an SFT or DPO stage")
