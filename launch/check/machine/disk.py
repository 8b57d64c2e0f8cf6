"""The disk: the folders that a run writes to, and the space for its checkpoints and its model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launch.check.machine.rule import Host, rule
from launch.config.recipe_keys import Precision
from launch.config.schema import Family, Mode
from launch.planning.estimate.optimizers import ADAMW, OptimizerState, factored_bytes
from launch.planning.estimate.planned_setting import (
    UnknownMemoryError,
    keeps_fp32_weights,
    planned_optimizer,
)
from launch.planning.estimate.planned_shape import planned_shape
from launch.planning.estimate.shape import ModelShape
from launch.planning.estimate.speed import planned_steps
from launch.planning.hub_cache import hub_cache, hub_snapshot
from launch.planning.lora import Lora
from launch.planning.model_folder import count_parameters
from launch.planning.plan import Plan
from launch.rules.code import failed, passed, skipped, warned
from launch.table import format_bytes
from launch.worker.finding import Finding

# Checkpoints that are kept: open-instruct's keep_last_n_checkpoints (finetune.py:263,
# olmo_core_utils.py:238), which launch also sets for TRL.
_KEPT = 3


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest ancestor that exists."""
    return next((path for path in (folder, *folder.parents) if path.exists()), folder)


def checkpoint_interval(plan: Plan) -> int | None:
    """Return the optimizer steps between two checkpoints; None if the run writes none."""
    return plan.config.recipe.checkpoint_steps or plan.config.trainer.checkpoint_steps


def checkpoint_count(plan: Plan, ends_after: int | None = None) -> int:
    """Return the largest number of checkpoints that are on disk at once.

    `ends_after` is the number of steps after which the run is ended.
    """
    interval = checkpoint_interval(plan)
    if not interval:
        return 0
    known_steps = [steps for steps in (planned_steps(plan), ends_after) if steps is not None]
    written = min(known_steps) // interval if known_steps else None
    if written == 0:
        return 0
    kept = _kept_checkpoints(plan)
    if kept is None:
        return written or 2  # an unknown number is at least two
    most = kept + 1  # the oldest is deleted after the newest is written
    return most if written is None else min(written, most)


def keeps_unknown_count(plan: Plan) -> bool:
    """Return whether the run keeps every checkpoint, and nobody knows yet how many it writes."""
    return (
        bool(checkpoint_interval(plan))
        and _kept_checkpoints(plan) is None
        and planned_steps(plan) is None
    )


def _kept_checkpoints(plan: Plan) -> int | None:
    """Return how many checkpoints the trainer keeps; None if it keeps all."""
    flag = plan.flags.get(_kept_checkpoints_flag(plan))
    kept = flag.value if flag is not None else _KEPT
    return None if kept is None or kept < 0 else int(kept)


def _kept_checkpoints_flag(plan: Plan) -> str:
    """Return the trainer's flag for the number of checkpoints that are kept."""
    if plan.config.trainer.family == Family.open_instruct:
        return "keep_last_n_checkpoints"
    return "save_total_limit"


@dataclass(frozen=True)
class ModelSize:
    """The number of a model's parameters."""

    parameters: float
    source: str  # where the number comes from


def find_model_size(plan: Plan, environ: Mapping[str, str]) -> ModelSize | None:
    """Return the number of parameters of a plan's model; None if it is unknown here."""
    model = plan.inputs.model
    folder = model.local or hub_snapshot(model.reference, environ)
    if folder:
        counted = count_parameters(folder)
        if counted:
            return ModelSize(counted, "its safetensors files")
        size = sum(path.stat().st_size for path in folder.glob("pytorch_model*.bin"))
        if size:
            source = "the size of its pytorch_model files, at 2 bytes a parameter"
            return ModelSize(size / 2, source)
    configured = plan.config.model
    # With model.path, the model is not the one whose shape the YAML gives.
    if configured.shape.parameters and not configured.path:
        return ModelSize(configured.shape.parameters, "its shape")
    if configured.trained_by and plan.shape:
        return ModelSize(plan.shape.parameters, "the shape of the model that it is trained from")
    return None


def written_bytes(
    plan: Plan, environ: Mapping[str, str], *, merged: bool = False
) -> tuple[float, float] | None:
    """Return the bytes of the model at the end, and of one checkpoint.

    None is returned if the model's size is unknown.

    accelerate saves weights and the optimizer's states; DeepSpeed saves its weights, and also fp32
    master weights and moments. open-instruct loads bf16 weights for bf16 (finetune.py:596), TRL fp32
    ones (trl/trainer/model_config.py:93). Where the optimizer's states are unknown, AdamW's are counted.

    An adapter's run ends with the adapter, in fp32, and its whole modules, or, if `merged`, with the
    model that it is merged into. TRL's checkpoints hold the adapter alone, open-instruct's the frozen
    weights too (accelerate's save_state, finetune.py:970).
    """
    size = find_model_size(plan, environ)
    shape = planned_shape(plan, environ)
    if plan.lora is not None:
        if size is None or shape is None:
            return None
        return _adapter_bytes(plan, plan.lora, shape, size.parameters, merged=merged)
    # A trainer's own flags for adapters, without recipe.lora, do not give the adapter's size.
    if size is None or plan.trains_adapter:
        return None
    weight = _weight_bytes(plan)
    model = weight * size.parameters
    if plan.parallel.zero_stage:
        return model, model + 12 * size.parameters
    optimizer = _saved_optimizer(plan)
    if optimizer.factored:
        return model, model + (factored_bytes(shape) if shape is not None else 0.0)
    embedding = shape.embedding if shape is not None else 0.0
    return model, model + optimizer.device_bytes(size.parameters, embedding, weight)


def _weight_bytes(plan: Plan) -> int:
    """Return the bytes of a saved weight. OLMo-core's shards are fp32, and so is the model that is
    made from them (open_instruct/olmo_core_utils.py:602).
    """
    is_fp32 = keeps_fp32_weights(plan) or plan.parallel.mode == Mode.fsdp
    return 2 if plan.parallel.precision == Precision.bf16 and not is_fp32 else 4


def _adapter_bytes(
    plan: Plan, lora: Lora, shape: ModelShape, parameters: float, *, merged: bool
) -> tuple[float, float]:
    """Return the bytes at the end and of one checkpoint, as `written_bytes` does, of an adapter over
    a model of so many parameters. Whole modules keep the type of the frozen weights.
    """
    element = 2 if plan.parallel.precision == Precision.bf16 else 4
    trained = lora.count_parameters(shape)
    whole, embedding = lora.count_whole(shape) or (0.0, 0.0)
    adapter = 4 * trained + element * whole
    frozen = 0.0 if plan.config.trainer.family == Family.trl else element * parameters
    optimizer = _saved_optimizer(plan)
    if plan.parallel.zero_stage:
        states = 12 * (trained + whole)
    elif optimizer.factored:
        states = 4 * trained / lora.rank
    else:
        states = optimizer.device_bytes(trained, 0, 4)
        states += optimizer.device_bytes(whole, embedding, element)
    return 2 * parameters if merged else adapter, adapter + states + frozen


def _saved_optimizer(plan: Plan) -> OptimizerState:
    """Return what a checkpoint holds of the optimizer: all of its states, wherever they lie."""
    try:
        return replace(planned_optimizer(plan), paged=False)
    except UnknownMemoryError:
        return ADAMW


def download_bytes(plan: Plan, environ: Mapping[str, str]) -> float:
    """Return the bytes of the model that the trainer downloads from the hub, at 2 bytes a parameter;
    0 if it is here, is made by another run, or its size is unknown.
    """
    model = plan.inputs.model
    if model.local or model.build or plan.is_pending or hub_snapshot(model.reference, environ):
        return 0.0
    size = find_model_size(plan, environ)
    return 2 * size.parameters if size else 0.0


@rule("disk_full", "disk", on_login_node=True)
def disk_has_room(plan: Plan, host: Host) -> Finding:
    """A disk that fills up destroys the checkpoint that is being written, hours into the run."""
    if plan.only_tokenizes:
        return skipped("tokenising writes no model")
    written = written_bytes(plan, host.environ)
    folder = nearest_existing(plan.folder)
    free = shutil.disk_usage(folder).free
    if written is None:
        model_name = plan.inputs.model.reference
        return skipped(f"{format_bytes(free)} free; the size of {model_name} is unknown")
    model, checkpoint = written
    if host.ends_after is not None:
        model = 0.0
    count = checkpoint_count(plan, host.ends_after)
    download = _download_beside(plan, folder, host.environ)
    needed = model + count * checkpoint + download
    if not needed:
        reason = f"a run that is ended after {host.ends_after} steps saves nothing"
        return passed(f"{format_bytes(free)} free; {reason}")
    parts = f"the {'adapter' if plan.lora else 'model'} {format_bytes(model)}"
    if count:
        parts += f", {count} checkpoints of {format_bytes(checkpoint)}"
    if download:
        parts += f", the download of {plan.inputs.model.reference} {format_bytes(download)}"
    facts = f"{format_bytes(free)} free for {format_bytes(needed)} ({parts}) in {folder}"
    if needed > free:
        return failed(facts, _cure(plan, count))
    if needed > 0.8 * free:
        return warned(facts, _cure(plan, count))
    return passed(facts)


def _download_beside(plan: Plan, folder: Path, environ: Mapping[str, str]) -> float:
    """Return the bytes that are downloaded to the file system of a folder."""
    cache = nearest_existing(hub_cache(environ))
    if cache.stat().st_dev != folder.stat().st_dev:
        return 0.0
    return download_bytes(plan, environ)


def _cure(plan: Plan, count: int) -> str:
    fewer = ""
    if count > 2:
        fewer = f"flags.{_kept_checkpoints_flag(plan)}=1 keeps fewer checkpoints; "
    return f"{fewer}free disk space, or set runs=FOLDER on a larger disk"


@rule("not_writable", "folders", on_login_node=True)
def folders_are_writable(plan: Plan, host: Host) -> Finding:
    """A read-only mount or a full quota ends a run after an hour of tokenizing."""
    folders = {"runs": plan.folder, "cache": plan.cache, "HF_HOME": hub_cache(host.environ)}
    writable: list[str] = []
    problems: dict[str, str] = {}  # key that sets the folder -> what is wrong
    for key, folder in folders.items():
        parent = nearest_existing(folder)
        problem = _write_problem(parent)
        if problem:
            problems[key] = f"{parent} is not writable: {problem}"
        else:
            writable.append(f"{key} {parent}")
    if not problems:
        return passed(", ".join(writable))
    settings = {"HF_HOME": "HF_HOME to"}  # a variable, while the others are configuration keys
    cures = [f"set {settings.get(key, f'{key}= to')} another folder" for key in problems]
    return failed("; ".join(problems.values()), "; ".join(cures), next(iter(problems)))


def _write_problem(folder: Path) -> str | None:
    """Return why no file can be written into a folder; None if one can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"launch")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None
