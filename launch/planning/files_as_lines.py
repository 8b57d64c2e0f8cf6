"""Converts the nested files of torchtune, verl and accelerate into words of a line, `NAME=VALUE`.

A setting that such a file omits is treated as one that a line omits: the tool's own recipes set it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.config.other_tool_files import TORCHTUNE
from launch.config.typed_values import as_whole
from launch.config.yaml_nodes import NotYamlError, load_yaml

_COMPONENT = "_component_"
# torchtune's names, each with TRL's
_OF_TORCHTUNE = {
    "batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "epochs": "num_train_epochs",
    "max_steps_per_epoch": "max_steps",
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
_SEPARATE_MODELS = ("critic", "reward_model", "reward", "ref")


def words_of_file(settings: Mapping[str, Any], tool: str) -> list[str]:
    """Return the file of a tool with nested settings as words of a line."""
    named = _name_torchtune(settings) if tool == TORCHTUNE else dict(flatten(settings))
    return [f"{name}={_as_word(value)}" for name, value in named.items() if value is not None]


def words_of_accelerate(path: Path) -> list[str] | None:
    """Return a file of accelerate as words of a line; None for any other file.

    Its number of processes is that of all machines.
    """
    try:
        settings = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, NotYamlError):
        return None
    if not isinstance(settings, dict) or "distributed_type" not in settings:
        return None
    values = dict(flatten(settings))
    machines = as_whole(values.get("num_machines")) or 1
    processes = as_whole(values.get("num_processes")) or 1
    words = [f"gpus={max(1, processes // machines)}"]
    if machines > 1:
        words.append(f"nodes={machines}")
    kind = str(values.get("distributed_type")).upper()
    if kind == "FSDP":
        words.append("fsdp=full_shard")
    if kind == "DEEPSPEED":
        words.append(f"zero_stage={values.get('deepspeed_config.zero_stage') or 2}")
        device = values.get("deepspeed_config.offload_optimizer_device")
        if device not in (None, "none"):
            words.append(f"offload_optimizer_device={device}")
    if values.get("mixed_precision") in ("bf16", "fp16"):
        words.append(f"mixed_precision={values['mixed_precision']}")
    return words


def flatten(settings: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its dotted name: `{trainer: {nnodes: 2}}` has `trainer.nnodes`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{group}{key}.")
        else:
            yield f"{group}{key}", value


def is_of_separate_model(name: str) -> bool:
    """Return whether a dotted name is about another model than the trained one, such as a
    reference.
    """
    return name.removeprefix("actor_rollout_ref.").startswith(
        tuple(f"{model}." for model in _SEPARATE_MODELS)
    )


def _as_word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_as_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name_torchtune(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a torchtune file by TRL's names. The file's components are classes."""
    values = dict(flatten(settings))
    named = {to: values[name] for name, to in _OF_TORCHTUNE.items() if name in values}
    data = next((values[name] for name in _SOURCES if values.get(name)), None)
    if data is not None:
        named["dataset_name"] = data
    folder = values.get("checkpointer.checkpoint_dir")
    if folder is None and values.get("tokenizer.path"):
        folder = str(Path(str(values["tokenizer.path"])).parent)
    if folder is not None:
        named["model_name_or_path"] = folder
    if values.get("dtype") in ("bf16", "fp32"):
        named["bf16"] = values["dtype"] == "bf16"
    if str(values.get(f"metric_logger.{_COMPONENT}")).endswith("WandBLogger"):
        named["report_to"] = "wandb"
    if "dpo" in str(values.get(f"loss.{_COMPONENT}")).lower():
        named["loss_type"] = "sigmoid"
    return named
