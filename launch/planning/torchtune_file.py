"""Reads a file of torchtune, whose components are classes, as settings with the names of TRL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.planning.typed_line import hub_id_of

_COMPONENT = "_component_"
_NAMES = {
    "batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "epochs": "num_train_epochs",
    "seed": "seed",
    "enable_activation_checkpointing": "gradient_checkpointing",
    "clip_grad_norm": "max_grad_norm",
    "optimizer.lr": "learning_rate",
    "optimizer.weight_decay": "weight_decay",
    "lr_scheduler.num_warmup_steps": "warmup_steps",
    "tokenizer.max_seq_len": "max_length",
    "dataset.packed": "packing",
    "dataset.split": "dataset_train_split",
    "model.lora_rank": "lora_r",
    "model.lora_alpha": "lora_alpha",
    "model.lora_dropout": "lora_dropout",
}
_SOURCES = ("dataset.data_files", "dataset.source")


def flatten_torchtune(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of a file of torchtune; None for any other file."""
    nodes = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    if not any(_COMPONENT in node for node in nodes.values()):
        return None
    values = {key: value for key, value in settings.items() if key not in nodes}
    for name, node in nodes.items():
        values |= {f"{name}.{key}": value for key, value in node.items()}
    found = {to: values[name] for name, to in _NAMES.items() if values.get(name) is not None}
    data = next((values[name] for name in _SOURCES if values.get(name)), None)
    if data is not None:
        found["dataset_name"] = data
    folder = values.get("checkpointer.checkpoint_dir")
    if folder is None and values.get("tokenizer.path"):
        folder = str(Path(str(values["tokenizer.path"])).parent)
    if folder is not None:
        is_here = Path(str(folder)).is_dir()
        hub_id = None if is_here else hub_id_of(Path(str(folder)).name)
        found["model_name_or_path"] = hub_id or folder
    if values.get("dtype") in ("bf16", "fp32"):
        found["bf16"] = values["dtype"] == "bf16"
    if str(values.get("metric_logger._component_")).endswith("WandBLogger"):
        found["report_to"] = "wandb"
    if "dpo" in str(values.get("loss._component_")).lower():
        found["loss_type"] = "sigmoid"
    return found
