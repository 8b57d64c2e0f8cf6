"""Derives from a plan what the supervisor needs besides the command: guards, checkpoint sizes, data for cures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from launch.config.guards import GuardsConfig
from launch.config.schema import Family
from launch.execution.diagnosis.advice import Situation
from launch.execution.guards.guard import GuardContext
from launch.execution.record.checkpoints import Layout
from launch.planning.estimate.planned import UnknownMemoryError, planned_setting
from launch.planning.estimate.setting import MemorySetting
from launch.planning.plan import Plan

_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
# bytes per parameter in a checkpoint: bf16 weights plus fp32 master weights and moments under DeepSpeed; fp32 weights
# and moments with TRL; bf16 weights and moments in open-instruct without DeepSpeed (finetune.py:596 loads bf16)
_ZERO_BYTES, _TRL_BYTES, _PLAIN_BYTES = 14, 12, 6


@dataclass(frozen=True)
class WatchConfig:
    """What the supervisor knows of a run besides its command."""

    guards: GuardsConfig | None = None  # None turns all guards off
    allow: Collection[str] = ()  # ids of guards that only warn
    guard_context: GuardContext = field(default_factory=GuardContext)
    output: Path | None = None  # the trainer's output folder
    layout: Layout | None = None  # what makes a checkpoint of this run complete
    checkpoint_bytes: int | None = None  # an estimate; None if unknown
    model_bytes: int | None = None  # an estimate; None if unknown
    situation: Situation = field(default_factory=Situation)


def build_watch_config(plan: Plan, first_rank: int = 0) -> WatchConfig:
    """Build the watch configuration of `plan` for the node whose first global rank is `first_rank`."""
    recipe = plan.config.recipe
    parameters = _count_parameters(plan)
    has_adapter = any(bool(plan.flags[name].value) for name in ("use_lora", "use_peft") if name in plan.flags)
    plain_bytes = _TRL_BYTES if plan.config.trainer.family == Family.trl else _PLAIN_BYTES
    bytes_per_parameter = _ZERO_BYTES if plan.parallel.zero_stage else plain_bytes
    is_known = parameters is not None and not has_adapter
    return WatchConfig(
        guards=plan.config.guards,
        allow=tuple(plan.config.allow),
        guard_context=GuardContext(
            ranks=tuple(range(first_rank, first_rank + plan.batch.width)),
            checkpoint_every=recipe.checkpoint_steps,
            total_steps=recipe.max_steps,
        ),
        output=plan.model_dir,
        layout=Layout(plan.config.trainer.family, plan.batch.width, plan.parallel.zero_stage),
        checkpoint_bytes=int((parameters or 0) * bytes_per_parameter) if is_known else None,
        model_bytes=int((parameters or 0) * 2) if is_known else None,
        situation=Situation(
            trainer=plan.trainer,
            batch=plan.batch,
            mode=plan.parallel.mode,
            device=plan.parallel.width.device,
            gradient_checkpointing=recipe.gradient_checkpointing,
            max_seq_length=recipe.max_seq_length,
            memory=_memory_setting(plan),
            runs=plan.runs,
            cache=plan.cache,
            python=plan.command[0],
        ),
    )


def _memory_setting(plan: Plan) -> MemorySetting | None:
    with contextlib.suppress(UnknownMemoryError):
        return planned_setting(plan, os.environ, flash=False)
    return None


def _count_parameters(plan: Plan) -> float | None:
    """Count parameters from the model's shape, else from its local weight files at two bytes per parameter."""
    if plan.config.model.shape.parameters:
        return plan.config.model.shape.parameters
    folder = plan.inputs.model.local
    if folder is None or not folder.is_dir():
        return None
    size = sum(path.stat().st_size for pattern in _WEIGHT_FILES for path in folder.glob(pattern))
    return size / 2 if size else None
