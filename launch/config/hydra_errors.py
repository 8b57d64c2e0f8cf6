"""Errors of Hydra and OmegaConf, each as one sentence with its place and cure.

tests/config/test_compose.py and tests/config/test_own_files.py have their kinds.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

import yaml
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from launch import resources
from launch.config.line import CommandLine, override_key
from launch.config.origins import GROUPS, Origin, Origins, find_file
from launch.config.own_files import file_problems
from launch.config.validate import suggest_key
from launch.errors import Problem, UserError, did_you_mean

_MEANINGS = {  # OmegaConf's words for a wrong value -> what is wrong with it
    r"Value '(.*)' of type '\w+' could not be converted to Integer": "must be an integer, got '{0}'",
    r"Value '(.*)' of type '\w+' could not be converted to Float": "must be a number, got '{0}'",
    r"Value '(.*)' is not a valid bool": "must be true or false, got '{0}'",
    r"Invalid value '(.*)', expected one of \[(.*)\]": "must be one of {1}, got '{0}'",
    r"is not a ListConfig, list or tuple": "must be a list: [A,B]",
    r"Invalid type assigned: \w+ is not a subclass of \w+. value: (.*)": "has keys of its own, got {0}",
    r"does not support deletion": "cannot be removed: set it to another value",
}
# what Hydra, OmegaConf and PyYAML raise for a configuration that they cannot compose
COMPOSE_ERRORS = (
    *(HydraException, OmegaConfBaseException, yaml.YAMLError),
    *(ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError, OSError),
)


def explain(error: Exception, line: CommandLine, folder: Path | None) -> UserError:
    """Return an error of composing as the user's mistake. `folder`: of the user's own files."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OverrideParseException):
        reason = str(error).splitlines()[0]
        cure = "quote the value: 'key=\"a b\"'"
        return UserError(Problem("unreadable_override", reason, f"override {error.override}", cure))
    origins = line_origins(line, folder)
    problems = file_problems(origins.choices, origins.roots)
    if getattr(error, "errno", None) == errno.ENAMETOOLONG:  # Hydra looks for a file with this name
        problems = [
            Problem(f"unknown_{group}", f"there is no {group} '{option}'", f"override {group}")
            for group, option in origins.choices.items()
            if find_file(group, option, origins.roots) is None
        ]
    return UserError(problems or _explain(error, line, origins, folder))


def line_origins(line: CommandLine, folder: Path | None) -> Origins:
    """Return the origins of a line that is not composed: the groups that it chooses itself."""
    roots = ((folder,) if folder else ()) + (resources.CONFIGS,)
    values = ((override_key(override), override.partition("=")[2].strip("'\"")) for override in line.overrides)
    choices = {key: value for key, value in values if key in GROUPS and value and not value.startswith("{")}
    return Origins(line.overrides, choices, roots)


def _explain(error: Exception, line: CommandLine, origins: Origins, folder: Path | None) -> Problem:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        options = list(error.options or [])
        cure = did_you_mean(option, options) or (f"choose from {', '.join(options)}" if options else None)
        return Problem(f"unknown_{group or 'config'}", f"there is no {group or 'config'} '{option}'", None, cure)
    cause: BaseException | None = error
    if isinstance(error, ConfigCompositionException):
        cause = error.__cause__ or error.__context__
    if isinstance(cause, OmegaConfBaseException):
        key = str(cause.full_key or cause.key or "")
        return _no_tuned(line, folder) if key == "tuned" else _explain_value(cause, origins)
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "You must specify 'stage'" in first_line:
        stages = sorted({path.stem for root in origins.roots for path in (root / "stage").glob("*.yaml")})
        return Problem("no_stage", f"'{line.verb}' needs a stage", None, f"set stage=NAME, one of {', '.join(stages)}")
    if "You must specify" in first_line and line.argv:
        return Problem("incomplete", first_line, None, "set it in the stage file or on the command line")
    if first_line.startswith("Could not override 'tuned'"):
        return _no_tuned(line, folder)
    return Problem("bad_config", first_line)


def _no_tuned(line: CommandLine, folder: Path | None) -> Problem:
    """`tuned=` without its plus, or an overlay that does not exist.

    Hydra reports it where there are overlays, OmegaConf where there are none.
    """
    added = next((override for override in line.argv if override.startswith("+tuned=")), None)
    if added is None:
        return Problem("tuned_is_added", "a stage has no tuned= to replace", "override tuned", "use +tuned=NAME")
    place = f"{folder}/tuned" if folder else "the folder that LAUNCH_CONFIG_DIR names"
    message = f"there is no overlay '{added.partition('=')[2]}' in {place}"
    return Problem("unknown_tuned", message, f"override {added}", "`tune` writes one")


def _explain_value(error: OmegaConfBaseException, origins: Origins) -> Problem:
    key = str(error.full_key or error.key or "")
    text = str(error.msg or error).splitlines()[0]
    source = origins.of(key)
    where = source.where if source.origin != Origin.override else None
    if "not in '" in text or "is not in struct" in text:
        parent, _, name = key.rpartition(".")
        siblings = [str(sibling) for sibling in error.parent_node] if error.parent_node is not None else []
        return Problem("unknown_key", f"there is no key '{key}'", where, suggest_key(parent, name, siblings))
    if type(error).__name__ == "MissingMandatoryValue":
        message = f"'{key}' has no value"
        cure = "set it on the command line, or in the stage file, which may build on another stage (`defaults: [sft]`)"
        return Problem("missing_value", message, origins.choice_file("stage"), cure)
    for pattern, meaning in _MEANINGS.items():
        if key and (match := re.search(pattern, text)):
            return Problem("bad_value", f"{key} {meaning.format(*match.groups())}", where)
    return Problem("bad_value", f"{key}: {text}" if key and key not in text else text, where)
