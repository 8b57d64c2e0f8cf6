"""Explains why a line does not compose: errors of Hydra and OmegaConf, and of the user's YAML files.

Each is one sentence with its place and cure. Hydra's own messages have neither, and some are
tracebacks. Files are read only after an error. tests/config/test_compose.py and tests/config/test_own_files.py
have the kinds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from launch.config.group_files import DefaultsEntry, find_file, find_line, read_defaults
from launch.config.line import CommandLine, override_key
from launch.config.origins import Origin, Origins
from launch.config.other_tools import explain_name, explain_value, translate
from launch.config.unknown_keys import find_unknown_keys, suggest_key, unknown_key
from launch.config.yaml_nodes import NotYamlError, YamlLimitError, load_yaml, yaml_positions
from launch.errors import UserError, did_you_mean, nearest, refusal
from launch.resources import GROUPS, config_roots, group_options
from launch.worker.finding import Finding, Fix, Way

# What is wrong with a value, by a pattern of OmegaConf's message.
_MEANINGS = {
    r"Value '(.*)' of type '\w+' could not be converted to Integer": "must be an integer, got "
    "'{0}'",
    r"Value '(.*)' of type '\w+' could not be converted to Float": "must be a number, got '{0}'",
    r"Value '(.*)' is not a valid bool": "must be true or false, got '{0}'",
    r"Invalid value '(.*)', expected one of \[(.*)\]": "must be one of {1}, got '{0}'",
    r"is not a ListConfig, list or tuple": "must be a list: [A,B]",
    r"Invalid type assigned: \w+ is not a subclass of \w+. value: (.*)": "has keys of its own, got "
    "{0}",
    r"does not support deletion": "cannot be removed: set it to another value",
    r"is not Optional": "must have a value, got null",
    r"Cannot merge DictConfig with": "has keys of its own, got a list",
    r"Cannot assign (\w+) to Dict": "has keys of its own, got a single value",
    r"Value (.*) \(\w+\) is not a valid input for <enum": "must be a single word, got {0}",
    r"Cannot convert '\w+' to string: '(.{1,60})": "must be a text, got {0}",
    r"Interpolation key '(.*)' not found": "refers to {0}, which does not exist",
    r"Environment variable '(.*)' not found": "refers to the variable {0}, which is not set",
    r"Recursive interpolation": "refers to itself",
}
# What is wrong with a line and what to do, by a pattern of Hydra's message.
_COMPOSING = {
    r"^Sweep parameters '(?P<key>[^=]+)=": (
        "{key} has several values",
        "add sweep=true to run each in turn",
    ),
    r"^Multiple values for (?P<key>\w+)\.": (
        "{key} has a value already",
        "write {key}=NAME without a plus",
    ),
    r"^Override (?P<key>[^@\s]+)@\S* looks like": ("{key} takes no @", "write {key}=VALUE"),
    r"^Could not delete from config\. '(?P<key>.+)' ": (
        "{key} has no value that could be removed",
        "leave ~{key} out",
    ),
}
# How to set data or a model of one's own, by the group of configuration files.
_OF_ONES_OWN = {
    "data": "; your own is set as data.mix=FILE",
    "model": "; another one is set as model.path=FOLDER_OR_HUB_ID",
}


def explain(error: Exception, line: CommandLine) -> UserError:
    """Return an error of composing as the user's mistake, with all unknown keys of the line."""
    unknown_keys = list(find_unknown_keys(line.overrides))
    if isinstance(error, OverrideParseException):
        return UserError(unknown_keys or _unreadable_override(str(error.override)))
    values = {override_key(override): override.partition("=")[2] for override in line.overrides}
    chosen = {}
    for group in GROUPS:
        option = values.get(group, "")
        if option and not option.startswith("{"):
            chosen[group] = option.strip("'\"")
    try:
        for group, option in chosen.items():
            _check_chain(group, option, (), None)
    except UserError as problem:
        return problem
    cause = _explain(error, line, values, Origins(line.overrides, chosen))
    if any(cause.message == problem.message for problem in unknown_keys):
        return UserError(unknown_keys)
    return UserError([cause, *unknown_keys])


def _unreadable_override(override: str) -> Finding:
    """Return the problem of an override that Hydra cannot parse."""
    key, _, value = override.partition("=")
    if value.startswith("="):
        cure = Fix.of("write {0}", f"{key}={value.lstrip('=')}")
    else:
        quoted = Fix.of("quote the value: '{0}'", Way((f'{key}="{value}"',)))
        cure = explain_name(key, value) or quoted
    message = "it cannot be read as key=value"
    return Finding.error("unreadable_override", message, f"override {override}", cure)


def _unknown_option(missing_file: str) -> Finding:
    """Return the problem of a group's option that has no file: `stage/my_stage`."""
    folder, _, option = missing_file.rpartition("/")
    group = folder.partition("/")[0] or "config"
    message = f"there is no {group} '{option}'"
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
    return Finding.error(f"unknown_{group}", message, None, cure)


def _explain(
    error: Exception, line: CommandLine, values: Mapping[str, str], origins: Origins
) -> Finding:
    """Return the problem of a line whose files are right.

    `values` are those of its overrides, by key.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _unknown_option(error.missing_cfg_file)
    is_wrapped = isinstance(error, ConfigCompositionException)
    cause = error.__cause__ or error.__context__ if is_wrapped else error
    if isinstance(cause, OmegaConfBaseException):
        return _explain_value(cause, values, origins)
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "You must specify 'stage'" in first_line:
        cure = f"set stage=NAME, one of {', '.join(group_options('stage'))}"
        return Finding.error("no_stage", f"'{line.verb}' needs a stage", None, cure)
    if "You must specify" in first_line:
        cure = "set it in the stage file or on the command line"
        return Finding.error("incomplete", first_line, None, cure)
    for pattern, (message, cure) in _COMPOSING.items():
        match = re.search(pattern, first_line)
        if match is not None:
            key = match["key"]
            return Finding.error("bad_config", message.format(key=key), None, cure.format(key=key))
    return Finding.error("bad_config", first_line)


def _explain_value(
    error: OmegaConfBaseException, values: Mapping[str, str], origins: Origins
) -> Finding:
    """Return the problem of a value that OmegaConf rejects."""
    key = str(error.full_key or error.key or "")
    text = str(error.msg or error).splitlines()[0]
    source = origins.of(key)
    where = source.where if source.origin != Origin.override else None
    if "not in '" in text or "is not in struct" in text:
        parent, _, name = key.rpartition(".")
        siblings = []
        if error.parent_node is not None:
            siblings = [str(sibling) for sibling in error.parent_node]
        return unknown_key(key, where, suggest_key(parent, name, siblings))
    if type(error).__name__ == "MissingMandatoryValue":
        message = f"'{key}' has no value"
        where_to_set = (
            "set it on the command line, or in the stage file, which may build on another stage "
            "(`defaults: [sft]`)"
        )
        return Finding.error("missing_value", message, origins.stage_file, where_to_set)
    key = key or "".join(re.findall(r"^field '([\w.]+)'", text))
    if not key:
        return Finding.error("bad_value", text, where)
    for pattern, meaning in _MEANINGS.items():
        match = re.search(pattern, text)
        if match is None:
            continue
        message = f"{key} {meaning.format(*match.groups())}"
        cure: Fix | str | None = explain_value(key, values.get(key, ""))
        if "keys of its own" in meaning:
            cure = explain_name(key, values.get(key)) or f"`launch help keys` lists those of {key}"
        return Finding.error("bad_value", message, where, cure)
    return Finding.error("bad_value", text if key in text else f"{key}: {text}", where)


_GLOBAL_GROUPS = ("stage", "tuned")  # groups whose files set keys of any node
# The package of a file, which is given among the comments at its top.
HEADER = re.compile(r"(?:\s*#.*\n)*?#\s*@package[^\S\n]+(\S+)")
_PACKAGE = re.compile(r"^#\s*@package\b.*$", re.MULTILINE)


def _check_chain(group: str, option: str, chain: tuple[Path, ...], where: str | None) -> None:
    """Check a file, then those in its defaults list. Raises UserError for the first mistake.

    `chain` has the files that lead to it, `where` is the line that names it.
    """
    path = find_file(group, option, config_roots())
    if path is None:
        return
    if path in chain:
        cycle = [*chain[chain.index(path) :], path]
        names = " -> ".join(file.stem for file in cycle)
        message = f"the defaults lead back to their start: {names}"
        raise refusal("cyclic_defaults", message, where, "remove this entry")
    _check_file(path, group, read_text(path))
    for entry in read_defaults(path):
        if entry.option != "_self_":
            line = f"{path}:{entry.line}"
            _check_entry(entry, group, line)
            _check_chain(entry.group or group, entry.option, (*chain, path), line)


def read_text(path: Path) -> str:
    """Return the text of a file. Raises UserError: unreadable_file, not_utf8."""
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise refusal("unreadable_file", message, str(path), "check its permissions") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise refusal("not_utf8", message, f"{path}:{line}", "save the file as UTF-8") from None


def parse_file(path: Path, text: str) -> object:
    """Return the plain data of a file. A file whose size, nesting or aliases would take its readers
    too long is refused.

    Raises UserError: bad_yaml, yaml_limit.
    """
    try:
        document = load_yaml(text)
        positions = yaml_positions(text)
    except YamlLimitError as error:
        message = f"the file is refused: {error.reason}"
        cure = "write out what is needed of it"
        raise refusal("yaml_limit", message, f"{path}:{error.line}", cure) from None
    except NotYamlError as error:
        # Hydra's reader accepts some of these files, such as one with half of a character pair
        message, cure = _explain_syntax(error, text)
        raise refusal("bad_yaml", message, f"{path}:{error.line}", cure) from None
    if positions.repeated:
        key = positions.repeated[0]
        message = f"the key '{'.'.join(key)}' is set twice"
        raise refusal("bad_yaml", message, f"{path}:{positions.of(key)}", "remove one")
    return document


def _explain_syntax(error: NotYamlError, text: str) -> tuple[str, str]:
    """Return message and cure of an error of the YAML parser."""
    problem = error.reason
    line = error.line
    if isinstance(error.__cause__, yaml.reader.ReaderError):
        return f"character {error.__cause__.character:#x} cannot be in a YAML file", "remove it"
    lines = text.splitlines()
    content = lines[line - 1] if line <= len(lines) else ""
    indentation = content[: len(content) - len(content.lstrip())]
    if "\t" in indentation:
        return "a tab indents this line", "YAML takes spaces only: replace it with two spaces"
    if "mapping values are not allowed" in problem or "did not find expected key" in problem:
        message = f"'{content.strip()}' is indented differently from the line above"
        cure = "give the keys of a node the same indentation; quote a value with ': ' in it"
        return message, cure
    if "could not determine a constructor" in problem:
        return f"the tag in '{content.strip()}' is not supported", "write plain text, in quotes"
    if line > len(lines) or not content.strip():
        message = f"the file ends too early: {problem}"
        return message, "close the bracket or quote that is still open"
    return f"'{content.strip()}' is not YAML: {problem}", "quote the value, or fix this line"


def _check_file(path: Path, group: str, text: str) -> None:
    """Check the keys of a file, and the comment with its package.

    Raises UserError: bad_yaml, yaml_limit, no_global_header, unknown_key, bad_defaults.
    """
    document = parse_file(path, text)
    if document is not None and not isinstance(document, dict):
        message = "the file must be a map of keys"
        raise refusal("bad_yaml", message, f"{path}:1", "write KEY: VALUE lines")
    if not document:
        cure = f"copy the keys of a shipped {group}"
        raise refusal("bad_yaml", "the file has no keys", str(path), cure)
    header = HEADER.match(text)
    is_global = header is not None and header[1] == "_global_"
    if group in _GLOBAL_GROUPS and not is_global:
        _refuse_file_of_other_tool(path, document)
        other = _PACKAGE.search(text)
        line = text.count("\n", 0, other.start()) + 1 if other else 1
        message = f"the line `# @package _global_` is {'something else' if other else 'missing'}"
        cure = "put it at the top of the file"
        raise refusal("no_global_header", message, f"{path}:{line}", cure)
    for key in document:
        if not isinstance(key, str):
            where = f"{path}:{find_line(path, [str(key)]) or 1}"
            raise UserError(unknown_key(str(key), where, "remove it"))
    defaults = document.get("defaults")
    if defaults is not None and not isinstance(defaults, list):
        where = f"{path}:{find_line(path, ['defaults'])}"
        message = f"defaults must be a list, got '{defaults}'"
        raise refusal("bad_defaults", message, where, "write `- sft` and `- _self_`")


def _refuse_file_of_other_tool(path: Path, document: Mapping[Any, Any]) -> None:
    """Refuse a file of another tool, with its settings as overrides.

    Raises UserError: no_global_header.
    """
    settings = {str(key): value for key, value in document.items()}
    if any(isinstance(document.get(key), dict | list) for key in (*GROUPS, "recipe")):
        return
    known = [key for key, value in settings.items() if explain_name(key, str(value))]
    if len(known) < 2:
        return
    message = f"{', '.join(known[:3])} are keys of another tool"
    overrides, left_out = translate(settings)
    sentence = "what they are here: {0}"
    if left_out:
        sentence += f", which leaves out {', '.join(left_out)}"
    cure = Fix.of(sentence, f"$ launch plan {shlex.join(overrides)}")
    raise refusal("no_global_header", message, f"{path}:1", cure)


def _check_entry(entry: DefaultsEntry, group: str, where: str) -> None:
    """Check an entry of the defaults list of a file of `group`. Raises UserError: bad_defaults,
    unknown_GROUP.
    """
    chosen = entry.group or group
    if not entry.option and not entry.key:
        raise refusal("bad_defaults", "this is not an entry of a defaults list", where, "remove it")
    if chosen not in GROUPS:
        cure = did_you_mean(chosen, GROUPS) or f"groups: {', '.join(GROUPS)}"
        raise refusal("bad_defaults", f"there is no group '{chosen}'", where, cure)
    if chosen != group and not entry.key.startswith("override "):
        cure = f"write `override /{chosen}: {entry.option}`"
        raise refusal("bad_defaults", f"{chosen} is chosen already", where, cure)
    if entry.option and find_file(chosen, entry.option, config_roots()) is None:
        message = f"there is no {chosen} '{entry.option}'"
        options = group_options(chosen)
        cure = did_you_mean(entry.option, options) or f"choose from {', '.join(options)}"
        raise refusal(f"unknown_{chosen}", message, where, cure)
