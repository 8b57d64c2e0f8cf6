"""Derives from a plan what the supervisor needs besides the command: guards, checkpoint sizes, data for cures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from launch.check.machine.disk import written_bytes
from launch.config.guards import GuardsConfig
from launch.execution.diagnosis.advice import Situation
from launch.execution.guards import GuardContext
from launch.execution.record.checkpoints import Layout
from launch.planning.estimate.forecast import UnknownMemoryError, planned_setting
from launch.planning.estimate.setting import MemorySetting
from launch.planning.plan import Plan


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
    has_adapter = any(bool(plan.flags[name].value) for name in ("use_lora", "use_peft") if name in plan.flags)
    written = None if has_adapter else written_bytes(plan, os.environ)
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
        checkpoint_bytes=int(written[1]) if written else None,
        model_bytes=int(written[0]) if written else None,
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
