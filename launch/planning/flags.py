"""Builds the flags of a run, each with its value and where that value is set."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.config.line import format_value
from launch.config.origins import Origin, Origins, Provenance
from launch.config.ranges import HIGH_LEARNING_RATE
from launch.config.schema import (
    RECIPE_KEYS,
    RLVR_KEYS,
    Device,
    Family,
    Kind,
    Precision,
    RefusedValue,
    RootConfig,
    TrainerConfig,
)
from launch.config.validate import flag_problem
from launch.errors import UserError
from launch.planning.chat_template import ChatTemplate, needs_begin_token
from launch.planning.inputs import Inputs
from launch.planning.lora import Lora, recipe_value
from launch.planning.mixture import build_data_flags
from launch.planning.parallel import Batch, Parallel
from launch.planning.recipe import flags_of_key, map_recipe_key, mapping_of
from launch.planning.rlvr import ray_flags
from launch.table import Column
from launch.worker.finding import Finding, Fix, Way

_TRUSTS_REMOTE_CODE = re.compile(r"trust_remote_code\W+(true|t|yes|y|1)\b", re.IGNORECASE)

# The configuration keys that a user sets instead of a flag that `launch` computes.
INSTEAD = {
    "model": "model.path",
    "revision": "model.revision",
    "per_device": "recipe.per_device_batch_size",
    "accumulation": "recipe.global_batch_size (accumulation follows from it and the width)",
    "output": "runs and name (the model lands in the run's folder)",
    **dict.fromkeys(("mixer", "splits", "dataset", "split"), "data.mix"),
    "tokenized_cache": "cache",
    "bf16": "recipe.precision",
}


def format_flag_value(value: object) -> str:
    """Return a flag's value as a command line has it. Items of a list are quoted where the shell
    needs it.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return shlex.join(str(item) for item in value)
    return str(value)


# The columns of a table of flags. A row is a flag's name and its entry in plan.json.
FLAG_COLUMNS: Sequence[Column[tuple[str, Mapping[str, Any]]]] = (
    Column("flag", lambda flag: flag[0]),
    Column("value", lambda flag: format_flag_value(flag[1].get("value"))),
    Column("from", lambda flag: str(flag[1].get("origin") or "")),
    Column("where", lambda flag: str(flag[1].get("where") or "")),
)


@dataclass(frozen=True)
class Flag:
    """A flag's value and where it comes from."""

    value: Any
    provenance: Provenance


_BY_LAUNCH = Provenance(Origin.launcher, None)


def values_of(flags: Mapping[str, Flag]) -> dict[str, Any]:
    """Return the values of flags, by name."""
    return {name: flag.value for name, flag in flags.items()}


def replace_computed_values(flags: Mapping[str, Flag], texts: Mapping[str, str]) -> dict[str, Flag]:
    """Return the flags with each text that launch computed replaced by another; `texts` maps the
    old to the new ones. A flag of the user's stays as it is.
    """
    replaced = dict(flags)
    for name, flag in flags.items():
        is_computed = flag.provenance.origin == Origin.launcher
        if is_computed and isinstance(flag.value, str) and flag.value in texts:
            replaced[name] = replace(flag, value=texts[flag.value])
    return replaced


@dataclass(frozen=True)
class Flags:
    """The flags of a run."""

    flags: Mapping[str, Flag]  # in the order of the command line
    warnings: tuple[Finding, ...]
    subset: str | None  # share of the data set, an option of the entry over TRL
    mixture: str | None = None  # several data sets, likewise
    template: ChatTemplate | None = None  # of recipe.chat_template


def build_flags(
    config: RootConfig,
    plain: Mapping[str, Any],
    origins: Origins,
    *,
    batch: Batch,
    parallel: Parallel,
    inputs: Inputs,
    paths: Mapping[str, str],
    lora: Lora | None = None,
    template: ChatTemplate | None = None,
) -> Flags:
    """Build all flags of a run.

    `plain` is the configuration as plain data. `paths` has the computed paths: `output` and
    `tokenized_cache`. A flag that two sources set has the value of the later one: launch's computed
    values, the recipe, the trainer's file, `ray`, the user.

    Raises UserError, with all problems: unsupported_recipe, unmapped_recipe, owned_flag,
    refused_flag, refused_value, out_of_range.
    """
    trainer = config.trainer
    data_flags, subset, mixture = build_data_flags(inputs.mixture, trainer)
    recipe_flags, problems = _recipe_flags(trainer, plain["recipe"], origins, lora, template)

    flags = _computed_flags(
        config,
        origins,
        batch=batch,
        parallel=parallel,
        inputs=inputs,
        paths=paths,
        data_flags=data_flags,
    )
    if config.data.validation is not None:
        flags |= _validation_flags(trainer, origins, batch)
    flags |= recipe_flags
    flags |= _trainer_file_flags(trainer, origins, parallel, with_adapter=lora is not None)
    for name, value in ray_flags(config, parallel.width).items():
        flags[name] = Flag(value, _BY_LAUNCH)

    user_flags, user_problems, warnings = _user_flags(config, plain, origins, flags)
    flags |= user_flags
    problems += user_problems
    problems += _add_begin_token(trainer, flags)
    problems += _find_refused_values(config, plain, flags)
    problems += _find_out_of_range(config, origins, {problem.where for problem in problems})
    if problems:
        raise UserError(problems)

    warnings += _find_inert_flags(config, flags)
    warnings += _warn_of_high_learning_rate(flags.get("learning_rate"))
    warnings += _warn_of_remote_code(flags, inputs.model.reference)
    return Flags(flags, tuple(warnings), subset, mixture, template)


def sequence_limit(config: RootConfig, flags: Mapping[str, Flag]) -> int:
    """Return the number of tokens of the longest sample that the trainer takes."""
    name = config.trainer.recipe.get("max_seq_length")
    flag = flags.get(name) if isinstance(name, str) else None
    if flag is not None and isinstance(flag.value, int):
        return flag.value
    return config.recipe.max_seq_length


def _computed_flags(
    config: RootConfig,
    origins: Origins,
    *,
    batch: Batch,
    parallel: Parallel,
    inputs: Inputs,
    paths: Mapping[str, str],
    data_flags: Mapping[str, Any],
) -> dict[str, Flag]:
    """Return the flags that `launch` computes, under the trainer's own names for them.

    `data_flags`: see `build_data_flags`.
    """
    batch_origin = origins.of("recipe.per_device_batch_size")
    data_origin = inputs.mixture[0].source.provenance
    computed = {
        "model": Flag(inputs.model.reference, inputs.model.provenance),
        "revision": Flag(config.model.revision, origins.of("model.revision")),
    }
    for key, value in data_flags.items():
        computed[key] = Flag(value, data_origin)
    computed["per_device"] = Flag(batch.per_device, batch_origin)
    computed["accumulation"] = Flag(batch.accumulation, _BY_LAUNCH)
    computed["output"] = Flag(paths["output"], _BY_LAUNCH)
    computed["tokenized_cache"] = Flag(paths["tokenized_cache"], _BY_LAUNCH)
    computed["bf16"] = Flag(parallel.precision == Precision.bf16, _BY_LAUNCH)

    names = config.trainer.launch
    return {
        names[key]: flag
        for key, flag in computed.items()
        if key in names and flag.value is not None
    }


def _recipe_flags(
    trainer: TrainerConfig,
    recipe: Mapping[str, Any],
    origins: Origins,
    lora: Lora | None,
    template: ChatTemplate | None,
) -> tuple[dict[str, Flag], list[Finding]]:
    """Return the flags that the recipe is mapped to, and the problems of the keys that cannot be
    mapped.
    """
    flags: dict[str, Flag] = {}
    problems: list[Finding] = []
    for key in RECIPE_KEYS:
        mapping = mapping_of(trainer, key)
        if mapping is None and key in RLVR_KEYS and trainer.kind != Kind.rlvr:
            mapping = {}  # no value of the key but null is supported
        if mapping is None:
            if lora is not None or not key.startswith("lora."):
                problems.append(_unmapped_key(trainer, key))
            continue
        try:
            value = recipe_value(recipe, key, lora)
            if key == "chat_template" and template is not None:
                value = _template_value(trainer, template)
            values = map_recipe_key(key, value, mapping, trainer.why, trainer.name)
        except UserError as error:
            problems += error.problems
            continue
        provenance = origins.of(f"recipe.{key}")
        for name, flag_value in values.items():
            flags[name] = Flag(flag_value, provenance)
    return flags, problems


def _unmapped_key(trainer: TrainerConfig, key: str) -> Finding:
    message = f"{trainer.name} does not map recipe.{key}"
    cure = f"map it to its flag, or give the reason why it has none in trainer.why.{key}"
    return Finding.error("unmapped_recipe", message, f"trainer.recipe.{key}", cure)


def _template_value(trainer: TrainerConfig, template: ChatTemplate) -> str:
    """Return how the trainer is given a chat template: TRL by its file, open-instruct by name."""
    if trainer.family == Family.trl:
        return str(template.file)
    return template.short_name


def _trainer_file_flags(
    trainer: TrainerConfig, origins: Origins, parallel: Parallel, *, with_adapter: bool
) -> dict[str, Flag]:
    """Return the flags that the trainer's file sets: of every run, on a CPU and of an adapter."""
    flags = {}
    for name, value in trainer.flags.items():
        provenance = origins.of(f"trainer.flags.{name}")
        if provenance.origin != Origin.override:
            provenance = replace(provenance, origin=Origin.launcher)
        flags[name] = Flag(value, provenance)
    if parallel.width.device == Device.cpu:
        for name, value in trainer.cpu_flags.items():
            flags[name] = Flag(value, origins.of(f"trainer.cpu_flags.{name}"))
    if with_adapter:
        precision = parallel.precision
        for name, value in trainer.lora_flags.get(precision, {}).items():
            provenance = origins.of(f"trainer.lora_flags.{precision}.{name}")
            flags[name] = Flag(value, replace(provenance, origin=Origin.launcher))
    return flags


def _validation_flags(trainer: TrainerConfig, origins: Origins, batch: Batch) -> dict[str, Flag]:
    """Return the flags with which the trainer evaluates on data.validation."""
    provenance = origins.of("data.validation")
    flags = {}
    for name, value in trainer.validation_flags.items():
        flag_value = batch.per_device if value == "{per_device}" else value
        flags[name] = Flag(flag_value, provenance)
    return flags


def _add_begin_token(trainer: TrainerConfig, flags: dict[str, Flag]) -> list[Finding]:
    """Add --add_bos where open-instruct requires it. Returns the problem of a user's own value that
    it refuses.
    """
    template = flags.get("chat_template_name")
    tokenizer = flags.get("tokenizer_name_or_path") or flags.get(trainer.launch.get("model", ""))
    if template is None or tokenizer is None:
        return []
    needed = needs_begin_token(trainer.family, template.value, tokenizer.value)
    given = flags.get("add_bos")
    if given is None:
        if needed:
            flags["add_bos"] = Flag(True, _BY_LAUNCH)
        return []
    if needed is None or bool(given.value) is needed:
        return []
    message = (
        f"with the template {template.value} the tokenizer {tokenizer.value} needs "
        f"add_bos={str(needed).lower()}"
    )
    return [Finding.error("olmo_begin_token", message, given.provenance.where, "remove the flag")]


def _find_refused_values(
    config: RootConfig, plain: Mapping[str, Any], flags: Mapping[str, Flag]
) -> list[Finding]:
    """Find values that the trainer's parser accepts, and that the trainer misuses or that undo a
    key.
    """
    problems = []
    for name, refused in config.trainer.refused_values.items():
        flag = flags.get(name)
        if flag is None or not _is_refused(refused, flag.value):
            continue
        if not refused.undoes:
            if "refused_value" not in config.allow:
                message = f"--{name} {flag.value}: {refused.why}"
                problems.append(Finding.error("refused_value", message, flag.provenance.where))
            continue
        requested = _value_at(plain, refused.undoes)
        is_requested = requested not in (None, False)
        # a flag of the trainer's file comes before the flags of the key, which win
        is_set_by_user = flag.provenance.origin != Origin.launcher
        if is_requested and is_set_by_user and "flag_over_recipe" not in config.allow:
            message = (
                f"--{name} {format_value(flag.value)} undoes "
                f"{refused.undoes}={format_value(requested)}: {refused.why}"
            )
            cure = Fix.of("remove it, or set {1}", f"~flags.{name}", "allow=[flag_over_recipe]")
            where = flag.provenance.where
            problems.append(Finding.error("flag_over_recipe", message, where, cure))
    return problems


def _is_refused(refused: RefusedValue, value: Any) -> bool:
    """Return whether a flag's value is one of those that a trainer's file refuses."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and refused.below is not None and value < refused.below:
        return True
    text = format_value(value)
    if refused.matching is not None and not re.fullmatch(refused.matching, text):
        return True
    return refused.containing is not None and refused.containing in text


def _value_at(plain: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, `recipe.lora.rank`; None where there is none."""
    value: Any = plain
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _find_inert_flags(config: RootConfig, flags: Mapping[str, Flag]) -> list[Finding]:
    """Find the user's flags that have no effect with the other flags as they are."""
    warnings = []
    for name in config.flags:
        if name not in flags:
            continue
        for other, effective_values in config.trainer.inert.get(name, {}).items():
            other_value = flags[other].value if other in flags else None
            items = other_value if isinstance(other_value, list) else [other_value]
            texts = [format_value(item) for item in items]
            if any(re.fullmatch(effective_values, text) for text in texts):
                continue
            message = f"--{name} has no effect with --{other} {' '.join(texts)}"
            cure = Fix.of(
                f"remove it, or set {{1}} to one of {effective_values.replace('|', ', ')}",
                f"~flags.{name}",
                f"flags.{other}=",
            )
            where = flags[name].provenance.where
            warnings.append(Finding.warning("inert_flag", message, where, cure))
    return warnings


def _find_out_of_range(
    config: RootConfig, origins: Origins, refused: Collection[str | None]
) -> list[Finding]:
    """Find `flags.NAME=` outside the range of the flag, or of the recipe key that it stands for.

    `refused`: the places of the problems that are known already.
    """
    trainer = config.trainer
    recipe_keys = {}
    for key, mapping in trainer.recipe.items():
        for name in _flags_with_value(mapping):
            recipe_keys[name] = key
    problems = []
    for name, value in config.flags.items():
        where = origins.of(f"flags.{name}").where or f"flags.{name}"
        is_allowed = "refused_value" in config.allow and name in trainer.refused_values
        if where in refused or is_allowed:
            continue
        problem = flag_problem(name, config.recipe, recipe_keys.get(name), value, where)
        if problem is not None:
            problems.append(problem)
    return problems


def _flags_with_value(mapping: Any) -> frozenset[str]:
    """Return the flags whose value is the recipe key's own."""
    if isinstance(mapping, str):
        return frozenset({mapping})
    names = set()
    for flags in mapping.values():
        for name, value in flags.items():
            if value == "{value}":
                names.add(str(name))
    return frozenset(names)


def _warn_of_remote_code(flags: Mapping[str, Flag], model: str) -> list[Finding]:
    """Find flags of a file that let a model run its own code, by themselves or in their JSON (TRL's
    model_init_kwargs).
    """
    warnings = []
    for name, flag in flags.items():
        if flag.provenance.origin == Origin.override:
            continue
        text = json.dumps({name: flag.value}, default=str)
        if _TRUSTS_REMOTE_CODE.search(text) is None:
            continue
        message = (
            f"--{name} lets the Python files that come with {model} and its tokenizer run with "
            "your rights"
        )
        cure = "remove it, unless you have read them or trust their author"
        warnings.append(Finding.warning("remote_code", message, flag.provenance.where, cure))
    return warnings


def _warn_of_high_learning_rate(flag: Flag | None) -> list[Finding]:
    if flag is None or not isinstance(flag.value, int | float) or flag.value <= HIGH_LEARNING_RATE:
        return []
    message = (
        f"a learning rate of {flag.value:g} is above {HIGH_LEARNING_RATE:g}, where nearly "
        "every model diverges"
    )
    cure = "fine-tuning takes 1e-7 to 1e-3"
    return [Finding.warning("high_learning_rate", message, flag.provenance.where, cure)]


def _user_flags(
    config: RootConfig, plain: Mapping[str, Any], origins: Origins, flags: Mapping[str, Flag]
) -> tuple[dict[str, Flag], list[Finding], list[Finding]]:
    """Return the user's `flags.NAME=`, problems and warnings. `flags`: those of the other sources.

    Flags that launch computes or that the trainer's file refuses are problems.
    """
    trainer = config.trainer
    computed = {flag: key for key, flag in trainer.launch.items()}
    recipe_keys = {}
    for key, entry in trainer.recipe.items():
        for name in flags_of_key(entry):
            recipe_keys[name] = key

    user_flags: dict[str, Flag] = {}
    problems: list[Finding] = []
    warnings: list[Finding] = []
    for name, value in config.flags.items():
        provenance = origins.of(f"flags.{name}")
        where = provenance.where or f"flags.{name}"
        if name in computed:
            cure = f"set {INSTEAD[computed[name]]}"
            problems.append(Finding.error("owned_flag", f"launch computes --{name}", where, cure))
            continue
        if name in trainer.refused and "refused_flag" not in config.allow:
            message = f"--{name}: {trainer.refused[name]}"
            problems.append(Finding.error("refused_flag", message, where))
            continue
        if name in trainer.unread:
            message = f"{trainer.name} accepts --{name} and never reads it"
            warnings.append(Finding.warning("unread_flag", message, where))
        if name in recipe_keys:
            key = recipe_keys[name]
            entry = trainer.recipe[key]
            requested = origins.of(f"recipe.{key}")
            if _undoes_request(name, value, flags.get(name), entry, requested):
                text = format_value(_value_at(plain, f"recipe.{key}"))
                conflict = _undone_request(name, value, key, text, where)
                if "flag_over_recipe" in config.allow:
                    warnings.append(conflict.as_warning())
                else:
                    problems.append(conflict)
            elif isinstance(entry, str) or key.startswith("lora."):
                # the flag is the key's own, or one of an adapter
                warnings.append(_overridden_key(name, value, key, where))
        user_flags[name] = Flag(value, provenance)
    return user_flags, problems, warnings


def _undone_request(name: str, value: Any, key: str, requested: str, where: str) -> Finding:
    """Return the problem of a flag that contradicts a recipe key, which is set to `requested`."""
    message = (
        f"--{name} {format_value(value)} undoes recipe.{key}={requested}, which is set as well"
    )
    return Finding.error("flag_over_recipe", message, where, "remove one of the two")


def _overridden_key(name: str, value: Any, key: str, where: str) -> Finding:
    """Return the warning of a flag that is set in place of its recipe key."""
    override = "recipe.lora.rank=16" if value is True else f"recipe.{key}={value}"
    cure = Fix.of("set {0}", Way((override,), removes=f"flags.{name}"))
    message = f"--{name} is recipe.{key}; flags.{name} wins"
    return Finding.warning("flag_over_recipe", message, where, cure)


def _undoes_request(
    name: str, value: Any, from_recipe: Flag | None, entry: Any, requested: Provenance
) -> bool:
    """Return whether a flag contradicts a recipe key that the user has set, on the line or in a
    file of their own.

    `entry` is what the trainer's file maps the key to, `requested` where the key is set. A number
    that a mapping only sets beside the key's value (save_total_limit) is a default, and contradicts
    nothing.
    """
    if requested.where is None:
        return False
    if requested.origin != Origin.override and requested.where.startswith("configs/"):
        return False
    recipe_value = from_recipe.value if from_recipe else False
    if recipe_value == value:
        return False
    if isinstance(entry, str):
        return True
    mapped = [flags[name] for flags in entry.values() if name in flags]
    is_default = len(mapped) == 1 and isinstance(mapped[0], int) and not isinstance(mapped[0], bool)
    return not is_default
