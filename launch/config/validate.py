"""Checks the names, keys, numbers, secrets and ids of a composed configuration, beyond its types.

`allow=[ID]` takes the ids of rules, guards, gates and evidence, and of the other problems that are
listed here.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from launch.config.guards import GuardsConfig
from launch.config.line import override_key
from launch.config.origins import Origins
from launch.config.other_tools import explain_like, explain_name, trainer_flag
from launch.config.ranges import FLAG_RANGES, Range, out_of_range
from launch.config.schema import (
    OWN_RECIPE_KEYS,
    RECIPE_KEYS,
    RecipeConfig,
    RootConfig,
    hints,
    node_class,
)
from launch.errors import did_you_mean, nearest, path_problem
from launch.redact import process_redactor
from launch.worker.finding import Finding, Fix, Way

_PATH_KEYS = ("runs", "cache", "python", "upstream.dir")
_LONGEST_NAME = 200  # bytes of a run's name; its lock and temporary files have longer names
_MOST_KEYS = 6  # keys that a message lists
_RUN_NAME = re.compile(r"\w[\w.+-]*")  # a single folder, not hidden


def validate(config: RootConfig, plain: Mapping[str, Any], origins: Origins) -> list[Finding]:
    """Return every problem of a composed configuration; `plain` is the same as plain data."""
    return list(_node_problems(config, origins)) or [
        *_name_problems(config, origins),
        *_empty_problems(config, origins),
        *_path_problems(config, origins),
        *_recipe_map_problems(config.trainer.recipe, origins),
        *_secret_problems(plain, origins),
        *range_problems(config, origins),
        *unknown_ids(config.allow, origins),
    ]


def _name_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Check that the names of the stage and of the run are single folders: `status`, `logs` and
    `stop` look for runs directly below the stage's folder. Rollouts, benches and searches put their
    runs one level deeper, in a folder of their own.
    """
    stage = origins.stage
    renamed_stage = _as_folder_name(stage)
    cure = Fix(f"rename its file, for example {renamed_stage}.yaml") if renamed_stage else None
    yield from _name_problem("stage", stage, "override stage", cure)
    if config.name is None:
        return
    renamed_run = _as_folder_name(config.name)
    cure = Fix.of("for example {0}", f"name={renamed_run}") if renamed_run else None
    yield from _name_problem("name", config.name, origins.of("name").where, cure)


def _as_folder_name(name: str) -> str | None:
    """Return the name with a dash for what a folder's name may not have; None if that is not enough."""
    folder = re.sub(r"[^\w.+-]+", "-", name)
    return folder if _RUN_NAME.fullmatch(folder) else None


def _name_problem(key: str, name: str, where: str | None, cure: Fix | None) -> Iterator[Finding]:
    length = len(os.fsencode(name))
    if length > _LONGEST_NAME:
        message = f"{key} is {length} bytes long, and may have {_LONGEST_NAME}"
        yield Finding.error("bad_name", message, where)
    elif not _RUN_NAME.fullmatch(name):
        message = f"{key}={name} must be a single folder name: letters, digits and . _ + -"
        yield Finding.error("bad_name", message, where, cure)


def _empty_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Find texts that are set to nothing, as by `model.path=$MODEL` with a variable that the shell
    doesn't have.
    """
    for key, value, _, hint in _walk(config):
        is_empty = isinstance(value, str) and not value.strip() and key != "name"
        where = _where(key, origins) if is_empty else None
        if where is None:
            continue
        cure = "set a value (is a variable of the shell unset?)"
        if type(None) in typing.get_args(hint):
            cure += f"; {key}=null unsets it"
        yield Finding.error("empty_value", f"{key} is empty", where, cure)


def _path_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Find paths that cannot be used: in the home of an unknown user, too long, or without
    permission.
    """
    for key, value, *_ in _walk(config):
        if key not in _PATH_KEYS or value is None:
            continue
        try:
            Path(value).expanduser().exists()
        except (OSError, RuntimeError, ValueError) as error:
            yield path_problem(error, value, origins.of(key).where)


def unknown_key(key: str, where: str | None, cure: Fix | str | None) -> Finding:
    """Return the problem of a key that launch does not have."""
    return Finding.error("unknown_key", f"there is no key '{key}'", where, cure)


def find_unknown_keys(overrides: Sequence[str]) -> Iterator[Finding]:
    """Find all keys of overrides that launch does not have."""
    for override in overrides:
        written_key, _, value = override.partition("=")
        node: type | None = None if written_key.startswith("~") else RootConfig
        parent = ""
        for name in re.split(r"[.\[@]", written_key.lstrip("+")):
            if node is None:
                break
            key = f"{parent}.{name}".lstrip(".")
            fields = hints(node)
            if name not in fields:
                cure = suggest_key(parent, name, list(fields), value, written_key)
                yield unknown_key(key, None, cure)
                break
            parent = key
            node = node_class(fields[name])


def suggest_key(
    parent: str, name: str, siblings: list[str], value: str | None = None, given: str = ""
) -> Fix:
    """Suggest the key that an unknown name stands for: that of another tool's name, else the
    nearest sibling, else the nearest key of another node.

    `given` is the whole key where the unknown name is only its beginning.
    """
    prefix = f"{parent}." if parent else ""
    whole = given or prefix + name
    explained = explain_name(whole, value) or explain_like(whole, value)
    if explained:
        return explained
    near = _nearest_key(prefix, name, siblings)
    if near is not None:
        if not value:
            return Fix(f"did you mean '{near}'?")
        return Fix.of("did you mean '{0}'?", Way((f"{near}={value}",), prefix + name))
    if not parent:
        return trainer_flag(whole, value)
    if len(siblings) <= _MOST_KEYS:
        keys = ", ".join(prefix + sibling for sibling in siblings)
        return Fix(f"keys: {keys}")
    return Fix(f"`launch help keys` lists those of {parent}")


def _nearest_key(prefix: str, name: str, siblings: list[str]) -> str | None:
    """Return the key that is most like a name: a sibling, else one directly below the root's nodes."""
    for sibling in nearest(name, siblings, 1, 0.7):
        return prefix + sibling
    for group, hint in hints(RootConfig).items():
        node = node_class(hint)
        if node is None:
            continue
        for inner in nearest(name, hints(node), 1, 0.8):
            return f"{group}.{inner}"
    return None


def _node_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Find nodes that an interpolation (`data.mix=${recipe}`) replaced by one of another type, and
    values that are missing because `~recipe` removed them.
    """
    for key, value, _, hint in _walk(config):
        if not _has_type(value, hint):
            message = f"{key} is set to another part of the configuration, which is not of its type"
            yield Finding.error("bad_value", message, _where(key, origins), "set its own value")
        elif value == MISSING:
            message = f"'{key}' has no value"
            cure = "set it on the command line, or in the stage file"
            yield Finding.error("missing_value", message, _where(key, origins), cure)


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether a node, or a list of nodes, has its type; of other values, that it is no node."""
    if typing.get_origin(hint) is list:
        if not isinstance(value, list):
            return False
        item_class = node_class(typing.get_args(hint)[0])
        return item_class is None or all(isinstance(item, item_class) for item in value)
    expected = node_class(hint)
    if expected is not None:
        return value is None or isinstance(value, expected)
    return not dataclasses.is_dataclass(value)


def _secret_problems(plain: Mapping[str, Any], origins: Origins) -> Iterator[Finding]:
    """Find secrets in overrides and values.

    `ps` shows a command line, the trainers save their flags in the model, and values become names
    of folders, jobs and projects. An override is checked as it is written and as it is resolved.
    The values of `cluster.` are checked with the batch script.
    """
    redactor = process_redactor()
    for override in origins.overrides:
        key = override_key(override)
        if not key.startswith("cluster") and redactor.redact_argv([override]) != [override]:
            yield _secret_problem(key, f"override {key}")
            return
    checked = {name: plain[name] for name in plain.keys() - {"cluster", "trainer"}}
    for key, value in _walk_texts(checked, ""):
        group, _, name = key.partition(".")
        where = origins.of(key).where or key
        if group == "flags" and redactor.redact_value(name, value) != value:
            yield _secret_problem(key, where)
        elif group != "flags" and redactor.redact_text(value) != value:
            message = (
                f"the value of {key} holds a secret, which names of folders, files, jobs and "
                "projects would show"
            )
            yield Finding.error("secret_on_line", message, where, "use another value")


def _walk_texts(node: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts in plain data with their keys; those of a list have the list's key."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _walk_texts(value, f"{key}.{name}".strip("."))
    elif isinstance(node, list):
        for value in node:
            yield from _walk_texts(value, key)
    elif isinstance(node, str) and key != "stage.description":
        yield key, node


def _secret_problem(key: str, where: str) -> Finding:
    message = (
        f"{key} holds what looks like a secret, which `ps` and the files of the run would show"
    )
    name = key.rpartition(".")[2].lower()
    cure = "set another value"
    if "wandb" in name:
        cure = "remove it, and export WANDB_API_KEY instead"
    elif "token" in name:
        cure = "remove it, and export HF_TOKEN instead"
    return Finding.error("secret_on_line", message, where, cure)


def _recipe_map_problems(recipe: Mapping[str, Any], origins: Origins) -> Iterator[Finding]:
    """Check the map from recipe keys to flags, which a trainer's file or an override of
    `trainer.recipe` sets.
    """
    for key, mapping in recipe.items():
        where = origins.of(f"trainer.recipe.{key}").where
        if key not in RECIPE_KEYS:
            what = "launch itself uses" if key in OWN_RECIPE_KEYS else "the recipe lacks"
            message = f"trainer.recipe.{key} maps a key that {what}"
            yield Finding.error("unknown_key", message, where, did_you_mean(key, RECIPE_KEYS))
        elif not _is_recipe_mapping(mapping):
            expected = "must be a flag, or a map from values to flags"
            message = f"trainer.recipe.{key} {expected}, got {mapping!r}"
            cure = "configs/tulu/trainer/finetune.yaml shows both"
            yield Finding.error("bad_value", message, where, cure)


def _is_recipe_mapping(mapping: object) -> bool:
    """Return whether a recipe key is mapped to a flag, or to a map from values to flags."""
    if isinstance(mapping, str):
        return True
    if not isinstance(mapping, Mapping):
        return False
    return all(isinstance(flags, Mapping) for flags in mapping.values())


def _walk(node: Any, prefix: str = "") -> Iterator[tuple[str, Any, Range | None, Any]]:
    """Yield the key, value, range and type of everything below a node of the configuration, also in
    its lists.
    """
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        key = f"{prefix}{field.name}"
        yield key, value, field.metadata.get("range"), hints(node.__class__)[field.name]
        if dataclasses.is_dataclass(value):
            yield from _walk(value, f"{key}.")
        elif isinstance(value, list):
            for position, item in enumerate(value):
                if dataclasses.is_dataclass(item):
                    yield from _walk(item, f"{key}[{position}].")


def _where(key: str, origins: Origins) -> str | None:
    return origins.of(key.partition("[")[0]).where


def find_numbers(node: Any, prefix: str = "") -> Iterator[tuple[str, float | None, Range]]:
    """Yield the key, value and range of the numbers below a node that have a range."""
    for key, value, allowed, _ in _walk(node, prefix):
        if allowed:
            yield key, value, allowed


def range_problems(config: RootConfig, origins: Origins) -> list[Finding]:
    """Find every number outside its range, with the override or the line that sets it."""
    return [
        out_of_range(key, value, allowed, _where(key, origins))
        for key, value, allowed in find_numbers(config)
        if value is not None and not allowed.contains(value)
    ]


def flag_problem(
    flag: str, recipe: RecipeConfig, key: str | None, value: Any, where: str
) -> Finding | None:
    """Return the problem of a flag of the trainer, which may stand for a key of the recipe; None if
    it may work.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    ranges = {name: range_ for name, _, range_ in find_numbers(recipe)}
    allowed = FLAG_RANGES.get(flag) or ranges.get(key or "")
    if allowed is None or allowed.contains(value):
        return None
    return out_of_range(f"--{flag}", value, allowed, where)


# The lists of rules, each with an `id`, that layers above define. They are imported only when a line
# has an `allow`.
_REGISTERS = (
    ("launch.check.machine.rules", "RULES"),
    ("launch.trials.rollout.gates_across", "GATES"),
)
_WEIGHTS = ("weights", "gradients", "last_update", "saved_weights")
_OTHERS = (
    "base_changed",
    "bf16_sampling",
    "data_small_epoch",
    "flag_over_recipe",
    "import_fails",
    "incomplete_model",
    "model_changed",
    "no_interpreter",
    "other_chat_template",
    "refused_flag",
    "refused_value",
    "validation_trained",
    # of data
    "no_loss_tokens",
    "equal_pairs",
    "loss_on_user",
    "no_end_of_turn",
    "double_bos",
    "pad_is_end",
    "system_dropped",
    "calls_dropped",
    # of pipelines and benches
    "other_tokenizer",
    "other_vocabulary",
    "short_context",
    "bench_global_batch",
    "bench_data",
    # of Slurm
    "unknown_partition",
    "partition_down",
    "time_beyond_partition",
    "unknown_gpu_type",
    "too_many_gpus",
    "too_many_cpus",
    "too_many_nodes",
    "unknown_account",
    "unknown_qos",
    "sbatch_refused",
    "not_mounted",
    "account_not_admitted",
    "qos_not_admitted",
    "gpu_fault",
)


@cache
def allowable_ids() -> frozenset[str]:
    """Return every id that `allow` takes."""
    from launch.worker.expectations import EVIDENCE, STATE

    ids = set(_OTHERS)
    for module, name in _REGISTERS:
        rules = getattr(importlib.import_module(module), name)
        ids.update(rule.id for rule in rules)
    ids.update(field.name for field in dataclasses.fields(GuardsConfig))
    for key in (*STATE, *EVIDENCE, *_WEIGHTS):
        ids |= {f"refuted_{key}", f"unproven_{key}"}
    return frozenset(ids)


def unknown_ids(allow: list[str], origins: Origins) -> Iterator[Finding]:
    """Find the ids in `allow` that turn nothing into a warning."""
    where = origins.of("allow").where
    for id in allow:
        if id not in allowable_ids():
            message = f"allow=[{id}] turns nothing into a warning"
            near = did_you_mean(id, sorted(allowable_ids()))
            cure = near or "use the id that the message ends with"
            yield Finding.error("unknown_id", message, where, cure)
