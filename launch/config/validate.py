"""Checks the names, paths, numbers, secrets and ids of a composed configuration, beyond its types."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from launch.config.allow import find_unknown_ids
from launch.config.line import override_key
from launch.config.nodes import node_class, walk_values
from launch.config.origins import Origins
from launch.config.ranges import find_keys_out_of_range
from launch.config.schema import RootConfig
from launch.errors import path_problem
from launch.redact import process_redactor
from launch.worker.finding import Finding, Fix

_PATH_KEYS = ("runs", "cache", "python", "upstream.dir")
# keys of a path or a hub id: both are letters, digits and marks
_REFERENCE_KEYS = re.compile(
    rf"{'|'.join(map(re.escape, _PATH_KEYS))}|model\.(?:base|sft|dpo|path)|data\.validation"
    r"|data\.mix\[\d+\]\.name|recipe\.(?:chat_template|verifier)"
)
_LONGEST_NAME = 200  # bytes of a run's name; its lock and temporary files have longer names
_RUN_NAME = re.compile(r"\w[\w.+-]*")  # a single folder, not hidden


def validate(config: RootConfig, plain: Mapping[str, Any], origins: Origins) -> list[Finding]:
    """Return every problem of a composed configuration; `plain` is the same as plain data."""
    problems = list(_node_problems(config, origins))
    if problems:  # the other checks need every value to be there and of its type
        return problems
    return [
        *_name_problems(config, origins),
        *_empty_problems(config, origins),
        *_path_problems(config, origins),
        *_secret_problems(plain, origins),
        *find_keys_out_of_range(config, lambda key: _where(key, origins)),
        *find_unknown_ids(config.allow, origins),
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
    for entry in walk_values(config):
        key = entry.key
        value = entry.value
        is_empty = isinstance(value, str) and not value.strip() and key != "name"
        where = _where(key, origins) if is_empty else None
        if where is None:  # a default may be empty
            continue
        cure = "set a value (is a variable of the shell unset?)"
        if type(None) in typing.get_args(entry.hint):
            cure += f"; {key}=null unsets it"
        yield Finding.error("empty_value", f"{key} is empty", where, cure)


def _path_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Find paths that cannot be used: in the home of an unknown user, too long, without permission,
    or with characters that libraries read as more than a path.
    """
    for entry in walk_values(config):
        if isinstance(entry.value, str) and _REFERENCE_KEYS.fullmatch(entry.key):
            path = entry.value
            if entry.key in ("runs", "cache"):  # the working folder may have such a name too
                path = os.path.abspath(path)  # noqa: PTH100 - a Path would collapse it
            reason = odd_path_reason(path, entry.key)
            if reason:
                shown = path.encode("unicode_escape").decode("ascii")
                where = origins.of(entry.key).where
                yield path_problem(ValueError(reason), shown, where)
                continue
        if entry.key not in _PATH_KEYS or entry.value is None:
            continue
        try:
            Path(entry.value).expanduser().exists()
        except (OSError, RuntimeError, ValueError) as error:
            yield path_problem(error, entry.value, origins.of(entry.key).where)


def odd_path_reason(path: str, key: str = "") -> str | None:
    """Return why a library would read a path as more than a path; None if none does.

    Allowed are letters, digits, marks, punctuation, symbols and the space of any script. `::` chains
    file systems and `://` begins an address (fsspec); a line break ends the name of a file in
    datasets' patterns; PYTHONPATH is cut at each `:`.
    """
    for char in path:
        if char != " " and unicodedata.category(char)[0] not in "LMNPS":
            return f"it holds the character {char!a}"
    separators = ["::"]
    if not key.startswith("data."):  # an address of data is refused for itself
        separators.append("://")
    if key == "upstream.dir":
        separators.append(":")
    for separator in separators:
        if separator in path:
            return f"it holds {separator!r}, which separates paths"
    return None


def _node_problems(config: RootConfig, origins: Origins) -> Iterator[Finding]:
    """Find nodes that an interpolation (`data.mix=${recipe}`) replaced by one of another type, and
    values that are missing because `~recipe` removed them.
    """
    for entry in walk_values(config):
        key = entry.key
        value = entry.value
        if not _has_type(value, entry.hint):
            message = f"{key} is set to another part of the configuration, which is not of its type"
            yield Finding.error("bad_value", message, _where(key, origins), "set its own value")
        elif value == MISSING:
            message = f"'{key}' has no value"
            cure = "set it on the command line, or in the stage file"
            yield Finding.error("missing_value", message, _where(key, origins), cure)


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether the value of a node, or each one of a list of nodes, has the node's type, and
    whether any other value is not a node.
    """
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


def _where(key: str, origins: Origins) -> str | None:
    """Return the override or the line that sets a key; for an entry of a list, its list."""
    return origins.of(key.partition("[")[0]).where
