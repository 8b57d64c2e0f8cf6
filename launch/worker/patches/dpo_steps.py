"""Sends step events from open_instruct/dpo_tune_cache.py, whose log line has only loss and learning rate.

A handler on its logger sees the line of each logged step and reads, in the frame that logs it, the dictionary that the
trainer would send to wandb. The trainer does not count tokens with and without padding; they are added to its own
tracker, which it reduces over the ranks at each logged step anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .. import accelerator
from ..evidence import trainer_objects
from . import machine
from .logged_step import StepListener
from .patch import PatchContext, PatchInfo

_ID = "dpo_steps"
_TOTAL = "  Total optimization steps = "
_OWN_NAMES = {"training_step": "step", "train_loss": "loss", "learning_rate": "lr"}
_TOKENS, _PADDED = "launch/tokens", "launch/tokens_padded"


class DPOStepListener(StepListener):
    """Turns the trainer's log records into "total_steps" and "step" events."""

    def __init__(self, context: PatchContext, norm: accelerator.LastNorm) -> None:
        super().__init__(_ID, context.events, self.step)
        self._norm = norm

    def read(self, message: str) -> None:
        if message.startswith(_TOTAL):
            self._events.emit("total_steps", steps=int(message[len(_TOTAL) :]))

    def step(self, local: Mapping[str, Any]) -> None:
        fields = step_fields(local)
        norm = self._norm.value()
        if norm is not None:
            fields["grad_norm"] = norm
            local["metrics_to_log"]["grad_norm"] = norm  # the trainer sends it to its trackers after this log line
        fields |= machine.peak_memory()
        self._events.emit("step", **fields)


def step_fields(local: Mapping[str, Any]) -> dict[str, Any]:
    """Build the fields of a "step" event from the variables of the frame that logs it.

    `metrics_to_log` has upstream's names (dpo_tune_cache.py:644-674). `label_tokens` are the answer tokens that count
    in the loss; `tokens` and `tokens_padded` all tokens of the model's inputs, over all ranks since the previous logged
    step; `seconds` the time since then. Utilisation figures and rates are left out.
    """
    fields = {
        _OWN_NAMES.get(name, name): value
        for name, value in local["metrics_to_log"].items()
        if not name.startswith("perf/")
    }
    fields.update(label_tokens=local["total_tokens_step"], seconds=local["training_time"])
    means, arguments = local["global_metrics"], local["args"]
    # means over the ranks, the micro batches and the steps since the last one (dpo_tune_cache.py:617-624)
    passes = local["accelerator"].num_processes * arguments.gradient_accumulation_steps * arguments.logging_steps
    for name, event_name in ((_TOKENS, "tokens"), (_PADDED, "tokens_padded")):
        if name in means:
            fields[event_name] = round(means[name] * passes)
    return fields


def count_tokens(model: Any) -> None:
    """Add the tokens of every forward pass of the training loop to the loop's own `local_metrics`."""

    def count(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not module.training:
            return  # a reference pass
        tracker = next(
            (f.f_locals["local_metrics"] for f in trainer_objects.frames() if "local_metrics" in f.f_locals), None
        )
        ids, mask = named.get("input_ids"), named.get("attention_mask")
        if tracker is None or ids is None:
            return
        padded = ids.numel()
        tracker[_TOKENS] += padded if mask is None or mask.dim() != 2 else mask.sum()
        tracker[_PADDED] += padded

    trainer_objects.unwrap(model).register_forward_pre_hook(count, with_kwargs=True)


def _listen(context: PatchContext) -> None:
    norm = accelerator.follow_norm()
    accelerator.when_prepared(count_tokens)
    if context.events.rank == 0:
        logging.getLogger("__main__").addHandler(DPOStepListener(context, norm))


STEPS = PatchInfo(
    id=_ID,
    reason="dpo_tune_cache.py prints only loss and learning rate; this reads tokens and rewards where it logs a step",
    lines={
        "open_instruct/dpo_tune_cache.py": {
            73: "logger = logger_utils.setup_logger(__name__)",
            488: 'logger.info(f"  Total optimization steps = {args.max_train_steps}")',
            549: "local_metrics = utils.MetricsTracker(device=accelerator.device)",
            620: "global_metrics_tensor /= args.gradient_accumulation_steps * args.logging_steps",
            630: 'total_tokens_step = int(global_metrics["token_count"])',
            (644, 645): 'metrics_to_log = {"training_step": completed_steps,',
            662: 'logger_str = f"  Step: {completed_steps}, LR: ',
            677: "logger.info(logger_str)",
        }
    },
    apply=_listen,
)
