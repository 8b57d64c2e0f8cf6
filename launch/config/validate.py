"""Checks of a composed configuration beyond its types: names, keys, ranges of numbers, secrets, and
the ids of `allow`.

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
_LONGEST_NAME = 200  # bytes of a run's name; its lock and temporary files have longer ones
_MOST_KEYS = 6  # that a message lists
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
    """Check that the stage's name and the run's are single folders: `status`, `logs` and `stop`
    look for runs directly below the stage's folder. Rollouts, benches and searches put theirs one
    level deeper, in a folder of their own.
    """
    names = {
        "stage": (origins.stage, "override stage"),
        "name": ("run" if config.name is None else config.name, origins.of("name").where),
    }
    for key, (name, where) in names.items():
        flat = re.sub(r"[^\w.+-]+", "-", name)
        cure = (
            Fix.of("for example {0}", f"name={flat}")
            if key == "name"
            else f"rename its file, for example {flat}.yaml"
        )
        if len(os.fsencode(name)) > _LONGEST_NAME:
            message = f"{key} is {len(os.fsencode(name))} bytes long, and may have {_LONGEST_NAME}"
            yield Finding.error("bad_name", message, where)
        elif not _RUN_NAME.fullmatch(name):
            message = f"{key}={name} must be a single folder name: letters, digits and . _ + -"
            yield Finding.error(
                "bad_name", message, where, cure if _RUN_NAME.fullmatch(flat) else None
            )


def _empty_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Find texts that are set to nothing, as by `model.path=$MODEL` with a variable that the shell
    doesn't have.
    """
    for key, value, _, hint in _walk(config):
        is_empty = isinstance(value, str) and not value.strip() and key != "name"
        if is_empty and (where := _where(key, origins)):
            unset = f"; {key}=null unsets it" if type(None) in typing.get_args(hint) else ""
            cure = f"set a value (is a variable of the shell unset?){unset}"
            yield Finding.error("empty_value", f"{key} is empty", where, cure)


def _path_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Find paths that no file can have: of an unknown user's home, or too long; or that may not be
    looked at.
    """
    for key, value, *_ in _walk(config):
        try:
            if key in _PATH_KEYS and value is not None:
                Path(value).expanduser().exists()
        except (OSError, RuntimeError, ValueError) as error:
            yield path_problem(error, value, origins.of(key).where)


def unknown_key(key: str, where: str | None, cure: Fix | str | None) -> Finding:
    """Return the problem of a key that launch does not have."""
    return Finding.error("unknown_key", f"there is no key '{key}'", where, cure)


def find_unknown_keys(overrides: Sequence[str]) -> Iterator[Finding]:
    """Find the keys of a line that launch has not, all of them at once."""
    for override in overrides:
        given, _, value = override.partition("=")
        node: type | None = None if given.startswith("~") else RootConfig
        parent = ""
        for name in re.split(r"[.\[@]", given.lstrip("+")):
            if node is None:
                break
            key, known = f"{parent}.{name}".lstrip("."), hints(node)
            if name not in known:
                yield unknown_key(key, None, suggest_key(parent, name, list(known), value, given))
                break
            parent, node = key, node_class(known[name])


def suggest_key(
    parent: str, name: str, siblings: list[str], value: str | None = None, given: str = ""
) -> Fix:
    """Suggest what the name means elsewhere, else the nearest sibling, else the nearest key in
    another node.

    `given`: the whole key where the unknown name is only its beginning.
    """
    prefix = f"{parent}." if parent else ""
    whole = given or prefix + name
    if meant := explain_name(whole, value) or explain_like(whole, value):
        return meant
    candidates = [prefix + near for near in nearest(name, siblings, 1, 0.7)]
    for field in dataclasses.fields(RootConfig):
        node = node_class(hints(RootConfig)[field.name])
        candidates += (
            [f"{field.name}.{inner}" for inner in nearest(name, hints(node), 1, 0.8)]
            if node
            else []
        )
    if candidates:
        way = [Way((f"{candidates[0]}={value}",), prefix + name)] if value else []
        return Fix.of("did you mean '{0}'?" if way else f"did you mean '{candidates[0]}'?", *way)
    if not parent:
        return trainer_flag(whole, value)
    shown = ", ".join(prefix + sibling for sibling in siblings)
    if len(siblings) <= _MOST_KEYS:
        return Fix(f"keys: {shown}")
    return Fix(f"`launch help keys` lists those of {parent}")


def _node_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Find nodes that an interpolation (`data.mix=${recipe}`) replaced by one of another type, and
    values that are missing as `~recipe` removed them.
    """
    for key, value, _, hint in _walk(config):
        expected = node_class(hint)
        if typing.get_origin(hint) is list:
            item = node_class(typing.get_args(hint)[0])
            is_right = isinstance(value, list) and (
                item is None or all(isinstance(entry, item) for entry in value)
            )
        elif expected is not None:
            is_right = value is None or isinstance(value, expected)
        else:
            is_right = not dataclasses.is_dataclass(value)
        if not is_right:
            message = f"{key} is set to another part of the configuration, which is not of its type"
            yield Finding.error("bad_value", message, _where(key, origins), "set its own value")
        elif value == MISSING:
            cure = "set it on the command line, or in the stage file"
            yield Finding.error(
                "missing_value", f"'{key}' has no value", _where(key, origins), cure
            )


def _secret_problems(plain: Mapping[str, Any], origins: Origins) -> Iterator[Finding]:
    """Find secrets in overrides and values: `ps` shows a command line, the trainers save their
    flags in the model, and values become names of folders, jobs and projects. An override is
    checked as it is written and as it is resolved.

    The values of `cluster.` are checked with the batch script.
    """
    redactor = process_redactor()
    for override in origins.overrides:
        key = override_key(override)
        if not key.startswith("cluster") and redactor.redact_argv([override]) != [override]:
            yield _secret_problem(key, f"override {key}")
            return
    for key, value in _leaves(
        {name: plain[name] for name in plain.keys() - {"cluster", "trainer"}}, ""
    ):
        own, _, name = key.partition(".")
        where = origins.of(key).where or key
        if own == "flags" and redactor.redact_value(name, value) != value:
            yield _secret_problem(key, where)
        elif own != "flags" and redactor.redact_text(value) != value:
            message = (
                f"the value of {key} holds a secret, which names of folders, files, jobs "
                "and "
                "projects would show"
            )
            yield Finding.error("secret_on_line", message, where, "use another value")


def _leaves(node: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts in plain data with their keys; those of a list have the list's."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _leaves(value, f"{key}.{name}".strip("."))
    elif isinstance(node, list):
        for value in node:
            yield from _leaves(value, key)
    elif isinstance(node, str) and key != "stage.description":
        yield key, node


def _secret_problem(key: str, where: str) -> Finding:
    name = key.rpartition(".")[2].lower()
    variable = "WANDB_API_KEY" if "wandb" in name else "HF_TOKEN" if "token" in name else None
    message = (
        f"{key} holds what looks like a secret, which `ps` and the files of the run would show"
    )
    cure = f"remove it, and export {variable} instead" if variable else "set another value"
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
        elif not isinstance(mapping, str) and not (
            isinstance(mapping, Mapping)
            and all(isinstance(flags, Mapping) for flags in mapping.values())
        ):
            message = (
                f"trainer.recipe.{key} must be a flag, or a map from values to flags, got "
                f"{mapping!r}"
            )
            yield Finding.error(
                "bad_value", message, where, "configs/tulu/trainer/finetune.yaml shows both"
            )


def _walk(node: Any, above: str = "") -> Iterator[tuple[str, Any, Range | None, Any]]:
    """Yield what is below a node of the configuration, in its lists too: key, value, range,
    type.
    """
    for entry in dataclasses.fields(node):
        value, key = getattr(node, entry.name), f"{above}{entry.name}"
        yield key, value, entry.metadata.get("range"), hints(node.__class__)[entry.name]
        items = {
            f"{key}[{position}].": item
            for position, item in enumerate(value if isinstance(value, list) else ())
        }
        for inner, child in {f"{key}.": value, **items}.items():
            if dataclasses.is_dataclass(child):
                yield from _walk(child, inner)


def _where(key: str, origins: Origins) -> str | None:
    return origins.of(key.partition("[")[0]).where


def find_numbers(node: Any, above: str = "") -> Iterator[tuple[str, float | None, Range]]:
    """Yield the numbers below a node of the configuration that have a range: key, value, range."""
    return ((key, value, allowed) for key, value, allowed, _ in _walk(node, above) if allowed)


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
    allowed = FLAG_RANGES.get(flag) or next(
        (range_ for name, _, range_ in find_numbers(recipe) if name == key), None
    )
    if (
        allowed is None
        or isinstance(value, bool)
        or not isinstance(value, int | float)
        or allowed.contains(value)
    ):
        return None
    return out_of_range(f"--{flag}", value, allowed, where)


# The lists of rules with an `id` each, which layers above define. They are imported only when a
# line has an `allow`.
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

    registered = (
        rule.id
        for module, name in _REGISTERS
        for rule in getattr(importlib.import_module(module), name)
    )
    guards = (field.name for field in dataclasses.fields(GuardsConfig))
    evidence = (
        f"{verdict}_{key}"
        for key in (*STATE, *EVIDENCE, *_WEIGHTS)
        for verdict in ("refuted", "unproven")
    )
    return frozenset((*registered, *guards, *evidence, *_OTHERS))


def unknown_ids(allow: list[str], origins: Origins) -> Iterator[Finding]:
    """Find the ids in `allow` that turn nothing into a warning."""
    where = origins.of("allow").where
    for id in allow:
        if id not in allowable_ids():
            cure = (
                did_you_mean(id, sorted(allowable_ids())) or "use the id that the message ends with"
            )
            yield Finding.error(
                "unknown_id", f"allow=[{id}] turns nothing into a warning", where, cure
            )
