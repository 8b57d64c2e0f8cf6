"""Finds which runs can be resumed at another width, and the unfinished run that a plan resumes.

A training does not depend on its width if every optimizer step has the same rows with the same
weights however many ranks share them. accelerate deals the rows of a global batch to the ranks in
turn (data_loader.py:110, BatchSamplerShard), and so does open-instruct's loader for OLMo-core
(open_instruct/data_loader.py:244), so the rows of a step follow from the global batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from launch.config.kinds import Kind
from launch.config.recipe_keys import Packing
from launch.config.schema import Launcher, RootConfig
from launch.files import read_json_object
from launch.planning.batch_split import Batch
from launch.planning.find_runs import runs_of_stage
from launch.planning.folders import DEFAULT_NAME
from launch.planning.loss import weigh_loss
from launch.planning.parallel import Parallel

_ADAMW = ("adamw_torch", "adamw_torch_fused")  # TRL's names of torch's AdamW
ADAPTER_FLAGS = ("use_lora", "use_qlora", "use_peft")
_CHECKPOINT = re.compile(r"(step|epoch)_\d+|checkpoint-\d+|step\d+")  # accelerate, TRL, OLMo-core
# The flags by which several ranks share a row.
_SHARING_FLAGS = ("sequence_parallel_size", "tensor_parallel_degree")
# The flags of dpo.py by which the ranks share the weights (dpo_utils.py:135-137).
_SHARDING_FLAGS = ("fsdp_shard_degree", "fsdp_num_replicas")
# The losses of TRL's DPO that compare or average what a micro batch has (dpo_trainer.py:1447-1498).
_OF_A_MICRO_BATCH = ("aot", "aot_unpaired", "sft")
# The flags that add the loss of a mixture of experts (finetune.py:818; trl sft_trainer.py:1625).
_BALANCING_FLAGS = ("load_balancing_loss", "router_aux_loss_coef")


class ShardedState(StrEnum):
    """Which ranks have a part of the optimizer's state, and so which files a checkpoint has."""

    whole = "whole"  # every rank has all of it: `single` and `ddp`
    optimizer = "optimizer"  # ZeRO 1 and 2
    model = "model"  # ZeRO 3, which shares out the weights too

    @classmethod
    def of(cls, parallel: Parallel) -> ShardedState:
        """Return the form of the checkpoints of a parallel mode."""
        return cls.of_stage(parallel.zero_stage)

    @classmethod
    def of_stage(cls, zero_stage: int | None) -> ShardedState:
        """Return the form of the checkpoints of a ZeRO stage; None is without DeepSpeed."""
        if zero_stage is None:
            return cls.whole
        return cls.model if zero_stage == 3 else cls.optimizer


def find_obstacle(
    config: RootConfig, parallel: Parallel, batch: Batch, flags: Mapping[str, Any]
) -> str | None:
    """Return why a run cannot be resumed at another width; None if it can.

    `flags` are the trainer's values by name.
    """
    return next(_find_obstacles(config, parallel, batch, flags), None)


def _find_obstacles(
    config: RootConfig, parallel: Parallel, batch: Batch, flags: Mapping[str, Any]
) -> Iterator[str]:
    trainer = config.trainer
    if not trainer.resumable:
        yield f"runs of {trainer.name} cannot be resumed"
    yield from _find_losses(config, flags)
    if flags.get("train_sampling_strategy") == "group_by_length":  # transformers/trainer.py:1100
        yield "rows are grouped by the lengths of those that a rank has in a step"
    if flags.get("dataloader_drop_last"):  # accelerate/data_loader.py:178
        yield "the rows that dataloader_drop_last leaves out depend on the ranks"
    if flags.get("accelerator_config"):  # transformers/trainer.py:832
        yield "accelerator_config decides which rows a rank is dealt"
    weighting = weigh_loss(config, batch, flags)
    if weighting.reason:
        yield weighting.reason
    if config.recipe.packing == Packing.bins:
        yield "rows that are packed into bins are resumed at the width that packed them only"
    if batch.ranks_per_row > 1 or any((flags.get(name) or 1) > 1 for name in _SHARING_FLAGS):
        yield "several ranks share a row"
    if flags.get("auto_find_batch_size"):  # transformers/trainer.py:1566
        yield "auto_find_batch_size takes the batch per device of the checkpoint"
    for drawn in _drawn_by_ranks(config, flags):
        yield f"each rank draws {drawn} with random numbers of its own"
    is_converted = ShardedState.of(parallel) != ShardedState.whole
    trains_adapter = _trains_adapter(flags)
    if trains_adapter and is_converted:
        yield "an adapter is not resumed from a checkpoint of DeepSpeed's at another width"
    if is_converted and not _has_adamw(flags):
        yield "DeepSpeed converts the states of torch's AdamW alone"


def _find_losses(config: RootConfig, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield what in the loss is of the rows that a rank, or a micro batch of it, has together."""
    given = flags.get("loss_type") or "default"
    losses = given if isinstance(given, (list, tuple)) else [given]
    if config.stage.kind == Kind.kto and losses[0] in ("default", "kto"):
        yield "KTO's KL term is of the answers that a micro batch and its ranks have together"
    if config.stage.kind == Kind.sft and config.trainer.launcher == Launcher.torchrun:
        # olmo_core/train/train_module/transformer/train_module.py:402
        yield "OLMo-core takes the mean over the tokens of each rank, and then over the ranks"
    for loss in losses:
        if config.stage.kind == Kind.dpo and loss in _OF_A_MICRO_BATCH:
            yield f"the loss {loss} is of the pairs that a micro batch has together"
    if any(flags.get(name) for name in _BALANCING_FLAGS):
        yield "the load balancing loss is of the tokens that a micro batch has together"


def split_flags(config: RootConfig) -> set[str]:
    """Return the names of the flags by which the ranks share the global batch and the model, and
    which a training does not depend on.
    """
    given = config.trainer.launch
    names = {given[key] for key in ("per_device", "accumulation") if key in given}
    names.update(_SHARDING_FLAGS)
    # The best checkpoint is chosen by a loss that is a mean over these batches.
    if config.recipe.early_stop is None and not config.flags.get("load_best_model_at_end"):
        names.add("per_device_eval_batch_size")
    return names


def _trains_adapter(flags: Mapping[str, Any]) -> bool:
    return any(flags.get(name) for name in ADAPTER_FLAGS)


def _drawn_by_ranks(config: RootConfig, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield what each rank draws for itself, so that another number of ranks draws something else."""
    if config.stage.kind == Kind.rlvr:
        yield "its completions"
    if flags.get("neftune_noise_alpha"):
        yield "NEFTune's noise"
    if _trains_adapter(flags) and flags.get("lora_dropout"):
        yield "the adapter's dropout"


def _has_adamw(flags: Mapping[str, Any]) -> bool:
    """Return whether the optimizer has the states that DeepSpeed's conversion takes by their names
    in torch's AdamW (deepspeed/checkpoint/ds_to_universal.py:154). open-instruct's other one is
    bitsandbytes' (dpo_tune_cache.py:419).
    """
    if flags.get("dpo_use_paged_optimizer"):
        return False
    return flags.get("optim", _ADAMW[0]) in _ADAMW


def find_continued_run(stage_folder: Path, identity: str, training: str | None) -> str | None:
    """Return the name of the run that a plan without a name continues, which began at another
    width; None if there is none.

    It is the newest one that has a default name and either ran last as this very plan, or is
    unfinished with the same training and a checkpoint. `identity` and `training` are those of
    `RunIdentity`.
    """
    if training is None:
        return None
    found: dict[float, str] = {}
    for run in runs_of_stage(stage_folder):
        if DEFAULT_NAME.fullmatch(run.name) is None:
            continue
        plan_file = run / "plan.json"
        recorded = read_json_object(plan_file)
        is_same = recorded.get("identity") == identity
        is_unfinished = not (run / "DONE").exists() and _has_checkpoint(run / "model")
        if is_same or (is_unfinished and recorded.get("training_identity") == training):
            found[plan_file.stat().st_mtime] = run.name
    return found[max(found)] if found else None


def _has_checkpoint(model: Path) -> bool:
    """Return whether a trainer has written a checkpoint, by its name."""
    return any(_CHECKPOINT.fullmatch(folder.name) for folder in model.glob("*/"))
