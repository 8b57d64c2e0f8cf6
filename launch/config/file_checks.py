"""Checks the users' own YAML files before Hydra reads them: encoding, syntax, header, defaults list.

Each mistake is one sentence with its line and cure. tests/config/test_own_files.py has the kinds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from launch.config.group_files import DefaultsEntry, find_group_file, find_line, read_defaults
from launch.config.other_tool_files import recognise_tool
from launch.config.other_tools import explain_name
from launch.config.unknown_keys import unknown_key
from launch.config.yaml_nodes import NotYamlError, YamlLimitError, load_yaml, yaml_positions
from launch.errors import UserError, did_you_mean, refusal
from launch.resources import GROUPS, config_roots, group_options
from launch.worker.finding import Fix

GLOBAL_GROUPS = ("stage", "tuned")  # groups whose files set keys of any node
# The package of a file, which is given among the comments at its top.
HEADER = re.compile(r"(?:\s*#.*\n)*?#\s*@package[^\S\n]+(\S+)")
_PACKAGE = re.compile(r"^#\s*@package\b.*$", re.MULTILINE)


def check_chain(group: str, option: str, chain: tuple[Path, ...], where: str | None) -> None:
    """Check a file, then those in its defaults list. Raises UserError for the first mistake.

    `chain` has the files that lead to it, `where` is the line that names it.
    """
    path = find_group_file(group, option, config_roots())
    if path is None:
        return
    if path in chain:
        cycle = [*chain[chain.index(path) :], path]
        names = " -> ".join(file.stem for file in cycle)
        message = f"the defaults lead back to their start: {names}"
        raise refusal("cyclic_defaults", message, where, "remove this entry")
    _check_file(path, group, read_text_file(path))
    for entry in read_defaults(path):
        if entry.option != "_self_":
            line = f"{path}:{entry.line}"
            _check_entry(entry, group, line)
            check_chain(entry.group or group, entry.option, (*chain, path), line)


def read_text_file(path: Path) -> str:
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
    if group in GLOBAL_GROUPS and not is_global:
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
    """Refuse a file of another tool.

    launch.api.cures plans the equivalent command where the error is printed.

    Raises UserError: other_tool.
    """
    settings = {str(key): value for key, value in document.items()}
    tool = recognise_tool(settings)
    is_own = any(isinstance(settings.get(key), dict | list) for key in (*GROUPS, "recipe"))
    if is_own and tool is None:
        return
    known = [key for key, value in settings.items() if explain_name(key, str(value))]
    if tool is None and len(known) < 2:
        return
    whose = f"a file of {tool}" if tool else "a file of another tool"
    message = f"this is {whose}: {', '.join((known or list(settings))[:3])} are not keys of launch"
    cure = None
    if tool:
        cure = Fix.of("{0} shows what it becomes here", f"$ launch lint {shlex.quote(str(path))}")
    else:
        answers = [f"{key}: {explain_name(key, str(settings[key]))}" for key in known[:3]]
        cure = Fix("; ".join(answers))
    raise refusal("other_tool", message, f"{path}:1", cure)


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
    if entry.option and find_group_file(chosen, entry.option, config_roots()) is None:
        message = f"there is no {chosen} '{entry.option}'"
        options = group_options(chosen)
        cure = did_you_mean(entry.option, options) or f"choose from {', '.join(options)}"
        raise refusal(f"unknown_{chosen}", message, where, cure)
