"""Builds the flags of a run from what sets them: launch, the recipe, the trainer's file, the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from launch.config.origins import Origin, Origins
from launch.config.recipe_keys import KEYS, MAPPED_KEYS, Precision, recipe_mapping
from launch.config.schema import (
    Device,
    Family,
    RootConfig,
    TrainerConfig,
)
from launch.errors import UserError
from launch.planning.batch_split import Batch
from launch.planning.chat_template import ChatTemplate, needs_begin_token
from launch.planning.flags import BY_LAUNCH, Flag, Flags
from launch.planning.inputs import Inputs
from launch.planning.learnt import key_of_learning, learning_flags
from launch.planning.lora import Lora, recipe_value
from launch.planning.mixture import build_data_flags
from launch.planning.parallel import Parallel
from launch.planning.recipe import map_recipe_key
from launch.planning.rlvr import ray_flags
from launch.planning.rule_facts import PlanFacts, find_by_rules
from launch.planning.user_flags import find_out_of_range, read_user_flags
from launch.rules.engine import flags_with_rule
from launch.worker.finding import Finding

_TRUSTS_REMOTE_CODE = re.compile(r"trust_remote_code\W+(true|t|yes|y|1)\b", re.IGNORECASE)


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
    preset: str | None = None,
) -> Flags:
    """Build all flags of a run.

    `plain` is the configuration as plain data. `paths` has the computed paths: `output` and
    `tokenized_cache`. `preset` is OLMo-core's for the model, which is a flag unless the user sets
    it. A flag that two sources set has the value of the later one: launch's computed
    values, the recipe, the trainer's file, `ray`, the user.

    Raises UserError, with all problems: unsupported_recipe, unmapped_recipe, owned_flag,
    out_of_range, and those of the rules about flags (launch/rules/table.yaml).
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
    flags |= _learning_flags(config, origins)
    flags |= _by_launch(ray_flags(config, parallel.width))

    settings = PlanFacts(config, plain, origins, parallel)
    refused = () if "refused_flag" in config.allow else flags_with_rule(settings, "refused_flag")
    user_flags, user_problems, warnings = read_user_flags(config, plain, origins, flags, refused)
    flags |= user_flags
    flags |= _by_launch(_missing_flags(trainer, flags, preset))

    facts = replace(settings, flags=flags)
    findings = find_by_rules(facts, with_flags=True)
    problems += user_problems
    problems += [finding for finding in findings if finding.stops]
    problems += _values_out_of_range(facts, problems)
    if problems:
        raise UserError(problems)

    warnings = [finding.as_warning() for finding in findings if not finding.stops] + warnings
    warnings += _warn_of_remote_code(flags, inputs.model.reference)
    return Flags(flags, tuple(warnings), subset, mixture, template)


def _by_launch(values: Mapping[str, Any]) -> dict[str, Flag]:
    """Return flags with the values that launch gives them."""
    return {name: Flag(value, BY_LAUNCH) for name, value in values.items()}


def _learning_flags(config: RootConfig, origins: Origins) -> dict[str, Flag]:
    """Return the flags of what is learnt of the rows."""
    provenance = origins.of(key_of_learning(config))
    return {name: Flag(value, provenance) for name, value in learning_flags(config).items()}


def _missing_flags(
    trainer: TrainerConfig, flags: Mapping[str, Flag], preset: str | None
) -> dict[str, Any]:
    """Return the values of the flags that the trainer needs and that nothing else sets."""
    missing: dict[str, Any] = {}
    if preset is not None and "config_name" not in flags:
        missing["config_name"] = preset
    if "add_bos" not in flags and needed_begin_token(trainer, flags):
        missing["add_bos"] = True
    return missing


def _values_out_of_range(facts: PlanFacts, problems: Sequence[Finding]) -> list[Finding]:
    """Find values outside their ranges, but for those that a rule or one of the `problems` is
    about.
    """
    config = facts.config
    judged = flags_with_rule(facts, "out_of_range")
    if "refused_value" in config.allow:
        judged |= flags_with_rule(facts, "refused_value")
    places = {problem.where for problem in problems}
    return find_out_of_range(config, facts.origins, places, judged)


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

    `data_flags` are those of `build_data_flags`.
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
    computed["accumulation"] = Flag(batch.accumulation, BY_LAUNCH)
    computed["output"] = Flag(paths["output"], BY_LAUNCH)
    computed["tokenized_cache"] = Flag(paths["tokenized_cache"], BY_LAUNCH)
    computed["bf16"] = Flag(parallel.precision == Precision.bf16, BY_LAUNCH)

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
    for key in MAPPED_KEYS:
        mapping = recipe_mapping(trainer, key)
        if mapping is None:
            if lora is not None or not key.startswith("lora."):
                problems.append(_unmapped_key(trainer, key))
            continue
        try:
            value = recipe_value(recipe, key, lora)
            if key == "chat_template":
                value = _template_value(trainer, template) if template is not None else None
            reason = KEYS[key].reason(trainer)
            values = map_recipe_key(key, value, mapping, reason, trainer.name)
        except UserError as error:
            problems += error.problems
            continue
        provenance = origins.of(f"recipe.{key}")
        for name, flag_value in values.items():
            flags[name] = Flag(flag_value, provenance)
    return flags, problems


def _unmapped_key(trainer: TrainerConfig, key: str) -> Finding:
    message = f"the table of recipe keys has no {trainer.name} for recipe.{key}"
    cure = "map it to its flag there, or give the reason why the trainer has none"
    return Finding.error("unmapped_recipe", message, KEYS[key].place, cure)


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
    flags = {}
    for name, value in trainer.validation_flags.items():
        flag_value = batch.per_device if value == "{per_device}" else value
        provenance = origins.of(f"trainer.validation_flags.{name}")
        flags[name] = Flag(flag_value, replace(provenance, origin=Origin.launcher))
    return flags


def needed_begin_token(trainer: TrainerConfig, flags: Mapping[str, Flag]) -> bool | None:
    """Return the value of --add_bos that open-instruct requires with the template and the tokenizer
    of these flags; None if it accepts both.
    """
    template = flags.get("chat_template_name")
    tokenizer = flags.get("tokenizer_name_or_path") or flags.get(trainer.launch.get("model", ""))
    if template is None or tokenizer is None:
        return None
    return needs_begin_token(trainer.family, template.value, tokenizer.value)


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
