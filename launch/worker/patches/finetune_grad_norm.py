"""Adds the gradient norm to open_instruct/finetune.py's metrics, which measures it for the clipping and drops it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .. import accelerator
from .logged_step import StepListener
from .patch import PatchContext, PatchInfo

_ID = "finetune_grad_norm"


def _add_to_metrics(context: PatchContext) -> None:
    last = accelerator.follow_norm()
    if context.events.rank == 0:
        listener = StepListener(_ID, context.events, lambda local: add_norm(local, last))
        logging.getLogger("__main__").addHandler(listener)


def add_norm(local: Mapping[str, Any], last: accelerator.LastNorm) -> None:
    """Add the norm to the trainer's own dictionary, which it prints (with --verbose) and sends to trackers later."""
    norm = last.value()
    if norm is not None:
        local["metrics_to_log"]["grad_norm"] = norm


PATCH = PatchInfo(
    id=_ID,
    reason="finetune.py measures the gradient norm for clipping but does not report it; this adds it to the logs",
    condition="always; without clipping and DeepSpeed there is no norm",
    lines={
        "open_instruct/finetune.py": {
            73: "logger = get_logger(__name__)",
            848: "accelerator.clip_grad_norm_(model.parameters(), args.clip_grad_norm)",
            888: "metrics_to_log = {",
            (948, 949): 'logger.info( f"  Step: {completed_steps}, LR: ',
            952: 'accelerator.print(f"{metrics_to_log=}")',
        }
    },
    apply=_add_to_metrics,
)
