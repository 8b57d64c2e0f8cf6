"""Every flag of a run, its value and where that comes from: trainer file, recipe, `launch` itself
or the user.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.config.compose import Composed
from launch.config.line import format_value
from launch.config.origins import Origin, Provenance
from launch.config.ranges import HIGH_LEARNING_RATE
from launch.config.schema import RECIPE_KEYS, RLVR_KEYS, Device, Family, Kind, Precision, RootConfig
from launch.config.validate import flag_problem
from launch.errors import UserError
from launch.planning.chat_template import ChatTemplate, needs_begin_token
from launch.planning.inputs import Inputs, build_data_flags
from launch.planning.lora import Lora, recipe_value
from launch.planning.parallel import Batch, Parallel
from launch.planning.recipe import flags_of_key, map_recipe_key, mapping_of
from launch.planning.rlvr import ray_flags
from launch.table import Column
from launch.worker.finding import Finding, Fix, Way

_TRUSTS = re.compile(r"trust_remote_code\W+(true|t|yes|y|1)\b", re.IGNORECASE)

# What a user sets instead of a flag that `launch` computes.
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
    """Return a flag's value as a command line has it; a list with its items quoted where they need
    it.
    """
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return (
        shlex.join(str(item) for item in value) if isinstance(value, (list, tuple)) else str(value)
    )


# of a flag's name and its entry in plan.json
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


def values_of(flags: Mapping[str, Flag]) -> dict[str, Any]:
    """Return the values of flags, by name."""
    return {name: flag.value for name, flag in flags.items()}


@dataclass(frozen=True)
class Flags:
    """The flags of a run."""

    flags: Mapping[str, Flag]  # in the order of the command line
    warnings: tuple[Finding, ...]
    subset: str | None  # share of the data set, an option of the entry over TRL
    mixture: str | None = None  # several data sets, likewise
    template: ChatTemplate | None = None  # of recipe.chat_template


def build_flags(
    composed: Composed,
    batch: Batch,
    parallel: Parallel,
    inputs: Inputs,
    paths: Mapping[str, str],
    *,
    lora: Lora | None = None,
    template: ChatTemplate | None = None,
) -> Flags:
    """Build all flags of a run. `paths` are the computed ones: `output` and `tokenized_cache`.

    Raises UserError, with all problems: unsupported_recipe, unmapped_recipe, owned_flag,
    refused_flag, refused_value, out_of_range.
    """
    problems: list[Finding] = []
    computed, subset, mixture = _computed(composed, batch, parallel, inputs, paths)
    from_recipe = _from_recipe(composed, lora, template, problems)
    validation = (
        _validation_flags(composed, batch) if composed.config.data.validation is not None else {}
    )
    flags = {
        **computed,
        **validation,
        **from_recipe,
        **_from_trainer(composed, parallel, with_adapter=lora is not None),
    }
    implied = ray_flags(composed.config, parallel.width)
    flags |= {
        name: Flag(value, Provenance(Origin.launcher, None)) for name, value in implied.items()
    }
    warnings = _add_user_flags(composed, flags, problems)
    problems += _add_begin_token(composed, flags)
    problems += _refused_values(composed, flags)
    problems += _out_of_range(composed, frozenset(problem.where for problem in problems))
    if problems:
        raise UserError(problems)
    warnings += _inert_flags(composed, flags)
    warnings += _high_learning_rate(flags.get("learning_rate"))
    warnings += _remote_code(flags, inputs.model.reference)
    return Flags(flags, tuple(warnings), subset, mixture, template)


def sequence_limit(config: RootConfig, flags: Mapping[str, Flag]) -> int:
    """Return the number of tokens of the longest sample that the trainer takes."""
    name = config.trainer.recipe.get("max_seq_length")
    value = flags[name].value if isinstance(name, str) and name in flags else None
    return value if isinstance(value, int) else config.recipe.max_seq_length


def _computed(
    composed: Composed, batch: Batch, parallel: Parallel, inputs: Inputs, paths: Mapping[str, str]
) -> tuple[dict[str, Flag], str | None, str | None]:
    """Return what `launch` computes, by the trainer's own flags, and two options: see
    `build_data_flags`.
    """
    config, origins = composed.config, composed.origins
    launcher = Provenance(Origin.launcher, None)
    data, subset, mixture = build_data_flags(inputs.mixture, config.trainer)
    data_provenance = inputs.mixture[0].source.provenance
    values: dict[str, tuple[Any, Provenance]] = {
        "model": (inputs.model.reference, inputs.model.provenance),
        "revision": (config.model.revision, origins.of("model.revision")),
        **{key: (value, data_provenance) for key, value in data.items()},
        "per_device": (batch.per_device, origins.of("recipe.per_device_batch_size")),
        "accumulation": (batch.accumulation, launcher),
        "output": (paths["output"], launcher),
        "tokenized_cache": (paths["tokenized_cache"], launcher),
        "bf16": (parallel.precision == Precision.bf16, launcher),
    }
    flag_names = config.trainer.launch
    flags = {
        flag_names[key]: Flag(value, provenance)
        for key, (value, provenance) in values.items()
        if key in flag_names and value is not None
    }
    return flags, subset, mixture


def _from_recipe(
    composed: Composed, lora: Lora | None, template: ChatTemplate | None, problems: list[Finding]
) -> dict[str, Flag]:
    trainer, recipe = composed.config.trainer, composed.plain["recipe"]
    flags: dict[str, Flag] = {}
    for key in RECIPE_KEYS:
        mapping = mapping_of(trainer, key)
        if mapping is None and key in RLVR_KEYS and trainer.kind != Kind.rlvr:
            mapping = {}
        if mapping is None:
            if lora is not None or not key.startswith("lora."):
                message = f"{trainer.name} does not map recipe.{key}"
                cure = (
                    f"map it to its flag, or give the reason why it has none in trainer.why.{key}"
                )
                problems.append(
                    Finding.error("unmapped_recipe", message, f"trainer.recipe.{key}", cure)
                )
            continue
        try:
            value = recipe_value(recipe, key, lora)
            if key == "chat_template" and template is not None:
                value = str(template.file) if trainer.family == Family.trl else template.short_name
            values = map_recipe_key(key, value, mapping, trainer.why, trainer.name)
        except UserError as error:
            problems += error.problems
            continue
        provenance = composed.origins.of(f"recipe.{key}")
        flags.update({name: Flag(value, provenance) for name, value in values.items()})
    return flags


def _from_trainer(composed: Composed, parallel: Parallel, *, with_adapter: bool) -> dict[str, Flag]:
    """Return the trainer file's own flags: those of every run, then those for a CPU and for an
    adapter.
    """
    trainer, origins = composed.config.trainer, composed.origins
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
        for name, value in trainer.lora_flags.get(parallel.precision, {}).items():
            provenance = origins.of(f"trainer.lora_flags.{parallel.precision}.{name}")
            flags[name] = Flag(value, replace(provenance, origin=Origin.launcher))
    return flags


def _validation_flags(composed: Composed, batch: Batch) -> dict[str, Flag]:
    """Return the flags with which the trainer evaluates on data.validation."""
    provenance = composed.origins.of("data.validation")
    flags = composed.config.trainer.validation_flags
    return {
        name: Flag(batch.per_device if value == "{per_device}" else value, provenance)
        for name, value in flags.items()
    }


def _add_begin_token(composed: Composed, flags: dict[str, Flag]) -> list[Finding]:
    """Add --add_bos where open-instruct insists on it. Returns the problem of a user's own value
    that it refuses.
    """
    trainer, template = composed.config.trainer, flags.get("chat_template_name")
    tokenizer = flags.get("tokenizer_name_or_path") or flags.get(trainer.launch.get("model", ""))
    if template is None or tokenizer is None:
        return []
    needed, given = (
        needs_begin_token(trainer.family, template.value, tokenizer.value),
        flags.get("add_bos"),
    )
    if given is None and needed:
        flags["add_bos"] = Flag(True, Provenance(Origin.launcher, None))
    if given is None or needed is None or bool(given.value) is needed:
        return []
    message = (
        f"with the template {template.value} the tokenizer {tokenizer.value} needs "
        f"add_bos={str(needed).lower()}"
    )
    return [Finding.error("olmo_begin_token", message, given.provenance.where, "remove the flag")]


def _refused_values(composed: Composed, flags: Mapping[str, Flag]) -> list[Finding]:
    """Find values that the trainer's parser accepts, and that the trainer misuses or that undo a
    key.
    """
    problems = []
    for name, refused in composed.config.trainer.refused_values.items():
        flag = flags.get(name)
        id = "flag_over_recipe" if refused.undoes else "refused_value"
        requested = _value_at(composed, refused.undoes) if refused.undoes else True
        if flag is None or id in composed.config.allow or requested in (None, False):
            continue
        # the trainer's own, before the key's flags
        if refused.undoes and flag.provenance.origin == Origin.launcher:
            continue
        is_number = isinstance(flag.value, (int, float)) and not isinstance(flag.value, bool)
        text = format_value(flag.value)
        too_low = is_number and refused.below is not None and flag.value < refused.below
        differs = refused.matching is not None and not re.fullmatch(refused.matching, text)
        if too_low or differs or (refused.containing is not None and refused.containing in text):
            undoes = f" undoes {refused.undoes}={format_value(requested)}" if refused.undoes else ""
            cure = (
                Fix.of("remove it, or set {1}", f"~flags.{name}", f"allow=[{id}]")
                if undoes
                else None
            )
            message = f"--{name} {text if undoes else flag.value}{undoes}: {refused.why}"
            problems.append(Finding.error(id, message, flag.provenance.where, cure))
    return problems


def _value_at(composed: Composed, key: str) -> Any:
    value: Any = composed.plain
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _inert_flags(composed: Composed, flags: Mapping[str, Flag]) -> list[Finding]:
    """Show the user's flags that change nothing with the other flags as they are."""
    problems = []
    for name in composed.config.flags:
        for other, values in composed.config.trainer.inert.get(name, {}).items():
            texts = flags[other].value if other in flags else None
            texts = [format_value(text) for text in (texts if isinstance(texts, list) else [texts])]
            if name in flags and not any(re.fullmatch(values, text) for text in texts):
                message = f"--{name} has no effect with --{other} {' '.join(texts)}"
                cure = Fix.of(
                    f"remove it, or set {{1}} to one of {values.replace('|', ', ')}",
                    f"~flags.{name}",
                    f"flags.{other}=",
                )
                problems.append(
                    Finding.error("inert_flag", message, flags[name].provenance.where, cure)
                )
    return problems


def _out_of_range(composed: Composed, refused: Collection[str | None]) -> list[Finding]:
    """Find `flags.NAME=` outside the range of the flag, or of the recipe key that it stands for.

    `refused`: the places of the problems that are known already.
    """
    problems = []
    trainer, allow = composed.config.trainer, composed.config.allow
    keys = {
        name: key for key, mapping in trainer.recipe.items() for name in _flags_with_value(mapping)
    }
    for name, value in composed.config.flags.items():
        where = composed.origins.of(f"flags.{name}").where or f"flags.{name}"
        problem = flag_problem(name, composed.config.recipe, keys.get(name), value, where)
        is_allowed = "refused_value" in allow and name in trainer.refused_values
        if problem and where not in refused and not is_allowed:
            problems.append(problem)
    return problems


def _flags_with_value(mapping: Any) -> frozenset[str]:
    """Return the flags whose value is the recipe key's own."""
    if isinstance(mapping, str):
        return frozenset({mapping})
    return frozenset(
        str(name)
        for flags in mapping.values()
        for name, value in flags.items()
        if value == "{value}"
    )


def _remote_code(flags: Mapping[str, Flag], model: str) -> list[Finding]:
    """Show what a file lets a model do, by a flag or in the JSON of one (TRL's
    model_init_kwargs).
    """
    return [
        Finding.error(
            "remote_code",
            f"--{name} lets the Python files that come with {model} and its tokenizer run with "
            "your rights",
            flag.provenance.where,
            "remove it, unless you have read them or trust their author",
        )
        for name, flag in flags.items()
        if flag.provenance.origin != Origin.override
        and _TRUSTS.search(json.dumps({name: flag.value}, default=str))
    ]


def _high_learning_rate(flag: Flag | None) -> list[Finding]:
    if flag is None or not isinstance(flag.value, int | float) or flag.value <= HIGH_LEARNING_RATE:
        return []
    message = (
        f"a learning rate of {flag.value:g} is above {HIGH_LEARNING_RATE:g}, where nearly "
        "every model diverges"
    )
    return [
        Finding.error(
            "high_learning_rate", message, flag.provenance.where, "fine-tuning takes 1e-7 to 1e-3"
        )
    ]


def _add_user_flags(
    composed: Composed, flags: dict[str, Flag], problems: list[Finding]
) -> list[Finding]:
    """Add the user's `flags.NAME=`; computed and refused flags are problems. Returns warnings."""
    trainer, allow = composed.config.trainer, composed.config.allow
    computed = {flag: key for key, flag in trainer.launch.items()}
    recipe_keys = {
        flag: key for key, entry in trainer.recipe.items() for flag in flags_of_key(entry)
    }
    warnings = []
    for name, value in composed.config.flags.items():
        provenance = composed.origins.of(f"flags.{name}")
        where = provenance.where or f"flags.{name}"
        if name in computed:
            cure = f"set {INSTEAD[computed[name]]}"
            problems.append(Finding.error("owned_flag", f"launch computes --{name}", where, cure))
        elif name in trainer.refused and "refused_flag" not in allow:
            problems.append(
                Finding.error("refused_flag", f"--{name}: {trainer.refused[name]}", where)
            )
        else:
            if name in trainer.unread:
                warnings.append(
                    Finding.error(
                        "unread_flag", f"{trainer.name} accepts --{name} and never reads it", where
                    )
                )
            key = recipe_keys.get(name)
            if key is not None and _undoes_request(composed, key, name, value, flags.get(name)):
                requested = format_value(_value_at(composed, f"recipe.{key}"))
                message = (
                    f"--{name} {format_value(value)} undoes recipe.{key}={requested}, which "
                    "is set as well"
                )
                found = warnings if "flag_over_recipe" in allow else problems
                found.append(
                    Finding.error("flag_over_recipe", message, where, "remove one of the two")
                )
            # a flag that is the key's own, and those of an adapter
            elif key is not None and (
                isinstance(trainer.recipe[key], str) or key.startswith("lora.")
            ):
                message = f"--{name} is recipe.{key}; flags.{name} wins"
                instead = "recipe.lora.rank=16" if value is True else f"recipe.{key}={value}"
                own = Fix.of("set {0}", Way((instead,), removes=f"flags.{name}"))
                warnings.append(Finding.warning("flag_over_recipe", message, where, own))
            flags[name] = Flag(value, provenance)
    return warnings


def _undoes_request(
    composed: Composed, key: str, name: str, value: Any, from_recipe: Flag | None
) -> bool:
    """Whether a flag contradicts a recipe key that the user has set, on the line or in a file of
    their own.

    A number that a mapping only sets beside the key's value (save_total_limit) is a default, and
    contradicts nothing.
    """
    provenance, entry = composed.origins.of(f"recipe.{key}"), composed.config.trainer.recipe[key]
    is_shipped = provenance.origin != Origin.override and str(provenance.where).startswith(
        "configs/"
    )
    if (
        is_shipped
        or provenance.where is None
        or (from_recipe.value if from_recipe else False) == value
    ):
        return False
    if isinstance(entry, str):
        return True
    given = [flags[name] for flags in entry.values() if name in flags]
    is_default = len(given) == 1 and isinstance(given[0], int) and not isinstance(given[0], bool)
    return not is_default
