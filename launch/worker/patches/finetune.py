"""Patches for finetune.py (a local model, steps) and reward_modeling.py (models, steps).

finetune.py calls `accelerator.log` only where a tracker is on. A handler on its logger notices the
line of each logged step and takes, from the frame that logs it, the dictionary that the trainer
would send to its trackers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from .. import hooks
from ..channel import EventWriter
from ..hooks import replaces
from .patch import PatchContext, PatchInfo
from .shared import StepListener, listen, when_about_to_train


def _accept_local_model(_: PatchContext) -> None:
    import huggingface_hub

    @replaces(huggingface_hub, "snapshot_download")
    def download_unless_local(download: Any, repo_id: str, *arguments: Any, **options: Any) -> Any:
        # from_pretrained uses the same test for a local model.
        return repo_id if os.path.isdir(repo_id) else download(repo_id, *arguments, **options)  # noqa: PTH112


LOCAL_MODEL = PatchInfo(
    id="finetune_local_model",
    reason="skips finetune.py's download of the model if it is a local folder, on whose name the "
    "download fails",
    lines={
        "open_instruct/finetune.py": {
            41: "from huggingface_hub import HfApi, snapshot_download",
            527: "snapshot_download(model_path, revision=args.model_revision)",
        }
    },
    apply=_accept_local_model,
)


_ID = "finetune_steps"
# {upstream's name of a metric: its name in a step event}
_EVENT_NAMES = {
    "train_loss": "loss",
    "learning_rate": "lr",
    "total_tokens": "total_tokens",
    "total_tokens_including_padding": "total_tokens_including_padding",
    "allocated_mem_GiB": "memory_gib",
    "reserved_mem_GiB": "memory_reserved_gib",
    "grad_norm": "grad_norm",
    # The patch balanced_batches adds this metric.
    "imbalance": "imbalance",
    "imbalance_upstream": "imbalance_upstream",
}
_MEMORY = ("memory_gib", "memory_reserved_gib")


class FinetuneSteps:
    """Sends each step that finetune.py logs, with the norm that it measures for clipping."""

    def __init__(self, events: EventWriter, norm: hooks.LastNorm) -> None:
        self._events = events
        self._norm = norm
        self._logged_at: float | None = None  # the last logged step, by time.perf_counter

    def send(self, local: Mapping[str, Any]) -> None:
        """Send the step that the frame with these variables logs."""
        # The trainer sends these metrics to its trackers after the log line.
        self._norm.add_to(local["metrics_to_log"])
        fields = step_fields(local)
        now = time.perf_counter()
        before = local["start_time"] if self._logged_at is None else self._logged_at
        self._logged_at = now
        self._events.emit("step", **fields, seconds=round(now - before, 6))


def step_fields(local: Mapping[str, Any]) -> dict[str, Any]:
    """Build the fields of a "step" event from the variables of the frame that logs it.

    `total_tokens` and `total_tokens_including_padding` count since the start of the process, over
    all ranks; memory is the peak of this rank, and left out on a CPU.
    """
    fields: dict[str, Any] = {"step": local["completed_steps"]}
    metrics = local["metrics_to_log"]
    for name, event_name in _EVENT_NAMES.items():
        if name in metrics:
            fields[event_name] = metrics[name]
    for name in _MEMORY:
        if not fields.get(name):
            fields.pop(name, None)
    if local["args"].load_balancing_loss:  # the metrics get this loss after the log line
        fields["aux_loss"] = local["avg_aux_loss"]
    return fields


def _send_steps(context: PatchContext) -> None:
    events = context.events
    norm = hooks.follow_norm()

    def begin(args: Any) -> None:
        events.begin("training")
        if events.rank == 0:
            events.emit("total_steps", steps=args.max_train_steps)

    when_about_to_train(begin)
    if events.rank == 0:
        steps = FinetuneSteps(events, norm)
        listen(StepListener(_ID, events, steps.send))


STEPS = PatchInfo(
    id=_ID,
    reason="reports finetune.py's steps, and adds to its metrics the gradient norm, which it "
    "measures for clipping and does not log",
    lines={
        "open_instruct/finetune.py": {
            73: "logger = get_logger(__name__)",
            744: "last_checkpoint_path = get_last_checkpoint_path(args)",
            776: "start_time = time.perf_counter()",
            848: "accelerator.clip_grad_norm_(model.parameters(), args.clip_grad_norm)",
            (888, 891): 'metrics_to_log = { "learning_rate": lr_scheduler.get_last_lr()[0], '
            '"total_tokens": total_tokens, '
            '"total_tokens_including_padding": total_tokens_including_padding,',
            903: '"reserved_mem_GiB": torch.cuda.max_memory_reserved(',
            904: '"allocated_mem_GiB": torch.cuda.max_memory_allocated(',
            928: 'metrics_to_log["train_loss"] = avg_loss',
            938: "avg_aux_loss = (",
            (948, 949): 'logger.info( f"  Step: {completed_steps}, LR: ',
        }
    },
    apply=_send_steps,
)


def _allow_registering_again(_: PatchContext) -> None:
    from transformers import AutoModelForSequenceClassification

    @replaces(AutoModelForSequenceClassification, "register")
    def register_again(
        register: Any, config_class: Any, model_class: Any, exist_ok: bool = False
    ) -> None:
        register(config_class, model_class, exist_ok=True)


REGISTERED_MODELS = PatchInfo(
    id="registered_models",
    reason="lets open-instruct register its Olmo2ForSequenceClassification, which transformers "
    "refuses because it has a class of that name",
    lines={
        "open_instruct/reward_modeling.py": {
            166: "AutoModelForSequenceClassification.register(olmo_adapter.Olmo2Config, "
            "olmo_adapter.Olmo2ForSequenceClassification)"
        }
    },
    apply=_allow_registering_again,
)


# {upstream's name of a metric: its name in a step event}
_REWARD_EVENT_NAMES = {
    "train/rm/loss": "loss",
    "train/rm/lr": "lr",
    "train/rm/accuracy": "rewards/accuracy",
    "train/rm/chosen_rewards": "rewards/chosen",
    "train/rm/rejected_rewards": "rewards/rejected",
    "train/rm/reward_margin": "rewards/margin",
    "epoch": "epoch",
    "episode": "episode",
}


def reward_fields(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Build the fields of a "step" event, but its number, from what reward_modeling.py prints."""
    return {
        event_name: metrics[name]
        for name, event_name in _REWARD_EVENT_NAMES.items()
        if name in metrics
    }


def _send_reward_steps(context: PatchContext) -> None:
    from open_instruct import model_utils

    steps = 0

    @replaces(model_utils, "print_rich_single_line_metrics")
    def send_and_print(show: Any, metrics: Mapping[str, Any]) -> Any:
        nonlocal steps
        if "train/rm/loss" in metrics:  # the metrics of an evaluation have no such loss
            steps += 1
            context.events.emit("step", step=steps, **reward_fields(metrics))
        return show(metrics)


REWARD_STEPS = PatchInfo(
    id="reward_steps",
    reason="reports reward_modeling.py's steps, which it prints without a number and rounded; "
    "changes nothing",
    lines={
        "open_instruct/reward_modeling.py": {
            (378, 381): 'metrics = { "episode": episode, "epoch": episode / len(train_dataset), '
            '"train/rm/accuracy": global_metrics[0],',
            (388, 389): "if accelerator.is_main_process: print_rich_single_line_metrics(metrics)",
        },
        "open_instruct/model_utils.py": {753: "def print_rich_single_line_metrics(metrics):"},
    },
    apply=_send_reward_steps,
)
