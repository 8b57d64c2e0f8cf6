"""Translates a file of axolotl, LLaMA-Factory or TRL into the overrides of the same training.

The trainers here are TRL's, whose loss is the mean over the tokens of a step, as in the other tools.
What the file does not set has the tool's default, not that of the stage. What has no counterpart is
named with what that changes; other_tool_files.yaml has both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from launch.config.other_tool_files import AXOLOTL, LLAMA_FACTORY, TRL
from launch.config.other_tools import explain_name
from launch.config.recipe_keys import KEYS
from launch.planning.other_tool_data import translate_data, translate_model
from launch.planning.other_tool_values import (
    Translation,
    as_number,
    as_whole,
    is_set,
    shorten,
)
from launch.upstream.pin.lock import locked_schema

FILE = Path(__file__).with_suffix(".yaml")
_NAMES = {AXOLOTL: "axolotl", LLAMA_FACTORY: "llama_factory", TRL: "trl"}
_WHOLE = ("epochs", "max_steps", "per_device_batch_size", "max_seq_length", "seed", "lora.rank")
# recipe keys with names of other tools that have a function of their own here
_APART = (
    "global_batch_size",
    "epochs",
    "warmup_ratio",
    "chat_template",
    "liger",
    "clip",
    "early_stop",
)
_OF_ADAPTER = "lora."
_DPO_LOSSES = {"sigmoid": "dpo", "dpo": "dpo", "sigmoid_norm": "dpo_norm", "dpo_norm": "dpo_norm"}


@cache
def _tables() -> tuple[dict[str, dict[str, Any]], list[tuple[re.Pattern[str], str]]]:
    """Return the tools' defaults, and the patterns of names without a counterpart."""
    from launch.config.yaml_nodes import load_yaml  # slow to import; only such a file needs it

    content = load_yaml(FILE.read_text(encoding="utf-8"))
    without = [(re.compile(pattern), change) for pattern, change in content["without"]]
    return content["defaults"], without


def translate_file(
    settings: Mapping[str, Any], tool: str, file: Path, ranks: int | None = None
) -> Translation:
    """Translate the settings of a file for `ranks` ranks, 1 where neither it nor the file says."""
    named = settings.get("num_processes")
    count = ranks or (named if isinstance(named, int) and named > 0 else 1)
    translation = Translation(tool, file, dict(settings), count)
    kind = _find_kind(translation)
    _translate_stage(translation, kind)
    translate_model(translation)
    translate_data(translation)
    _translate_batch(translation)
    _translate_numbers(translation, kind)
    _translate_schedule(translation)
    if kind == "dpo":
        _translate_preferences(translation)
    _translate_packing(translation, kind)
    _translate_rest(translation)
    return translation


def _find_kind(t: Translation) -> str:
    """Return what is trained: sft, dpo or rm; what launch has no such file for is missing."""
    stage = str(t.take("stage") or "") if t.tool == LLAMA_FACTORY else ""
    reinforced = str(t.take("rl", "rl_type") or "").lower()
    if t.tool == AXOLOTL and t.take("reward_model"):
        stage = "rm"
    is_dpo = t.tool == TRL and {"beta", "max_prompt_length", "loss_weights"} & t.settings.keys()
    loss = t.settings.get("loss_type") if t.tool == TRL else None
    if t.tool == TRL and {"reward_funcs", "num_generations"} & t.settings.keys():
        reinforced = "grpo"
    kind = stage or reinforced or ("dpo" if is_dpo else "sft")
    if loss is not None and str(loss) not in ("nll", "dft", "chunked_nll"):
        kind = "dpo" if kind == "sft" else kind
    if reinforced == "ipo":
        t.settings.setdefault("loss_type", "ipo")
        kind = "dpo"
    if kind == "grpo":
        t.missing.append(
            "a reward that launch can prove: `launch plan stage=rlvr recipe.verifier=...`"
        )
    elif kind not in ("sft", "dpo", "rm"):
        t.missing.append(f"a stage that trains {kind}: there are sft, dpo, rm and rlvr")
    return kind if kind in ("sft", "dpo", "rm") else "sft"


def _translate_stage(t: Translation, kind: str) -> None:
    """Choose stage and trainer, and whether an adapter is trained, in 4 bit or not."""
    adapter = t.take("adapter", "finetuning_type", "use_peft", "use_lora")
    if adapter is None and t.tool == LLAMA_FACTORY:
        adapter = "lora"  # its default (hparams/finetuning_args.py)
    name = str(adapter).lower()
    has_adapter = name in ("lora", "qlora", "true")
    if adapter and not has_adapter and name not in ("full", "false"):
        t.differences.append(
            f"{name}: launch trains all weights or a LoRA adapter, here all weights"
        )
    bits = str(t.take("quantization_bit") or "")
    in_four = bool(t.take("load_in_4bit")) or bits == "4" or name == "qlora"
    in_eight = bool(t.take("load_in_8bit")) or bits == "8"
    for detail in ("quantization_method", "bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "gptq"):
        t.take(detail)
    t.take("use_bnb_nested_quant", "double_quantization", "bnb_4bit_use_double_quant")
    if kind == "rm":
        t.overrides["stage"] = "rm"
    else:
        t.overrides["stage"] = f"lora_{kind}" if has_adapter else kind
        t.overrides["trainer"] = f"trl_{kind}"
    t.overrides["gpus"] = str(t.ranks)
    if has_adapter and kind != "rm":
        t.overrides["recipe.lora.rank"] = ""  # its place in the line; set by the numbers
        _translate_targets(t)
    if in_four and has_adapter:
        t.set("recipe.lora.quantize", "nf4")
    elif in_four or in_eight:
        text = "8 bit" if in_eight and not in_four else "4 bit without an adapter"
        instead = "bf16" if not has_adapter else "16 bit; recipe.lora.quantize=nf4 stores 4"
        t.differences.append(f"frozen weights in {text}: they are stored in {instead}")


def _translate_targets(t: Translation) -> None:
    """Set the layers that get an adapter."""
    targets = t.take("lora_target_modules", "lora_target")
    if t.take("lora_target_linear") or str(targets) in ("all", "all-linear", "['all-linear']"):
        targets = "all-linear"
    elif targets is None and t.tool == LLAMA_FACTORY:
        targets = "all-linear"  # its default
    elif targets is None:  # PEFT chooses by the model's type
        targets = ["q_proj", "v_proj"]
        names = "q_proj and v_proj, as PEFT does for Llama, Mistral and Qwen"
        t.differences.append(f"the file names no layers for the adapter: {names}")
    if isinstance(targets, str) and targets != "all-linear":
        targets = targets.replace(" ", "").split(",")
    t.set("recipe.lora.targets", targets)


def _translate_batch(t: Translation) -> None:
    """Multiply the micro batch, the accumulation and the ranks."""
    micro = t.take("micro_batch_size", "per_device_train_batch_size")
    micro = micro or _default(t, "per_device_batch_size", "per_device_train_batch_size")
    accumulation = t.take("gradient_accumulation_steps") or _default(t, "accumulation")
    t.take("num_processes", "num_machines")
    sizes = [as_whole(micro), as_whole(accumulation)]
    if None in sizes:
        t.missing.append(f"a number for the batch: it is {micro} x {accumulation}")
        return
    per_device, steps = (size or 1 for size in sizes)
    total = per_device * steps * t.ranks
    t.set("recipe.per_device_batch_size", per_device)
    t.set("recipe.global_batch_size", total)
    ranks = "1 GPU" if t.ranks == 1 else f"{t.ranks} GPUs"
    t.batch = f"global batch {per_device} x {steps} x {ranks} = {total}"


def _translate_numbers(t: Translation, kind: str) -> None:
    """Set the keys whose value is the same in all tools, with the tool's default without one."""
    trains_adapter = "recipe.lora.rank" in t.overrides
    for key, row in KEYS.items():
        names = row.names_of(_NAMES[t.tool])
        if key == "max_seq_length":
            names = (*names, "max_seq_length")
        if not names or key in _APART or key == "per_device_batch_size":
            continue
        value = t.take(*names)
        if key.startswith(_OF_ADAPTER) and not trains_adapter:
            continue
        if key == "gradient_checkpointing" and value is not None:
            value = value in (True, "true", "unsloth", "offload")
        if value is None:
            value = _default(t, key, *names, trainer=f"trl_{kind}" if kind != "rm" else "trl_sft")
        if key in _WHOLE and value is not None:
            value = as_whole(value) if as_whole(value) is not None else value
        is_off = key == "max_steps" and isinstance(value, int) and value <= 0
        if value is not None and not is_off:
            t.set(f"recipe.{key}", value)
    if t.overrides.get("recipe.lora.rank") == "":
        t.set("recipe.lora.rank", 8 if t.tool == LLAMA_FACTORY else 16)
    if t.take("disable_gradient_checkpointing"):
        t.set("recipe.gradient_checkpointing", False)
    if "recipe.learning_rate" not in t.overrides:
        t.missing.append("learning_rate, which axolotl has no default for")
    evaluates = "data.validation" in t.overrides
    if not evaluates:
        t.overrides.pop("recipe.eval_steps", None)
    _translate_optimizer(t)


def _translate_optimizer(t: Translation) -> None:
    optimizer = str(t.take("optimizer", "optim") or "adamw_torch_fused")
    choices = locked_schema("trl_sft").fields["optim"].choices or ()
    if optimizer == "adamw_torch_fused" or (choices and optimizer not in choices):
        if optimizer != "adamw_torch_fused":
            t.differences.append(f"the optimizer {optimizer}: AdamW is used")
        return
    t.set("flags.optim", optimizer)


def _translate_schedule(t: Translation) -> None:
    """Set the number of passes, and the warm-up in steps or as a share of them."""
    epochs = t.take("num_epochs", "num_train_epochs")
    epochs = epochs if epochs is not None else _default(t, "epochs", "num_train_epochs")
    whole = as_whole(epochs)
    if whole is not None:
        t.set("recipe.epochs", whole)
    elif isinstance(epochs, int | float):
        t.set("recipe.epochs", math.ceil(epochs))
        t.differences.append(
            f"{epochs:g} passes over the data: whole passes are trained, {math.ceil(epochs)}"
        )
    steps = t.take("warmup_steps")
    ratio = t.take("warmup_ratio")
    if steps is not None and as_number(steps) >= 1:
        t.set("flags.warmup_steps", as_whole(steps))
        return
    if ratio is None:
        ratio = steps if steps is not None else _default(t, "warmup_ratio", "warmup_steps")
    t.set("recipe.warmup_ratio", float(ratio or 0))


def _translate_preferences(t: Translation) -> None:
    beta = t.take("rl_beta", "beta", "pref_beta", "dpo_beta")
    t.set("recipe.beta", beta if beta is not None else 0.1)
    loss = t.take("loss_type", "pref_loss", "dpo_loss_type") or "sigmoid"
    losses = loss if isinstance(loss, list) else [str(loss)]
    t.take("max_prompt_length")
    if len(losses) == 1 and losses[0] in _DPO_LOSSES:
        t.set("recipe.loss", _DPO_LOSSES[losses[0]])
    else:
        t.set("flags.loss_type", losses)


def _translate_packing(t: Translation, kind: str) -> None:
    packs = t.take("sample_packing", "packing", "neat_packing") in (True, "true", "auto")
    flattens = t.take("batch_flattening", "padding_free") in (True, "true", "auto")
    t.take("packing_strategy", "eval_packing")
    if kind != "sft":
        if packs or flattens:
            t.differences.append("packing: pairs are padded here, which changes speed alone")
        return
    packing = "flatten" if flattens else "none"
    t.set("recipe.packing", "bins" if packs else packing)
    if packs and t.tool == LLAMA_FACTORY:
        t.differences.append(
            "packing: the rows of a bin do not see each other here (neat_packing: true)"
        )


def _translate_rest(t: Translation) -> None:
    """Set what has an exact counterpart, then a flag of the trainer; name everything else."""
    _translate_tracking(t)
    trainer = t.overrides.get("trainer")
    fields = locked_schema(trainer).fields if trainer else {}
    _, without = _tables()
    for name, value in list(t.settings.items()):
        if not is_set(value) or value is False or value in ("none", "no"):
            continue
        change = next((change for pattern, change in without if pattern.fullmatch(name)), None)
        cure = explain_name(name, str(value).lower() if isinstance(value, bool) else str(value))
        sets = cure.ways[0].sets if cure and cure.ways and cure.ways[0].is_exact else ()
        keys = [item.partition("=")[0] for item in sets]
        is_known = sets and not any(key.startswith("flags.") for key in keys)
        if is_known and change is None:
            for item in sets:
                key, _, setting = item.partition("=")
                t.overrides.setdefault(key, setting)
        elif name in fields and not isinstance(value, dict) and change != "":
            t.set(f"flags.{name}", value)
        elif change is None:
            t.differences.append(f"{name}={shorten(value)}: launch has no such setting")
        elif change:
            t.differences.append(f"{name}: {change}")
    sharding = t.overrides.get("parallel")
    if sharding and t.ranks == 1:
        del t.overrides["parallel"]
        t.differences.append(
            f"sharding: 1 GPU has nothing to shard; with gpus=N set parallel={sharding}"
        )


def _translate_tracking(t: Translation) -> None:
    """Set tracking and its project; a project alone is one of W&B in axolotl."""
    reports = t.take("report_to")
    reports = reports[0] if isinstance(reports, list) and reports else reports
    project = t.take("wandb_project", "tracker_project_name")
    if str(reports) in ("wandb", "tensorboard"):
        t.set("tracking", reports)
    elif project:
        t.set("tracking", "wandb")
    elif t.take("use_tensorboard"):
        t.set("tracking", "tensorboard")
    if project:
        t.set("tracking_project", project)
        entity = t.take("wandb_entity")
        if entity:
            t.set("tracking_entity", entity)
    for name in ("output_dir", "run_name", "wandb_name"):
        t.take(name)  # a run's folder and name are launch's own
    save = t.overrides.get("recipe.checkpoint_steps")
    steps = t.take("save_steps")
    if save is None and as_whole(steps):
        t.set("recipe.checkpoint_steps", as_whole(steps))


def _default(t: Translation, key: str, *flags: str, trainer: str | None = None) -> Any:
    """Return what the tool takes where its file sets nothing; of TRL, by the locked parser."""
    defaults, _ = _tables()
    if key in defaults[t.tool] or t.tool != TRL:
        return defaults[t.tool].get(key)
    fields = locked_schema(trainer or t.overrides.get("trainer") or "trl_sft").fields
    return next((fields[flag].default for flag in flags if flag in fields), None)
