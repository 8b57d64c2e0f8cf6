"""Checks the flags and the settings of a plan before anything runs.

It finds flags that the trainer's parser or its `__post_init__` would refuse, names that the trainer
would look up minutes after its start, settings that contradict each other, and an overlay of `tune`
that was measured on another machine or for another run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
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

# Relative difference of two numbers of parameters that is tolerated. Biases and further norms, which
# are not counted, are far less.
_SHAPE_TOLERANCE = 0.05


def check_flags(
    schema: Schema, trainer: TrainerConfig, origins: Origins, flags: Mapping[str, Flag]
) -> None:
    """Check the flags against what the trainer's parser, and the trainer itself, refuse.

    Raises UserError, with all problems: those of the schema (unknown_flag, bad_type, bad_choice,
    ...), contradiction, and stale_allowlist for a flag in the trainer's YAML that the trainer no
    longer has.
    """
    stale = set()
    problems = []
    for name, key in named_flags(trainer).items():
        if name not in schema.fields and not schema.is_unverified(name):
            stale.add(name)
            problems.append(_stale_problem(trainer, name, key, origins))
    known_flags = {name: flag for name, flag in flags.items() if name not in stale}
    problems += _value_problems(schema, trainer, known_flags)
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
    """Return a warning for each given flag that only the trainer's own parser can verify."""
    cure = Fix.of(
        "{0} where its packages are asks its parser, as the job does first", "$ launch check"
    )
    warnings = []
    for name, flag in flags.items():
        if flag.value is not None and schema.is_unverified(name):
            message = unverified_message(schema, name)
            warnings.append(Finding.warning("unverified", message, flag.provenance.where, cure))
    return tuple(warnings)


def named_flags(trainer: TrainerConfig) -> dict[str, str]:
    """Return every flag that a trainer's YAML names, with the first key that names it."""
    named: dict[str, str] = {}
    for flag, path, _ in flags_named_in(vars(trainer)):
        key = "unread" if path[0] == "unread" else ".".join(path[:2])
        named.setdefault(flag, f"trainer.{key}")
    return named


def _stale_problem(trainer: TrainerConfig, flag: str, key: str, origins: Origins) -> Finding:
    message = f"{trainer.name} no longer has --{flag}, which {key} names"
    where = origins.of(key).where or key
    cure = "upstream changed: correct this line"
    return Finding.error("stale_allowlist", message, where, cure)


def _value_problems(
    schema: Schema, trainer: TrainerConfig, flags: Mapping[str, Flag]
) -> list[Finding]:
    """Return the problems that the schema finds. An unknown flag is explained by upstream's
    history.
    """
    problems = []
    for error in check_values(schema, values_of(flags), complete=True):
        name = str(error.where)
        flag = flags.get(name)
        where = flag.provenance.where if flag else None
        problem = replace(error, where=where or f"flags.{name}")
        if error.id == "unknown_flag":
            problem = _explain_unknown_flag(schema, trainer, name, flags[name], problem)
        problems.append(problem)
    return problems


def _explain_unknown_flag(
    schema: Schema, trainer: TrainerConfig, name: str, flag: Flag, problem: Finding
) -> Finding:
    """Return the problem with what upstream's history says about the flag, if it knows the flag."""
    # the history is read only where a flag is unknown
    from launch.upstream.pin.ledger import explain_unknown_flag

    past = explain_unknown_flag(trainer.name, name, schema.fields)
    if past is None:
        return problem
    override = past.instead.get(str(flag.value))
    cure: Fix | str = f"use flags.{past.use}" if past.use else "leave it out"
    if override:
        cure = Fix.of("set {0} in its place", Way((override,), f"flags.{name}"))
    message = f"{problem.message}: {past.message}"
    return Finding.error(problem.id, message, problem.where, cure)


def _contradictions(schema: Schema, flags: Mapping[str, Flag]) -> list[Finding]:
    """Return the errors that the trainer's own `__post_init__` would raise on every machine."""
    problems = []
    for contradiction in find_contradictions(schema, values_of(flags)):
        if not contradiction.certain:
            continue
        places = []
        for name in contradiction.flags:
            where = flags[name].provenance.where if name in flags else None
            if where:
                places.append(where)
        # an override is named before a line of a file
        places.sort(key=lambda where: not where.startswith("override"))
        message = f"{contradiction.message} ({contradiction.where})"
        problems.append(Finding.error("contradiction", message, next(iter(places), None)))
    return problems


Registries = Mapping[str, Sequence[str]]
_SCHEDULER = "lr_scheduler_type"
# The registry of the hub ids that OLMo-core's trainers have a preset for
# (olmo_core_utils.py:367-385).
PRESETS = "olmo_presets"


def check_names(trainer: TrainerConfig, flags: Mapping[str, Flag], registries: Registries) -> None:
    """Check the flags' values against the registries in which open-instruct looks them up.

    Upstream does not reject an unknown chat template: it silently uses the tokenizer's own
    (dataset_transformation.py:841). Raises UserError: unknown_name.
    """
    if trainer.name in TRL:
        return
    known_names = {name: known for name, known in registries.items() if name != PRESETS}
    known_names[_SCHEDULER] = _schedulers(trainer)
    problems = []
    for name, known in known_names.items():
        if name in flags:
            problems += _unknown_names(trainer, name, flags[name], known)
    if problems:
        raise UserError(problems)


def _unknown_names(
    trainer: TrainerConfig, name: str, flag: Flag, known: Sequence[str]
) -> list[Finding]:
    """Return the problems of a flag whose value, or an item of it, is not a known name."""
    problems = []
    values = flag.value if isinstance(flag.value, list) else [flag.value]
    for value in values:
        if not isinstance(value, str) or value in known:
            continue
        cure = did_you_mean(value, known) or f"choose from {', '.join(known)}"
        message = f"{trainer.name} has no --{name} '{value}'"
        problems.append(Finding.error("unknown_name", message, flag.provenance.where, cure))
    return problems


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
    message = f"{trainer.name} has no preset for {model.value}: it builds {trainer.builds}"
    near = did_you_mean(str(model.value), sorted(presets))
    sentence = "set {0}, or {1} for a model of that shape"
    if near is not None:
        sentence = f"{near} {sentence}"
    cure = Fix.of(sentence, "model=olmo2_1b", "flags.config_name=PRESET")
    raise refusal("no_olmo_preset", message, model.provenance.where, cure)


_FUSED_LOSS = re.compile(r"fused_linear_cross_entropy\W+true", re.IGNORECASE)


def check_contradictions(config: RootConfig, parallel: Parallel) -> None:
    """Check that settings of the configuration do not contradict each other.

    Raises UserError: liger_needs_gpu, flash_needs_gpu, liger_dpo_loss, and those of
    `check_evaluation` and `check_dealing`.
    """
    trainer = config.trainer
    is_on_cpu = parallel.width.device == Device.cpu
    if config.recipe.liger and is_on_cpu:
        message = (
            "Liger's kernels are written in Triton, which does not run on a CPU: the trainer "
            "would fail at load"
        )
        cure = Fix.of("set {0}, or {1}", "recipe.liger=false", "gpus=N")
        raise refusal("liger_needs_gpu", message, "recipe.liger", cure)
    attention = config.recipe.attention
    is_flash = attention.startswith("flash_") and attention in trainer.recipe.get("attention", ())
    if is_flash and is_on_cpu and trainer.launcher == Launcher.accelerate:
        message = (
            f"recipe.attention={attention} does not run on a CPU: the model would fail to load"
        )
        cure = Fix.of("set {0}, or {1}", "recipe.attention=sdpa", "gpus=N")
        raise refusal("flash_needs_gpu", message, "recipe.attention", cure)
    _check_fused_dpo(config)
    check_evaluation(config)
    check_dealing(config)


def _check_fused_dpo(config: RootConfig) -> None:
    """Refuse Liger's fused loss for TRL's DPO, which computes its loss in a fused head of its own.

    `recipe.liger` replaces only the layers. Raises UserError: liger_dpo_loss.
    """
    if config.trainer.family != Family.trl or config.stage.kind != Kind.dpo:
        return
    kernels = config.flags.get("liger_kernel_config")
    text = json.dumps(kernels) if isinstance(kernels, dict) else str(kernels)
    if not _FUSED_LOSS.search(text):
        return
    dropped = "its fused head"
    if config.flags.get("precompute_ref_log_probs"):
        dropped += " and precomputed reference log-probs"
    message = (
        f"trl_dpo has no Liger loss: {dropped} would be dropped (trl/trainer/dpo_trainer.py:947)"
    )
    cure = "remove fused_linear_cross_entropy; recipe.liger=true has Liger's layers"
    raise refusal("liger_dpo_loss", message, "flags.liger_kernel_config", cure)


def check_evaluation(config: RootConfig) -> None:
    """Check that `evaluate=true` has a model that generates text.

    Raises UserError: not_generative, no_transformers_model.
    """
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
    """Refuse settings that the patches balanced_batches, token_weighting and token_sums do not
    support. The worker refuses them too.

    Raises UserError: balanced_sequence_parallel, weighted_auxiliary_loss.
    """
    weights_tokens = config.recipe.loss_averaging in EQUAL_WEIGHTS
    sequence_parallel = config.flags.get("sequence_parallel_size")
    splits_samples = isinstance(sequence_parallel, int) and sequence_parallel > 1
    if splits_samples and (config.recipe.balanced or weights_tokens):
        key = "recipe.balanced" if config.recipe.balanced else "recipe.loss_averaging"
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
    return (Finding.warning("bins_change_the_batch", message, "recipe.packing", cure),)


def tuned_warnings(tuned: TunedConfig, here: Mapping[str, object]) -> tuple[Finding, ...]:
    """Return one warning (tuned_elsewhere) that names every difference; none without a difference.

    `here` has the plan's stage, width (`gpu8`), trainer, model, global batch and max_seq_length, and
    this machine's card and versions of packages. A plan may be made anywhere, so that what this
    machine lacks is not compared.
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
    differences = []
    for name, value in measured.items():
        value_here = here.get(name)
        is_compared = value is not None and value_here is not None
        if is_compared and value != value_here:
            differences.append(f"{name} {value}, here {value_here}")
    if not differences:
        return ()
    message = (
        f"tuned={tuned.name} was measured with {'; '.join(differences)}: it may be slower "
        "here, or not fit"
    )
    cure = Fix.of("{0} with the same overrides measures again", "$ launch tune")
    return (Finding.warning("tuned_elsewhere", message, "tuned", cure),)


def shape_warnings(model: ModelConfig, origins: Origins) -> tuple[Finding, ...]:
    """Return shape_mismatch if the sizes in a model's YAML result in another number of parameters
    than the YAML gives. Memory and time are predicted from both.
    """
    shape = None if model.path else shape_from_yaml(model.shape)
    if shape is None:
        return ()
    given, counted = shape.parameters, with_parameters(shape).parameters
    if abs(counted / given - 1) <= _SHAPE_TOLERANCE:
        return ()
    message = (
        f"the sizes in model.shape make {counted / 1e9:.3g}e9 parameters, but its parameters are "
        f"{given / 1e9:.3g}e9"
    )
    where = origins.of("model.shape.parameters").where
    cure = "compare head_dim, intermediate and tied_embeddings with the model's config.json"
    return (Finding.warning("shape_mismatch", message, where, cure),)


# The keys of problems that name none, by the problem's id. The mode is set in the overlay's defaults.
_KEYS = {
    "batch_not_divisible": "recipe.per_device_batch_size",
    "parallel_width": "defaults",
    "parallel_trainer": "defaults",
}
_MODE = ("parallel", "parallel.mode")


def locate_in_overlay(problem: Finding, origins: Origins) -> Finding:
    """Return the problem with the overlay's line as its place, if the overlay sets the value that
    the problem is about; else the problem as it is.
    """
    key = _KEYS.get(problem.id, problem.where)
    if key is None:
        return problem
    if key == "defaults" and any(override_key(text) in _MODE for text in origins.overrides):
        return problem
    source = origins.of(key)
    if source.origin != Origin.tuned:
        return problem
    return replace(problem, where=source.where)


def check_packing(trainer: str, flags: Mapping[str, Flag]) -> None:
    """Reject flags with which OLMo-core's trainers die at the first batch.

    Raises UserError: packing_needs_flash, packing_needs_concatenation, checkpointing_needs_compile,
    packing_length.
    """
    if trainer not in (OLMO_CORE_DPO, OLMO_CORE_SFT):
        return
    values = values_of(flags)
    problems = []
    if trainer == OLMO_CORE_SFT or values.get("packing"):
        problems += _check_packed_documents(trainer, flags)
    if trainer == OLMO_CORE_SFT:
        problems += _check_packed_length(flags)
    problems += _check_memory_budget(flags)
    if problems:
        raise UserError(problems)


def _check_packed_documents(trainer: str, flags: Mapping[str, Flag]) -> list[Finding]:
    """Return the problems of flags with which a trainer cannot separate packed documents."""
    problems = []
    attention = flags.get("attn_implementation")
    if attention is not None and attention.value == "torch":
        message = (
            f"{trainer} separates packed documents with flash attention, got "
            "attn_implementation=torch"
        )
        sentence = "remove {0}: without the flash-attn package the trainer uses torch's own kernel"
        cure = Fix.of(sentence, "~recipe.attention")
        where = attention.provenance.where
        problems.append(Finding.error("packing_needs_flash", message, where, cure))
    concatenated = flags.get("concatenated_forward")
    if trainer == OLMO_CORE_DPO and concatenated is not None and concatenated.value is False:
        message = (
            "dpo.py packs only with the concatenated forward pass (dpo.py:236), got "
            "concatenated_forward=false"
        )
        cure = Fix.of(
            "remove {0}, or set {1}", "~flags.concatenated_forward", "recipe.packing=none"
        )
        where = concatenated.provenance.where
        problems.append(Finding.error("packing_needs_concatenation", message, where, cure))
    return problems


def _check_packed_length(flags: Mapping[str, Flag]) -> list[Finding]:
    """Return the problem of rows whose length is not a power of 2, which OLMo-core's packing needs
    for the tree in which it looks for space (olmo_core/data/utils.py:795).
    """
    flag = flags.get("max_seq_length")
    length = flag.value if flag else None
    if flag is None or not isinstance(length, int) or not length & (length - 1):
        return []
    message = (
        f"{OLMO_CORE_SFT} packs into rows of a power of 2 of tokens, got max_seq_length={length}"
    )
    lower = 1 << (length.bit_length() - 1)
    higher = 2 * lower
    overrides = [f"recipe.max_seq_length={lower}", f"recipe.max_seq_length={higher}"]
    cure = Fix.of(f"set {{0}} or {higher}", *overrides)
    return [Finding.error("packing_length", message, flag.provenance.where, cure)]


def _check_memory_budget(flags: Mapping[str, Flag]) -> list[Finding]:
    """Return the problem of an activation memory budget that OLMo-core would ignore."""
    values = values_of(flags)
    budget = values.get("activation_memory_budget")
    is_in_effect = values.get("activation_checkpointing_mode") in (None, "budget")
    if not isinstance(budget, float) or budget >= 1 or not is_in_effect:
        return []
    if values.get("compile_model") is not False:
        return []
    message = (
        "compile_model=false: OLMo-core then silently ignores the activation memory budget of "
        "torch.compile"
    )
    by_modules = "flags.activation_checkpointing_mode=selected_modules"
    cure = Fix.of("set {0}, or {1}", "recipe.gradient_checkpointing=false", by_modules)
    where = flags["activation_memory_budget"].provenance.where
    return [Finding.error("checkpointing_needs_compile", message, where, cure)]
