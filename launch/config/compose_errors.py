"""Explains why a line does not compose, by its overrides and its files compared with the schema.

Hydra's and OmegaConf's own messages have neither place nor cure, so they are not read; of their errors
the class and the key count. Files are read only after an error. tests/config/test_compose.py and
tests/config/test_own_files.py have the kinds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    InterpolationValidationError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from launch import resources
from launch.config import hydra_api
from launch.config.file_checks import GLOBAL_GROUPS, check_chain, parse_file, read_text_file
from launch.config.group_files import find_group_file, find_line, list_layers
from launch.config.line import CommandLine, override_key
from launch.config.mismatches import Mismatch, SettingPath, find_mismatches
from launch.config.nodes import find_hint, node_class
from launch.config.origins import Origin, Origins
from launch.config.other_tools import explain_name, explain_value
from launch.config.schema import RootConfig
from launch.config.unknown_keys import find_unknown_keys, suggest_key, unknown_key
from launch.errors import UserError, nearest
from launch.resources import GROUPS, config_roots, group_options
from launch.worker.finding import Action, Finding, Fix

_REFERENCE = re.compile(r"\$\{([^{}]+)\}")
_ENVIRONMENT = "oc.env:"  # OmegaConf's resolver for variables of the environment
# How to set data or a model of one's own, by the group of configuration files.
_OF_ONES_OWN = {
    "data": "; your own is set as data.mix=FILE",
    "model": "; another one is set as model.path=FOLDER_OR_HUB_ID",
}


def explain(error: Exception, line: CommandLine, argv: Sequence[str]) -> UserError:
    """Return an error of composing as the user's mistakes: all that the line and its files have.

    `argv` are the overrides of the line as Hydra takes them.
    """
    unknown_keys = list(find_unknown_keys(line.overrides))
    with hydra_api.initialized():
        parsed = [hydra_api.parse_override(override) for override in argv]
    unreadable = [
        _unreadable_override(override)
        for override, read in zip(argv, parsed, strict=True)
        if not read
    ]
    if unreadable:
        return UserError(unknown_keys or unreadable)
    values = {override_key(override): override.partition("=")[2] for override in line.overrides}
    origins = _find_origins(values)
    cause = _find_cause(error)
    try:
        for group, option in origins.choices.items():
            if group in values:
                check_chain(group, option, (), None)
    except UserError as problem:
        return problem
    problems = list(_choice_problems(line))
    for override, read in zip(line.overrides, parsed, strict=True):
        assert read is not None
        if _is_closed_to(override, cause):  # its value does not matter
            problems.append(_explain_error(cause, values, origins))
        else:
            problems += _override_problems(override, read, values, origins)
    problems += _file_problems(origins)
    if not problems and not unknown_keys:
        problems = [_explain_error(cause, values, origins)]
    return UserError([*problems, *unknown_keys])


def _find_cause(error: Exception) -> Exception:
    """Return the error of OmegaConf that led to an error of Hydra; any other error as it is."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def _is_closed_to(override: str, cause: Exception) -> bool:
    """Return whether an override sets a key that a map of a trainer does not have."""
    key = override_key(override)
    is_known = find_hint(RootConfig, key) is not None
    if not is_known or not isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return False
    return key == cause.full_key or key.startswith(f"{cause.full_key}.")


def _find_origins(values: Mapping[str, str]) -> Origins:
    """Return the origins of a line: the options of the groups are its own, else those of its stage.

    `values` are those of its overrides, by key.
    """
    given = {}
    for group in GROUPS:
        option = values.get(group, "").strip("'\"")
        if option and not option.startswith("{"):
            given[group] = option
    stage = Origins((), given)
    chosen = {group: stage.chosen_by_stage(group) for group in GROUPS}
    choices = {group: option for group, option in chosen.items() if option}
    overrides = tuple(f"{key}={value}" for key, value in values.items())
    return Origins(overrides, {**choices, **given})


def _choice_problems(line: CommandLine) -> Iterator[Finding]:
    """Find groups whose chosen option has no file, or cannot be chosen like this."""
    if not any(re.match(r"\+{0,2}stage=", override) for override in line.overrides):
        cure = f"set stage=NAME, one of {', '.join(group_options('stage'))}"
        yield Finding.error("no_stage", f"'{line.verb}' needs a stage", None, cure)
    for override in line.overrides:
        key, equals, value = override.partition("=")
        group = key.lstrip("+")
        option = value.strip("'\"")
        if group not in GROUPS or not equals:
            continue
        if key.startswith("+") and group != "tuned":
            message = f"{group} has a value already"
            yield Finding.error("bad_config", message, None, f"write {group}=NAME without a plus")
        elif find_group_file(group, option, config_roots()) is None and "(" not in option:
            yield _unknown_option(group, option)


def _unknown_option(group: str, option: str) -> Finding:
    """Return the problem of a group's option that has no file."""
    options = group_options(group)
    near = nearest(option, options)
    if option and not near:
        near = [other for other in options if option in other or other in option][:3]
    cure: Fix | str | None = explain_value(group, option)
    if cure is None and near:
        places = " or ".join(f"'{{{number}}}'" for number in range(len(near)))
        cure = Fix.of(f"did you mean {places}?", *(f"{group}={other}" for other in near))
    elif cure is None and options:
        cure = f"choose from {', '.join(options)}{_OF_ONES_OWN.get(group, '')}"
    return Finding.error(f"unknown_{group}", f"there is no {group} '{option}'", None, cure)


def _unreadable_override(override: str) -> Finding:
    """Return the problem of an override that Hydra cannot parse."""
    key, _, value = override.partition("=")
    if value.startswith("="):
        cure = Fix.of("write {0}", f"{key}={value.lstrip('=')}")
    else:
        quoted = Fix.of("quote the value: '{0}'", Action((f'{key}="{value}"',)))
        cure = explain_name(key, value) or quoted
    message = "it cannot be read as key=value"
    return Finding.error("unreadable_override", message, f"override {override}", cure)


def _override_problems(
    override: str,
    parsed: hydra_api.ParsedOverride,
    values: Mapping[str, str],
    origins: Origins,
) -> Iterator[Finding]:
    """Find what is wrong with an override, but for a key that launch does not have."""
    key = override_key(override)
    hint = find_hint(RootConfig, key)
    if hint is None or key in GROUPS:
        return
    if parsed.is_sweep:
        message = f"{key} has several values"
        yield Finding.error("bad_config", message, None, "add sweep=true to run each in turn")
    elif "@" in override.partition("=")[0]:
        yield Finding.error("bad_config", f"{key} takes no @", None, f"write {key}=VALUE")
    elif override.startswith("~"):
        yield from _removal_problems(key, origins)
    else:
        path: SettingPath = tuple(int(name) if name.isdigit() else name for name in key.split("."))
        for mismatch in find_mismatches(parsed.value, hint, path):
            yield _explain_mismatch(mismatch, None, values)


def _removal_problems(key: str, origins: Origins) -> Iterator[Finding]:
    """Find why `~key` cannot be: a key of the schema stays, and one without a value has none to
    remove.
    """
    parent = key.rpartition(".")[0]
    if parent and node_class(find_hint(RootConfig, parent)):
        message = f"{key} cannot be removed: set it to another value"
        yield Finding.error("bad_value", message, None, explain_value(key, ""))
        return
    is_set = Origins((), origins.choices).of(key).where or getattr(RootConfig(), key, None)
    if not is_set:
        message = f"{key} has no value that could be removed"
        yield Finding.error("bad_config", message, None, f"leave ~{key} out")


def _file_problems(origins: Origins) -> Iterator[Finding]:
    """Find the keys that launch does not have, and values of another type, in the user's own files."""
    for group, option in origins.choices.items():
        is_global = group in GLOBAL_GROUPS
        hint = RootConfig if is_global else find_hint(RootConfig, group)
        prefix = () if is_global else (group,)
        for path in list_layers(group, option, origins.roots):
            if path.is_relative_to(resources.CONFIGS):
                continue
            data = parse_file(path, read_text_file(path))
            assert isinstance(data, dict)
            data.pop("defaults", None)
            for mismatch in find_mismatches(data, hint, prefix):
                names = [str(name) for name in mismatch.path[len(prefix) :]]
                yield _explain_mismatch(mismatch, f"{path}:{_nearest_line(path, names)}", {})


def _nearest_line(path: Path, names: list[str]) -> int:
    """Return the line of a nested key in a file; of one that `<<` merges, that of its node."""
    lines = (find_line(path, names[:depth]) for depth in range(len(names), 0, -1))
    return next(filter(None, lines), 1)


def _explain_mismatch(mismatch: Mismatch, where: str | None, values: Mapping[str, str]) -> Finding:
    """Return the problem of a key or a value that the schema does not have."""
    key = mismatch.key
    if mismatch.siblings:
        name = str(mismatch.path[-1])
        if find_hint(RootConfig, key):  # `recipe.seed: 3`
            nested = name.replace(".", ": {")
            return unknown_key(key, where, f"a file nests its keys: {nested}: ...")
        suggested = suggest_key(mismatch.parent, name, list(mismatch.siblings))
        return unknown_key(key, where, suggested)
    cure: Fix | str | None = explain_value(key, values.get(key, ""))
    if mismatch.has_keys:
        cure = explain_name(key, values.get(key)) or f"`launch help keys` lists those of {key}"
    return Finding.error("bad_value", f"{key} {mismatch.problem}", where, cure)


def _explain_error(cause: Exception, values: Mapping[str, str], origins: Origins) -> Finding:
    """Return the problem of a line whose overrides and files are of the right types."""
    if not isinstance(cause, OmegaConfBaseException):
        first_line = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        return Finding.error("bad_config", first_line)
    key = str(cause.full_key or cause.key or "")
    if isinstance(cause, MissingMandatoryValue):
        message = f"'{key}' has no value"
        where_to_set = (
            "set it on the command line, or in the stage file, which may build on another stage "
            "(`defaults: [sft]`)"
        )
        return Finding.error("missing_value", message, origins.stage_file, where_to_set)
    source = origins.of(key)
    where = source.where if source.origin != Origin.override else None
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        parent, _, name = key.rpartition(".")
        siblings = [str(sibling) for sibling in cause.parent_node or ()]
        return unknown_key(key, where, suggest_key(parent, name, siblings))
    problem = _reference_problem(cause) if isinstance(cause, InterpolationResolutionError) else None
    if problem:
        cure = explain_value(key, values.get(key, ""))
        return Finding.error("bad_value", f"{key} {problem}", where, cure)
    text = str(cause.msg or cause).splitlines()[0]
    return Finding.error("bad_value", text if key in text else f"{key}: {text}", where)


def _reference_problem(error: InterpolationResolutionError) -> str | None:
    """Return what is wrong with a value that refers to a key or a variable; None if that is unknown."""
    if error.parent_node is None or error.key is None:
        return None
    node: Any = OmegaConf.to_container(error.parent_node, resolve=False)
    written = node[error.key] if isinstance(node, dict | list) else node
    references = _REFERENCE.findall(str(written))
    for reference in references:
        name = reference.removeprefix(_ENVIRONMENT)
        if name != reference and name not in os.environ:
            return f"refers to the variable {name}, which is not set"
        if ":" not in reference and find_hint(RootConfig, reference) is None:
            return f"refers to {reference}, which does not exist"
    if isinstance(error, InterpolationValidationError):
        return "refers to a value that is not of its type"
    is_bare = type(error) is InterpolationResolutionError and ":" not in "".join(references)
    return "refers to itself" if is_bare else None
