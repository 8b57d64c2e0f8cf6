"""Step events from open_instruct/dpo_tune_cache.py, whose log line has loss and learning rate only.

Nothing of the trainer is replaced: a handler on its logger sees the line of each logged step and reads, in the frame
that logged it, the dictionary that the trainer would send to wandb.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from ..channel import Events
from . import machine
from .patch import Context, PatchInfo, Source

_SCRIPT = "open_instruct/dpo_tune_cache.py"
_TOTAL = "  Total optimization steps = "
_STEP = "  Step: "
_OWN_NAMES = {
    "training_step": "step",
    "train_loss": "loss",
    "learning_rate": "lr",
    "perf/tokens_per_second_step": "tokens_per_second",
}


class StepHandler(logging.Handler):
    """Turns the trainer's log records into "total_steps", "phase" and "step" events. Never raises into training."""

    def __init__(self, events: Events) -> None:
        super().__init__(logging.INFO)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._read(record.getMessage())
        except Exception as error:
            self._events.warn(f"patch dpo_steps could not read a step: {type(error).__name__}: {error}")

    def _read(self, message: str) -> None:
        if message.startswith(_TOTAL):
            self._events.emit("total_steps", steps=int(message[len(_TOTAL) :]))
        elif message.startswith(_STEP):
            local = logging_frame().f_locals
            self._events.emit(
                "step",
                **step_fields(local["metrics_to_log"], local["total_tokens_step"], local["training_time"]),
            )


def logging_frame() -> FrameType:
    """The frame, outwards from here, that holds the metrics of a logged step. Raises LookupError without one."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if "metrics_to_log" in frame.f_locals:
            return frame
        frame = frame.f_back
    raise LookupError("no frame holds metrics_to_log")


def step_fields(metrics: Mapping[str, Any], tokens: int, seconds: float) -> dict[str, Any]:
    """The fields of a "step" event.

    `metrics` has upstream's names (dpo_tune_cache.py:644-674), `tokens` are the answer tokens (labels that count) of
    all ranks since the previous logged step, `seconds` the time since then. Utilisation figures are left out.
    """
    fields: dict[str, Any] = {}
    for name, value in metrics.items():
        if name in _OWN_NAMES:
            fields[_OWN_NAMES[name]] = value
        elif not name.startswith("perf/"):
            fields[name] = value
    fields.update(tokens=tokens, seconds=seconds)
    memory = machine.peak_memory_gib()
    if memory is not None:
        fields["memory_gib"] = memory
    return fields


def _listen(context: Context) -> None:
    if context.events.rank == 0:
        logging.getLogger("__main__").addHandler(StepHandler(context.events))


STEPS = PatchInfo(
    id="dpo_steps",
    reason="dpo_tune_cache.py prints loss and learning rate only; tokens and rewards are read where it logs a step",
    trainers=("dpo_tune_cache",),
    condition="always",
    sources=(
        Source(_SCRIPT, "logger = logger_utils.setup_logger(__name__)", 73, 73),
        Source(_SCRIPT, 'logger.info(f"  Total optimization steps = {args.max_train_steps}")', 488, 488),
        Source(_SCRIPT, 'total_tokens_step = int(global_metrics["token_count"])', 630, 630),
        Source(_SCRIPT, 'metrics_to_log = {"training_step": completed_steps,', 644, 645),
        Source(_SCRIPT, 'logger_str = f"  Step: {completed_steps}, LR: ', 662, 662),
        Source(_SCRIPT, "logger.info(logger_str)", 677, 677),
    ),
    apply=_listen,
)
