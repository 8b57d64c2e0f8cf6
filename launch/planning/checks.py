"""What a plan refuses or warns of before anything runs, whatever its numbers.

Flags that the trainer's parser or its `__post_init__` would refuse; names that the trainer would
look up minutes after its start; settings that contradict each other; an overlay of `tune` that is
used elsewhere than it was measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launch.config.line import override_key
from launch.config.origins import Origin, Origins
from launch.config.schema import (
    Device,
    Family,
    Kind,
    Launcher,
    ModelConfig,
    Packing,
    RootConfig,
    TrainerConfig,
)
from launch.config.trials import TunedConfig
from launch.errors import UserError, did_you_mean, refusal
from launch.planning.estimate.shape import shape_from_yaml, with_parameters
from launch.planning.flags import Flag, values_of
from launch.planning.loss import EQUAL_WEIGHTS
from launch.planning.parallel import Parallel
from launch.upstream.pin.lock import locked_schema
from launch.upstream.rules.contradictions import find_contradictions
from launch.upstream.rules.values import check_values, flag_field, render_flag, unverified_message
from launch.upstream.schema import Schema
from launch.upstream.trainers import OLMO_CORE_DPO, OLMO_CORE_SFT, TRL, flags_named_in
from launch.worker.finding import Finding, Fix, Way

# of the parameters; biases and further norms, which are not counted, are far less
_SHAPE_TOLERANCE = 0.05


def check_flags(
    schema: Schema, trainer: TrainerConfig, origins: Origins, flags: Mapping[str, Flag]
) -> None:
    """Raise UserError for flags that the trainer's parser, or the trainer itself, refuses.

    With every problem: those of the schema (unknown_flag, bad_type, bad_choice, ...),
    contradiction, and stale_allowlist for a flag in the trainer's YAML that the trainer no longer
    has.
    """
    named = named_flags(trainer).items()
    stale = {
        flag: key
        for flag, key in named
        if flag not in schema.fields and not schema.is_unverified(flag)
    }
    problems = [_stale_problem(trainer, flag, key, origins) for flag, key in stale.items()]
    problems += _value_problems(
        schema, trainer, {name: flag for name, flag in flags.items() if name not in stale}
    )
    if not problems:
        problems += _contradictions(schema, flags)
    if problems:
        raise UserError(problems)


def render_argv(schema: Schema, flags: Mapping[str, Flag]) -> list[str]:
    """Render flags that are checked as the arguments that the trainer's parser accepts."""
    argv: list[str] = []
    for name, flag in flags.items():
        field = flag_field(schema, name, flag.value)
        if field:
            argv += render_flag(field, flag.value)
    return argv


def unverified_warnings(schema: Schema, flags: Mapping[str, Flag]) -> tuple[Finding, ...]:
    """Name the given flags of which only the trainer's own parser knows whether it has them."""
    cure = Fix.of(
        "{0} where its packages are asks its parser, as the job does first", "$ launch check"
    )
    return tuple(
        Finding.error("unverified", unverified_message(schema, name), flag.provenance.where, cure)
        for name, flag in flags.items()
        if flag.value is not None and schema.is_unverified(name)
    )


def named_flags(trainer: TrainerConfig) -> dict[str, str]:
    """Return every flag that a trainer's YAML names, with the first key that names it."""
    named: dict[str, str] = {}
    for flag, path, _ in flags_named_in(vars(trainer)):
        named.setdefault(
            flag, "trainer.unread" if path[0] == "unread" else f"trainer.{'.'.join(path[:2])}"
        )
    return named


def _stale_problem(trainer: TrainerConfig, flag: str, key: str, origins: Origins) -> Finding:
    message = f"{trainer.name} no longer has --{flag}, which {key} names"
    return Finding.error(
        "stale_allowlist",
        message,
        origins.of(key).where or key,
        "upstream changed: correct this line",
    )


def _value_problems(
    schema: Schema, trainer: TrainerConfig, flags: Mapping[str, Flag]
) -> list[Finding]:
    problems = []
    for error in check_values(schema, values_of(flags), complete=True):
        from launch.upstream.pin.ledger import explain_unknown_flag  # history, for an answer alone

        name = str(error.where)
        where = (flags[name].provenance.where if name in flags else None) or f"flags.{name}"
        past = (
            explain_unknown_flag(trainer.name, name, schema.fields)
            if error.id == "unknown_flag"
            else None
        )
        message = f"{error.message}: {past.message}" if past else error.message
        cure = (f"use flags.{past.use}" if past.use else "leave it out") if past else error.cure
        if past and (override := past.instead.get(str(flags[name].value))):
            cure = Fix.of("set {0} in its place", Way((override,), f"flags.{name}"))
        problems.append(Finding.error(error.id, message, where, cure))
    return problems


def _contradictions(schema: Schema, flags: Mapping[str, Flag]) -> list[Finding]:
    """Return the errors that the trainer's own `__post_init__` would raise on every machine."""
    problems = []
    for contradiction in find_contradictions(schema, values_of(flags)):
        if contradiction.certain:
            places = [flags[name].provenance.where for name in contradiction.flags if name in flags]
            overrides = [place for place in places if place and place.startswith("override")]
            where = next(iter(overrides), None) or next((place for place in places if place), None)
            problems.append(
                Finding.error(
                    "contradiction", f"{contradiction.message} ({contradiction.where})", where
                )
            )
    return problems


Registries = Mapping[str, Sequence[str]]
_SCHEDULER = "lr_scheduler_type"
# the hub ids that OLMo-core's trainers have a preset for (olmo_core_utils.py:367-385)
PRESETS = "olmo_presets"


def check_names(trainer: TrainerConfig, flags: Mapping[str, Flag], registries: Registries) -> None:
    """Check the flags' values against what open-instruct looks them up in. Raises UserError:
    unknown_name.

    An unknown chat template is no error upstream: the tokenizer's own is silently used
    (dataset_transformation.py:841).
    """
    if trainer.name not in TRL:
        problems = list(_unknown_names(trainer, flags, registries))
        if problems:
            raise UserError(problems)


def _unknown_names(
    trainer: TrainerConfig, flags: Mapping[str, Flag], registries: Registries
) -> Iterator[Finding]:
    looked_up = {flag: known for flag, known in registries.items() if flag != PRESETS}
    names = {**looked_up, _SCHEDULER: _schedulers(trainer)}
    for flag_name, known in names.items():
        flag = flags.get(flag_name)
        values = (
            [] if flag is None else flag.value if isinstance(flag.value, list) else [flag.value]
        )
        for value in values:
            if isinstance(value, str) and value not in known:
                cure = did_you_mean(value, known) or f"choose from {', '.join(known)}"
                message = f"{trainer.name} has no --{flag_name} '{value}'"
                yield Finding.error(
                    "unknown_name", message, flag.provenance.where if flag else None, cure
                )


def _schedulers(trainer: TrainerConfig) -> Sequence[str]:
    """Return the schedules that a trainer knows: those that its recipe lists, else
    finetune.py's.
    """
    mapping = trainer.recipe.get("lr_scheduler")
    if isinstance(mapping, Mapping):  # olmo_core_utils.py, build_scheduler
        return [str(flags[_SCHEDULER]) for flags in mapping.values() if _SCHEDULER in flags]
    return locked_schema("finetune").fields[_SCHEDULER].choices or ()


def check_model_preset(
    trainer: TrainerConfig, flags: Mapping[str, Flag], checkout: Path | None, registries: Registries
) -> None:
    """Reject a model without a preset, which upstream does only once the data is tokenised
    (olmo_core_utils.py:410).

    Checks nothing without a checkout, or where its presets are unknown. Raises UserError:
    no_olmo_preset.
    """
    if trainer.builds is None or checkout is None:
        return
    if "config_name" in flags and flags["config_name"].value:
        return
    model = flags["model_name_or_path"]
    presets = registries.get(PRESETS, ())
    if not presets or str(model.value) in presets:
        return
    near = did_you_mean(str(model.value), sorted(presets))
    message = f"{trainer.name} has no preset for {model.value}: it builds {trainer.builds}"
    sentence = f"{near + ' ' if near else ''}set {{0}}, or {{1}} for a model of that shape"
    cure = Fix.of(sentence, "model=olmo2_1b", "flags.config_name=PRESET")
    raise refusal("no_olmo_preset", message, model.provenance.where, cure)


_FUSED_LOSS = re.compile(r"fused_linear_cross_entropy\W+true", re.IGNORECASE)


def check_contradictions(config: RootConfig, parallel: Parallel) -> None:
    """Raises UserError: liger_needs_gpu, flash_needs_gpu, liger_dpo_loss, and those of
    `check_evaluation` and `check_dealing`.
    """
    if config.recipe.liger and parallel.width.device == Device.cpu:
        message = (
            "Liger's kernels are written in Triton, which does not run on a CPU: the "
            "trainer "
            "would fail at load"
        )
        cure = Fix.of("set {0}, or {1}", "recipe.liger=false", "gpus=N")
        raise refusal("liger_needs_gpu", message, "recipe.liger", cure)
    attention, trainer = config.recipe.attention, config.trainer
    is_flash = attention.startswith("flash_") and attention in trainer.recipe.get("attention", ())
    if is_flash and parallel.width.device == Device.cpu and trainer.launcher == Launcher.accelerate:
        message = (
            f"recipe.attention={attention} does not run on a CPU: the model would fail to load"
        )
        cure = Fix.of("set {0}, or {1}", "recipe.attention=sdpa", "gpus=N")
        raise refusal("flash_needs_gpu", message, "recipe.attention", cure)
    _check_fused_dpo(config)
    check_evaluation(config)
    check_dealing(config)


def _check_fused_dpo(config: RootConfig) -> None:
    """TRL's DPO computes its loss in a fused head of its own; `recipe.liger` changes the layers
    alone.
    """
    kernels = config.flags.get("liger_kernel_config")
    text = json.dumps(kernels) if isinstance(kernels, dict) else str(kernels)
    if (
        config.trainer.family != Family.trl
        or config.stage.kind != Kind.dpo
        or not _FUSED_LOSS.search(text)
    ):
        return
    cached = (
        " and precomputed reference log-probs"
        if config.flags.get("precompute_ref_log_probs")
        else ""
    )
    message = (
        f"trl_dpo has no Liger loss: its fused head{cached} would be dropped "
        "(trl/trainer/dpo_trainer.py:947)"
    )
    cure = "remove fused_linear_cross_entropy; recipe.liger=true has Liger's layers"
    raise refusal("liger_dpo_loss", message, "flags.liger_kernel_config", cure)


def check_evaluation(config: RootConfig) -> None:
    """Check that `evaluate=true` has a model that generates text. Raises UserError: not_generative,
    no_transformers_model."""
    if not config.evaluate:
        return
    if config.stage.kind == Kind.rm:
        message = "a reward model generates no text, so evaluate=true cannot score it"
        raise refusal("not_generative", message, "evaluate", Fix.of("remove it", "~evaluate"))
    if not config.trainer.leaves.endswith("config.json"):
        message = (
            f"{config.trainer.name} writes checkpoints of its own, which evaluate=true cannot load"
        )
        cure = Fix.of("remove it, or set another {1}", "~evaluate", "trainer=")
        raise refusal("no_transformers_model", message, "evaluate", cure)


def check_dealing(config: RootConfig) -> None:
    """Check what the patches balanced_batches, token_weighting and token_sums can't do; the worker
    refuses it too.

    Raises UserError: balanced_sequence_parallel, weighted_auxiliary_loss.
    """
    weights_tokens = config.recipe.loss_averaging in EQUAL_WEIGHTS
    key = (
        "recipe.balanced"
        if config.recipe.balanced
        else "recipe.loss_averaging"
        if weights_tokens
        else None
    )
    sequence_parallel = config.flags.get("sequence_parallel_size")
    if key and isinstance(sequence_parallel, int) and sequence_parallel > 1:
        splits = f"flags.sequence_parallel_size={sequence_parallel} splits each sample"
        message = f"{key} distributes whole samples over the ranks, but {splits}"
        raise refusal("balanced_sequence_parallel", message, key, "remove one of the two")
    if weights_tokens and config.flags.get("load_balancing_loss") is True:
        message = "the load-balancing loss is added to the loss and is not a mean over tokens"
        cure = Fix.of(
            "set {0}, or remove {1}",
            "recipe.loss_averaging=micro_batch_means",
            "~flags.load_balancing_loss",
        )
        raise refusal("weighted_auxiliary_loss", message, "recipe.loss_averaging", cure)


def contradiction_warnings(config: RootConfig) -> tuple[Finding, ...]:
    """Return the warning bins_change_the_batch where it applies."""
    if config.recipe.packing != Packing.bins:
        return ()
    message = (
        "packing into bins fills a token budget, so the number of samples per step is not "
        "the global batch size"
    )
    cure = Fix.of("{0} keeps the global batch size", "recipe.packing=flatten")
    return (Finding.error("bins_change_the_batch", message, "recipe.packing", cure),)


def tuned_warnings(tuned: TunedConfig, here: Mapping[str, object]) -> tuple[Finding, ...]:
    """Return one warning (tuned_elsewhere) that names every difference; none without a difference.

    `here`: the plan's stage, width (`gpu8`), trainer, model, global batch and max_seq_length, this
    machine's card and versions of packages. What this machine lacks is not compared: a plan may be
    made anywhere.
    """
    measured = {
        "stage": tuned.stage,
        "width": tuned.width,
        "trainer": tuned.trainer,
        "model": tuned.model,
        "global batch": tuned.global_batch_size,
        "max_seq_length": tuned.max_seq_length,
        "card": tuned.card,
        **tuned.versions,
    }
    compared = [
        name for name, value in measured.items() if value is not None and here.get(name) is not None
    ]
    differences = [
        f"{name} {measured[name]}, here {here[name]}"
        for name in compared
        if measured[name] != here[name]
    ]
    if not differences:
        return ()
    message = (
        f"tuned={tuned.name} was measured with {'; '.join(differences)}: it may be slower "
        "here, or not fit"
    )
    cure = Fix.of("{0} with the same overrides measures again", "$ launch tune")
    return (Finding.error("tuned_elsewhere", message, "tuned", cure),)


def shape_warnings(model: ModelConfig, origins: Origins) -> tuple[Finding, ...]:
    """Return shape_mismatch where the sizes in a model's YAML make another number of parameters
    than it gives: memory and time are predicted from both.
    """
    shape = None if model.path else shape_from_yaml(model.shape)
    if shape is None:
        return ()
    given, counted = shape.parameters, with_parameters(shape).parameters
    if abs(counted / given - 1) <= _SHAPE_TOLERANCE:
        return ()
    message = (
        f"the sizes in model.shape make {counted / 1e9:.3g}e9 parameters, but its "
        "parameters "
        f"are {given / 1e9:.3g}e9"
    )
    cure = "compare head_dim, intermediate and tied_embeddings with the model's config.json"
    return (
        Finding.error("shape_mismatch", message, origins.of("model.shape.parameters").where, cure),
    )


# the key of a problem that names none; the mode is set in the overlay's defaults
_KEYS = {
    "batch_not_divisible": "recipe.per_device_batch_size",
    "parallel_width": "defaults",
    "parallel_trainer": "defaults",
}
_MODE = ("parallel", "parallel.mode")


def locate_in_overlay(problem: Finding, origins: Origins) -> Finding:
    """Return the problem; its place is the overlay's line where the overlay sets the value that it
    is about.
    """
    key = _KEYS.get(problem.id, problem.where)
    if key is None or (
        key == "defaults" and any(override_key(word) in _MODE for word in origins.overrides)
    ):
        return problem
    source = origins.of(key)
    return replace(problem, where=source.where) if source.origin == Origin.tuned else problem


def check_packing(trainer: str, flags: Mapping[str, Flag]) -> None:
    """Reject flags with which OLMo-core's trainers die at the first batch.

    Raises UserError: packing_needs_flash, packing_needs_concatenation, checkpointing_needs_compile,
    packing_length.
    """
    if trainer not in (OLMO_CORE_DPO, OLMO_CORE_SFT):
        return

    def value(name: str) -> object:
        return flags[name].value if name in flags else None

    problems = []
    packed = trainer == OLMO_CORE_SFT or bool(value("packing"))
    if packed and value("attn_implementation") == "torch":
        message = (
            f"{trainer} separates packed documents with flash attention, got "
            "attn_implementation=torch"
        )
        sentence = "remove {0}: without the flash-attn package the trainer uses torch's own kernel"
        cure = Fix.of(sentence, "~recipe.attention")
        problems.append(
            Finding.error(
                "packing_needs_flash", message, flags["attn_implementation"].provenance.where, cure
            )
        )
    if packed and trainer == OLMO_CORE_DPO and value("concatenated_forward") is False:
        message = (
            "dpo.py packs only with the concatenated forward pass (dpo.py:236), got "
            "concatenated_forward=false"
        )
        where = flags["concatenated_forward"].provenance.where
        cure = Fix.of(
            "remove {0}, or set {1}", "~flags.concatenated_forward", "recipe.packing=none"
        )
        problems.append(Finding.error("packing_needs_concatenation", message, where, cure))
    length = value("max_seq_length")
    if trainer == OLMO_CORE_SFT and isinstance(length, int) and length & (length - 1):
        # olmo_core/data/utils.py:795, the tree that it finds room in rows with
        message = (
            f"{OLMO_CORE_SFT} packs into rows of a power of 2 of tokens, got "
            f"max_seq_length={length}"
        )
        lower = 1 << (length.bit_length() - 1)
        cure = Fix.of(
            f"set {{0}} or {2 * lower}", *(f"recipe.max_seq_length={n}" for n in (lower, 2 * lower))
        )
        problems.append(
            Finding.error("packing_length", message, flags["max_seq_length"].provenance.where, cure)
        )
    budget = value("activation_memory_budget")
    by_budget = value("activation_checkpointing_mode") in (None, "budget")
    if isinstance(budget, float) and budget < 1 and value("compile_model") is False and by_budget:
        message = (
            "compile_model=false: OLMo-core then silently ignores the activation memory "
            "budget of torch.compile"
        )
        by_modules = "flags.activation_checkpointing_mode=selected_modules"
        cure = Fix.of("set {0}, or {1}", "recipe.gradient_checkpointing=false", by_modules)
        where = flags["activation_memory_budget"].provenance.where
        problems.append(Finding.error("checkpointing_needs_compile", message, where, cure))
    if problems:
        raise UserError(problems)
