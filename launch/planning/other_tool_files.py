"""Translates a file of axolotl, LLaMA-Factory or TRL into the overrides of the same training.

The chosen trainers are TRL's, whose loss is the mean over the tokens of a step, as in the other
tools. A setting that the file omits gets the tool's default, not that of the stage. A setting
without an equivalent is named, with the effect of leaving it out; launch/config/other_tools.yaml
has the list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.config.compose import compose_once
from launch.config.kinds import KINDS, Kind
from launch.config.line import CommandLine
from launch.config.other_tool_files import AXOLOTL, LINE, LLAMA_FACTORY, TRL_TOOL
from launch.config.other_tools import OTHER_TOOLS, explain_difference, explain_name
from launch.config.recipe_key import RecipeKey
from launch.config.recipe_keys import KEYS, recipe_mapping
from launch.config.schema import Tracking
from launch.config.typed_values import as_whole, is_sweep
from launch.errors import UserError, actions_of
from launch.planning.other_tool_batch import recipe_of_stage, translate_batch
from launch.planning.other_tool_data import find_local_rows, translate_data, translate_model
from launch.planning.other_tool_defaults import default_of, names_without_counterpart
from launch.planning.other_tool_kind import find_kind
from launch.planning.other_tool_reward import translate_reward
from launch.planning.other_tool_sharding import translate_sharding
from launch.planning.other_tool_values import (
    Translation,
    as_number,
    as_override,
    has_content,
    shorten_value,
)
from launch.upstream.pin.lock import locked_schema
from launch.worker.finding import Fix

_NAMES = {AXOLOTL: "axolotl", LLAMA_FACTORY: "llama_factory", TRL_TOOL: "trl"}
_WHOLE = ("epochs", "max_steps", "per_device_batch_size", "max_seq_length", "seed", "lora.rank")
# Recipe keys with names in other tools that one of the functions below translates.
_APART = (
    "global_batch_size",
    "epochs",
    "warmup_ratio",
    "chat_template",
    "liger",
    "clip",
    "early_stop",
    "optimizer",
)
_OF_ADAPTER = "lora."
_PER_EPOCH = {"evals_per_epoch": "eval_steps", "saves_per_epoch": "checkpoint_steps"}
# keys whose value is another word in each tool
_IN_WORDS = (
    *("packing", "precision", "attention", "generation", "verifier", "beta", "loss", "kl_beta"),
    *("lora.targets", "lora.quantize", "loss_averaging", "checkpoint_steps"),
)
_OF_BF16 = ("bf16", "bf16_enabled")
_HALF = frozenset(("fp16", "float16", "fp16_enabled"))
_OFF_BY_ABSENCE = ("deepspeed", "fsdp", "use_vllm", "load_in_8bit", "load_in_4bit", "resume")
_REMOVAL = "remove it: "  # how the answer to a name begins that has no key here
# Settings that concern the other tool in a file, but this run on a line.
_SAME_IN_A_LINE = (
    "fp16",
    "float16",
    "hub_model_id",
    "attn_implementation",
    "flash_attention",
    "flash_attn",
    "trust_remote_code",
    "torch_dtype",
    "dtype",
    "fsdp",
    "resume_mode",
)
# Flags of a trainer that change no number of the training, and are kept on a line.
_KEPT = re.compile(
    r"tf32|ddp_timeout|timeout|dataloader_.*|torch_compile.*|hub_strategy|hub_private_repo"
    r"|gradient_checkpointing_kwargs|save_total_limit|keep_last_n_checkpoints|group_by_length"
)
_NO_LENGTH = (
    "recipe.max_seq_length=N, a number: samples are always cut there, at the most at the end of the "
    "model's context"
)
_OF_LORA = re.compile(
    r"lora_.+|peft_.+|target_modules|rank|r|load_in_[48]bit|qlora|use_qlora|quantization_bit|use_dora"
    r"|use_rslora|modules_to_save|additional_target"
)
_DPO_LOSSES = {"sigmoid": "dpo", "dpo": "dpo", "sigmoid_norm": "dpo_norm", "dpo_norm": "dpo_norm"}


def translate_file(
    settings: Mapping[str, Any],
    tool: str,
    file: Path,
    ranks: int | None = None,
    method: str = "",
    *,
    given: Mapping[str, str] | None = None,
) -> Translation:
    """Translate the settings of a file or a line for `ranks` ranks, 1 where neither it nor the file
    says. `method` is what a line says to train, a stage or another method's name; `given` are the
    line's own overrides.
    """
    if ranks is None:
        named = settings.get("num_processes")
        ranks = named if isinstance(named, int) and named > 0 else 1
    translation = Translation(tool, file, dict(settings), ranks, given=dict(given or {}))
    find_local_rows(translation)
    kind = find_kind(translation, method)
    _translate_stage(translation, kind)
    translate_model(translation)
    translate_data(translation)
    translate_batch(translation, kind)
    _translate_numbers(translation, kind)
    _translate_schedule(translation)
    if kind in ("dpo", "kto"):
        _translate_preferences(translation, kind)
    if kind == "rlvr":
        translate_reward(translation)
    _translate_packing(translation, kind)
    translate_sharding(translation)
    _translate_epochs(translation)
    _translate_rest(translation)
    return translation


def names_in_tool(settings: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Return settings under the tool's names for the keys of the recipe, from any tool's names."""
    if tool not in _NAMES:
        return dict(settings)
    names: dict[str, str] = {}
    for key, row in KEYS.items():
        theirs = row.names_of(_NAMES[tool])
        every = [name for other in (*OTHER_TOOLS, "others") for name in row.names_of(other)]
        if theirs:
            names |= dict.fromkeys((*every, key.rpartition(".")[2]), theirs[0])
    return {names.get(name, name): value for name, value in settings.items()}


def _translate_stage(t: Translation, kind: str) -> None:
    """Choose stage and trainer, and whether an adapter is trained, in 4 bit or not."""
    adapter = t.take("adapter", "finetuning_type", "use_peft", "use_lora", "lora", "peft")
    if adapter is None and t.tool == LLAMA_FACTORY:
        adapter = "lora"  # its default (hparams/finetuning_args.py)
    if (
        adapter is None
        and t.tool == LINE
        and any(_OF_LORA.fullmatch(name) for name in _given_on(t))
    ):
        adapter = "lora"
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
        t.overrides["trainer"] = str(KINDS[Kind(kind)].trainer)
    if t.tool != LINE:
        t.overrides["gpus"] = str(t.ranks)
    if has_adapter and kind != "rm":
        t.overrides["recipe.lora.rank"] = ""  # its place in the line; set by the numbers
        _translate_targets(t)
        _translate_kind(t)
    if in_eight and has_adapter and t.tool == LINE and not in_four:
        t.differences.append("frozen weights in 8 bit: they are stored in 4 here")
        in_four = True
    if in_four and has_adapter:
        t.set("recipe.lora.quantize", "nf4")
    elif in_four or in_eight:
        text = "8 bit" if in_eight and not in_four else "4 bit without an adapter"
        instead = "bf16" if not has_adapter else "16 bit; recipe.lora.quantize=nf4 stores 4"
        t.differences.append(f"frozen weights in {text}: they are stored in {instead}")


def _given_on(t: Translation) -> list[str]:
    """Return the names of the settings that are not turned off."""
    off = (False, None, "none", "None", "no", "null")
    return [name for name, value in t.settings.items() if value not in off]


def _translate_targets(t: Translation) -> None:
    """Set the layers that get an adapter."""
    targets = t.take("lora_target_modules", "lora_target", "target_modules")
    if targets is None and t.tool == LINE:
        return
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


def _translate_kind(t: Translation) -> None:
    """Set DoRA, rsLoRA, and the modules that are trained beside the adapter."""
    for key in ("dora", "rslora"):
        if t.take(f"use_{key}", f"peft_use_{key}"):
            t.set(f"recipe.lora.{key}", True)
    modules = t.take("lora_modules_to_save", "additional_target", "modules_to_save")
    if isinstance(modules, str):
        modules = modules.replace(" ", "").split(",")
    if modules:
        t.set("recipe.lora.modules_to_save", modules)


def _names_of_key(t: Translation, key: str, row: RecipeKey) -> tuple[str, ...]:
    """Return the tool's names of a recipe key; for a line, all tools' names and launch's."""
    if t.tool != LINE:
        names = row.names_of(_NAMES[t.tool])
        return (*names, "max_seq_length") if key == "max_seq_length" else names
    if key in _IN_WORDS:
        return row.names_of("others")
    all_names = [name for tool in (*OTHER_TOOLS, "others") for name in row.names_of(tool)]
    own = key.rpartition(".")[2]
    return tuple(dict.fromkeys((*all_names, key.replace(".", "_"), own)))


def _translate_numbers(t: Translation, kind: str) -> None:
    """Set the keys whose value is the same in all tools. A key that the file omits gets the tool's
    default.
    """
    trains_adapter = "recipe.lora.rank" in t.overrides
    for key, row in KEYS.items():
        names = _names_of_key(t, key, row)
        is_of_others = kind == "rlvr" and t.tool != LINE and key == "max_seq_length"
        if not names or key in _APART or key == "per_device_batch_size" or is_of_others:
            continue
        names_given = [name for name in names if name in t.settings]
        value = t.take(*names)
        if key.startswith(_OF_ADAPTER) and not trains_adapter:
            continue
        if key == "gradient_checkpointing" and value is not None:
            value = value in (True, "true", "unsloth", "offload")
        if value is None:
            value = default_of(t, key, *names, trainer=KINDS[Kind(kind)].trainer or "trl_sft")
        if key == "lora.alpha" and isinstance(value, str):
            value = _times_rank(t, value)
        if key in _WHOLE and value is not None:
            value = as_whole(value) if as_whole(value) is not None else value
        if key == "max_seq_length" and value in ("None", "none", "unlimited"):
            t.missing.append(f"{_NO_LENGTH} ({', '.join(names_given)}={value})")
            value = None
        is_off = key == "max_steps" and isinstance(value, int) and value <= 0
        if value is not None and not is_off:
            t.set(f"recipe.{key}", value)
    _translate_best(t)
    if t.overrides.get("recipe.lora.rank") == "":
        t.set("recipe.lora.rank", 8 if t.tool == LLAMA_FACTORY else 16)
    if t.take("disable_gradient_checkpointing"):
        t.set("recipe.gradient_checkpointing", False)
    if "recipe.learning_rate" not in t.overrides and t.tool != LINE:
        t.missing.append("learning_rate, which axolotl has no default for")
    evaluates = "data.validation" in t.overrides
    _translate_evaluation(t, evaluates=evaluates)
    _translate_optimizer(t)


def _times_rank(t: Translation, text: str) -> Any:
    """Return the alpha that is so many times the rank: `2r`, `2x`."""
    times = re.fullmatch(r"(\d+(?:\.\d+)?)\s*\*?\s*(?:x|r|rank)", text)
    if times is None:
        return text
    rank = as_whole(t.given.get("recipe.lora.rank") or t.overrides["recipe.lora.rank"])
    rank = rank or recipe_of_stage(t).lora.rank or 16
    t.differences.append(f"alpha {text}: {times[1]} times the rank of {rank}")
    return int(float(times[1]) * rank)


def _translate_best(t: Translation) -> None:
    """Evaluate as often as a checkpoint is written, where the best one becomes the model."""
    if t.tool != LINE or t.settings.get("load_best_model_at_end") not in (True, "true"):
        return
    evaluated = as_whole(t.overrides.get("recipe.eval_steps"))
    saved = as_whole(t.settings.get("save_steps")) or recipe_of_stage(t).checkpoint_steps
    steps = evaluated or saved or 100
    t.take("save_steps")
    t.set("recipe.eval_steps", steps)
    t.set("recipe.checkpoint_steps", steps)
    t.differences.append(
        f"load_best_model_at_end: evaluations (eval_steps) and checkpoints (save_steps) come every "
        f"{steps} steps, so that the best one is there"
    )


def _translate_evaluation(t: Translation, *, evaluates: bool) -> None:
    """Hold rows out where a line evaluates; name what a file sets without rows to evaluate, and the
    strategy that no number of steps says.
    """
    strategy = t.take("eval_strategy", "evaluation_strategy")
    steps = t.overrides.get("recipe.eval_steps")
    wants_evaluation = strategy not in (None, "no", False)
    if strategy == "epoch" and steps is None and (evaluates or t.tool == LINE):
        t.settings.setdefault("evals_per_epoch", 1)
    if t.tool == LINE and not evaluates and (steps is not None or wants_evaluation):
        t.set("data.validation", 0.05)
        t.differences.append("the evaluation needs rows: data.validation=0.05 holds 5% of them out")
    elif not evaluates and (steps is not None or wants_evaluation):
        t.overrides.pop("recipe.eval_steps", None)
        named = [f"eval_strategy={strategy}"] if wants_evaluation else []
        named += [f"eval_steps={steps}"] if steps is not None else []
        t.differences.append(
            f"{', '.join(named)}: there are no rows to evaluate; data.validation=0.05 holds 5% out"
            f"{f', recipe.eval_steps={steps} evaluates them' if steps is not None else ''}"
        )


def _translate_epochs(t: Translation) -> None:
    """Count evaluations and checkpoints of an epoch in steps, where the rows of the data are here."""
    if t.take("save_strategy") == "epoch":
        t.settings.setdefault("saves_per_epoch", 1)
    for name, key in _PER_EPOCH.items():
        number = as_number(t.settings.get(name))
        batch = as_whole(t.overrides.get("recipe.global_batch_size"))
        if number <= 0 or f"recipe.{key}" in t.overrides:
            continue
        if key == "eval_steps" and "data.validation" not in t.overrides:
            continue
        t.take(name)
        if t.rows is None or batch is None:
            t.differences.append(f"{name}={number:g}: set recipe.{key}, a number of steps")
            continue
        held_out = as_number(t.overrides.get("data.validation"))
        steps = math.ceil(t.rows.count * (1 - min(held_out, 1)) / batch)
        t.set(f"recipe.{key}", max(1, math.floor(steps / number)))
        t.differences.append(f"{name}={number:g}: an epoch has {steps} steps")


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
    epochs = t.take(*_names_of_key(t, "epochs", KEYS["epochs"]), "num_epochs", "num_train_epochs")
    epochs = epochs if epochs is not None else default_of(t, "epochs", "num_train_epochs")
    whole = as_whole(epochs)
    if whole is not None or is_sweep(epochs):
        t.set("recipe.epochs", epochs if whole is None else whole)
        is_unlimited = "recipe.max_steps" not in t.overrides
        if t.overrides["stage"].endswith("rlvr") and is_unlimited:
            t.set("recipe.max_steps", None)
    elif isinstance(epochs, str):
        t.set("recipe.epochs", epochs)
    elif isinstance(epochs, int | float):
        t.set("recipe.epochs", math.ceil(epochs))
        t.differences.append(
            f"{epochs:g} passes over the data: whole passes are trained, {math.ceil(epochs)}"
        )
    steps = t.take("warmup_steps", "num_warmup_steps")
    ratio = t.take("warmup_ratio", "warmup")
    if steps is None and as_number(ratio) >= 1:  # a share is below 1
        steps = ratio
        ratio = None
    if steps is not None and as_number(steps) >= 1:
        total = as_whole(t.overrides.get("recipe.max_steps")) or 0
        if total > as_number(steps):
            t.set("recipe.warmup_ratio", round(as_number(steps) / total, 6))
        else:
            t.set("flags.warmup_steps", as_whole(steps))
        return
    if ratio is None and steps is None and t.tool == LINE:
        return
    if ratio is None:
        ratio = steps if steps is not None else default_of(t, "warmup_ratio", "warmup_steps")
    t.set("recipe.warmup_ratio", as_number(ratio))


def _translate_preferences(t: Translation, kind: str) -> None:
    beta = t.take("rl_beta", "beta", "pref_beta", "dpo_beta")
    loss = t.take("loss_type", "pref_loss", "dpo_loss_type", "loss")
    if beta is None and loss is None and t.tool == LINE:
        return
    if beta is not None or t.tool != LINE:
        t.set("recipe.beta", beta if beta is not None else 0.1)
    t.take("max_prompt_length")
    if kind == "kto":
        if loss is not None and loss != "kto":
            t.set("recipe.loss", loss)
        return
    loss = loss or "sigmoid"
    losses = loss if isinstance(loss, list) else [str(loss)]
    if len(losses) == 1 and losses[0] in _DPO_LOSSES:
        t.set("recipe.loss", _DPO_LOSSES[losses[0]])
    elif len(losses) == 1 and losses[0] in _losses_of_stage():
        t.set("recipe.loss", losses[0])
        trainer = t.overrides.pop("trainer")
        t.differences.append(f"the trainer: {trainer} has no loss {losses[0]}, the stage's own has")
    else:
        t.set("flags.loss_type", losses)


def _losses_of_stage() -> Collection[str]:
    """Return the losses of the trainer that DPO's stage names itself, beside those of TRL."""
    trainer = compose_once(CommandLine("plan", False, ("stage=dpo",))).config.trainer
    losses = recipe_mapping(trainer, "loss")
    return list(losses) if isinstance(losses, Mapping) else ()


def _translate_packing(t: Translation, kind: str) -> None:
    """Set how samples share a row: packed into bins of one length, flattened, or one per row."""
    packs = t.take("sample_packing", "packing", "neat_packing") in (True, "true", "auto")
    flattens = t.take("batch_flattening", "padding_free") in (True, "true", "auto")
    t.take("packing_strategy", "eval_packing")
    if t.tool == LINE and not packs and not flattens:
        return
    if kind != "sft":
        if packs or flattens:
            t.differences.append("packing: pairs are padded here, which changes speed alone")
        return
    packing = "none"
    if packs:
        packing = "bins"
    elif flattens:
        packing = "flatten"
    t.set("recipe.packing", packing)
    t.alternatives["recipe.packing"] = "flatten"
    if packs and t.tool == LLAMA_FACTORY:
        t.differences.append(
            "packing: the rows of a bin do not see each other here (neat_packing: true)"
        )


def _translate_rest(t: Translation) -> None:
    """Set the remaining settings that have an exact equivalent or are a flag of the trainer; name
    all others.
    """
    _translate_tracking(t)
    flags = locked_schema(_trainer_of(t)).fields
    for name, value in list(t.settings.items()):
        is_off = value is False or value in ("none", "no")
        if has_content(value) and not is_off:
            _translate_setting(t, name, value, flags)
        elif has_content(value) and t.tool == LINE:
            _translate_setting_off(t, name, value)
    sharding = t.overrides.get("parallel")
    if sharding and t.ranks == 1 and sharding != "zero3_offload":  # which saves memory of one, too
        del t.overrides["parallel"]
        t.differences.append(
            f"sharding: 1 GPU has nothing to shard; with gpus=N set parallel={sharding}"
        )


def _translate_setting_off(t: Translation, name: str, value: Any) -> None:
    """Set what a line turns off by a name that launch turns off by another: `bf16=false`."""
    if name in _OFF_BY_ABSENCE or (name in _OF_BF16 and _HALF & t.settings.keys()):
        return
    cure = explain_name(name, str(value).lower())
    flags = locked_schema(_trainer_of(t)).fields
    for item in _find_sets(cure, flags):
        key, _, setting = item.partition("=")
        t.overrides.setdefault(key, setting)
    if cure is not None and cure.sentence.startswith(_REMOVAL):
        t.differences.append(f"{name}={as_override(value)}: {cure.sentence.removeprefix(_REMOVAL)}")
    elif cure is None and name in flags and value is False:
        t.set(f"flags.{name}", value)


def _translate_setting(t: Translation, name: str, value: Any, flags: Collection[str]) -> None:
    """Set the equivalent of a setting, or name it with the effect of leaving it out; `flags` are
    the trainer's.
    """
    patterns = names_without_counterpart()
    change = next((change for pattern, change in patterns if pattern.fullmatch(name)), None)
    if t.tool == LINE and name in _SAME_IN_A_LINE:
        change = None
    cure = explain_name(name, str(value).lower() if isinstance(value, bool) else str(value))
    choices = [action.sets for action in actions_of(cure) if action.is_exact]
    theirs = flags if change == "" else {*flags, *_flags_of_trl(t)}
    sets = _find_sets(cure, flags) or _find_sets(cure, theirs)
    for item in choices[-1] if len(choices) > 1 else ():
        key, _, setting = item.partition("=")
        t.alternatives[key] = setting
    is_flag = any(item.startswith("flags.") for item in sets)
    is_kept = t.tool == LINE and (is_flag or (name in flags and _KEPT.fullmatch(name) is not None))
    change = None if is_kept and change == "" else change
    removal = cure.sentence if cure and cure.sentence.startswith(_REMOVAL) else ""
    difference = explain_difference(name, str(value).lower())
    if sets and (not is_flag or t.tool == LINE) and change is None:
        if difference:
            t.differences.insert(0, f"{name}={shorten_value(value)}: {difference}")
        for item in sets:
            key, _, setting = item.partition("=")
            t.overrides.setdefault(key, setting)
    elif t.tool == LINE and removal and change is None:
        t.differences.append(f"{name}={shorten_value(value)}: {removal.removeprefix(_REMOVAL)}")
    elif name in theirs and not isinstance(value, dict) and change != "":
        t.set(f"flags.{name}", value)
    elif change is None and value != 0:
        t.differences.append(f"{name}={shorten_value(value)}: {_without_flag(t, name)}")
    elif change:
        t.differences.append(f"{name}: {change}")
    elif t.tool == LINE and _KEPT.fullmatch(name) and name in _flags_of_trl(t):
        t.differences.append(f"{name}={shorten_value(value)}: {_without_flag(t, name)}")
    else:
        t.left_out.append(name)


def _trainer_of(t: Translation) -> str:
    """Return the trainer at hand: the line's, that of the stage that it names, or the translation's."""
    if t.tool == LINE and "stage" in t.given and "trainer" not in t.given:
        with suppress(UserError):
            line = CommandLine("plan", False, (f"stage={t.given['stage']}",))
            return compose_once(line).config.trainer.name
    return t.given.get("trainer") or t.overrides.get("trainer") or "reward_modeling"


def _find_sets(cure: Fix | None, flags: Collection[str]) -> Sequence[str]:
    """Return the first overrides of a cure that set keys, or those of `flags`; none without any."""
    for action in actions_of(cure):
        named = [item.partition("=")[0] for item in action.sets]
        own = [key.removeprefix("flags.") for key in named if key.startswith("flags.")]
        if action.is_exact and all(flag in flags for flag in own):
            return action.sets
    return ()


def _flags_of_trl(t: Translation) -> Collection[str]:
    """Return the flags of TRL's trainer for what is trained; none for a reward model."""
    trainer = KINDS[Kind(t.overrides["stage"].removeprefix("lora_"))].trainer
    return locked_schema(trainer).fields if trainer is not None else ()


def _without_flag(t: Translation, name: str) -> str:
    """Return why a setting is left out: whether the trainer of TRL has a flag of it."""
    trainer = _trainer_of(t)
    if name not in _flags_of_trl(t):
        return "launch has no such setting"
    return f"{trainer} has no such flag; TRL's trainers have flags.{name}"


def _translate_tracking(t: Translation) -> None:
    """Set the tracker and its project. In axolotl a project without a tracker is one of W&B."""
    reports = t.take("report_to")
    reports = reports[0] if isinstance(reports, list) and reports else reports
    project = t.take("wandb_project", "tracker_project_name")
    is_offline = t.tool == LINE and t.settings.get("wandb_mode") == "offline"
    if is_offline and (project or "wandb" in str(reports)):
        t.take("wandb_mode")
        reports = "wandb_offline"
    if str(reports) in set(Tracking) - {Tracking.none}:
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
    folder = t.take("output_dir", "out_dir", "save_path", "save_dir")
    name = t.take("run_name", "wandb_name", "exp_name")
    if t.tool == LINE and "hub_model_id" in t.settings:
        t.take("push_to_hub")  # hub.push says it
    if t.tool == LINE and folder:
        t.set("runs", folder)
        t.differences.append(
            f"the model is in {folder}/STAGE/RUN/model; `launch status` and the other verbs take "
            f"runs={folder} too"
        )
    elif folder:
        t.left_out.append("output_dir")
    if t.tool == LINE and name:
        t.set("name", name)
    if t.tool != LINE and name:
        t.left_out.append("run_name")
    save = t.overrides.get("recipe.checkpoint_steps")
    steps = t.take("save_steps")
    if save is None and as_whole(steps):
        t.set("recipe.checkpoint_steps", as_whole(steps))
