"""What is wrong with a line that does not compose: errors of Hydra and OmegaConf, and of the YAML files behind it.

Each is one sentence with its place and cure; Hydra's own name neither, and some are tracebacks. Files are read only
after an error. tests/config/test_compose.py and tests/config/test_own_files.py have the kinds.
"""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from launch import resources
from launch.config.line import CommandLine, override_key
from launch.config.origins import GROUPS, Origin, Origins, find_file
from launch.config.other_tools import explain_name, explain_value, translate
from launch.config.schema import RootConfig, hints
from launch.config.validate import suggest_key
from launch.config.yaml_nodes import NotYamlError, YamlLimitError, load_yaml, read_yaml, yaml_positions
from launch.errors import Cure, Problem, UserError, Way, did_you_mean, nearest

_MEANINGS = {  # OmegaConf's words for a wrong value -> what is wrong with it
    r"Value '(.*)' of type '\w+' could not be converted to Integer": "must be an integer, got '{0}'",
    r"Value '(.*)' of type '\w+' could not be converted to Float": "must be a number, got '{0}'",
    r"Value '(.*)' is not a valid bool": "must be true or false, got '{0}'",
    r"Invalid value '(.*)', expected one of \[(.*)\]": "must be one of {1}, got '{0}'",
    r"is not a ListConfig, list or tuple": "must be a list: [A,B]",
    r"Invalid type assigned: \w+ is not a subclass of \w+. value: (.*)": "has keys of its own, got {0}",
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
_COMPOSING = {  # Hydra's words for a line that does not compose -> what is wrong with it, and what to do
    r"^Sweep parameters '(?P<key>[^=]+)=": ("{key} has several values", "add sweep=true to run each in turn"),
    r"^Multiple values for (?P<key>\w+)\.": ("{key} has a value already", "write {key}=NAME without a plus"),
    r"^Override (?P<key>[^@\s]+)@\S* looks like": ("{key} takes no @", "write {key}=VALUE"),
    r"^Could not delete from config\. '(?P<key>.+)' ": ("{key} has no value that could be removed", "leave ~{key} out"),
}
_OF_ONES_OWN = {
    "data": "; your own is set as data.mix=FILE",
    "model": "; another one is set as model.path=FOLDER_OR_HUB_ID",
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
        key, _, value = str(error.override).partition("=")
        quoted = Cure("quote the value: '{0}'", Way((f'{key}="{value}"',)))
        doubled = Cure("write {0}", f"{key}={value.lstrip('=')}") if value.startswith("=") else None
        cure = doubled or explain_name(key, value) or quoted
        return UserError(
            Problem("unreadable_override", "it cannot be read as key=value", f"override {error.override}", cure)
        )
    origins = line_origins(line, folder)
    problems = file_problems(origins.choices, origins.roots)
    if getattr(error, "errno", None) == errno.ENAMETOOLONG:  # Hydra looks for a file with this name
        problems = [
            Problem(f"unknown_{group}", f"there is no {group} '{option}'", f"override {group}")
            for group, option in origins.choices.items()
            if find_file(group, option, origins.roots) is None
        ]
    return UserError(problems or [_explain(error, line, origins, folder), *_other_keys(error, line)])


def _other_keys(error: Exception, line: CommandLine) -> Iterator[Problem]:
    """Yield the problems of the other keys that launch has not: Hydra stops at the first one."""
    cause, known = error.__cause__ or error, [*hints(RootConfig), *GROUPS]
    first = str(getattr(cause, "full_key", ""))
    for key, value in ((override_key(override), override.partition("=")[2]) for override in line.overrides):
        if first and "." not in key and key not in (first, "hydra", *known):
            yield Problem("unknown_key", f"there is no key '{key}'", None, suggest_key("", key, known, value))


def line_origins(line: CommandLine, folder: Path | None) -> Origins:
    """Return the origins of a line that is not composed: the groups that it chooses itself."""
    values = ((override_key(override), override.partition("=")[2].strip("'\"")) for override in line.overrides)
    choices = {key: value for key, value in values if key in GROUPS and value and not value.startswith("{")}
    return Origins(line.overrides, choices, config_roots(folder))


def config_roots(folder: Path | None) -> tuple[Path, ...]:
    """Return the folders that hold the groups: the user's, if there is one, and the shipped one."""
    return ((folder,) if folder else ()) + (resources.CONFIGS,)


def _explain(error: Exception, line: CommandLine, origins: Origins, folder: Path | None) -> Problem:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        options = list(error.options or [])
        name = group.partition("/")[0] or "config"
        parts = [other for other in options if option and (option in other or other in option)]
        near = [f"{name}={other}" for other in nearest(option, options) or parts[:3]]
        listed = f"choose from {', '.join(options)}{_OF_ONES_OWN.get(name, '')}" if options else None
        places = " or ".join("'{" + str(place) + "}'" for place in range(len(near)))
        named = explain_value(name, option) or (Cure(f"did you mean {places}?", *near) if near else listed)
        return Problem(f"unknown_{name}", f"there is no {name} '{option}'", None, named)
    cause: BaseException | None = error
    if isinstance(error, ConfigCompositionException):
        cause = error.__cause__ or error.__context__
    if isinstance(cause, OmegaConfBaseException):
        key = str(cause.full_key or cause.key or "")
        return _no_tuned(line, folder) if key == "tuned" else _explain_value(cause, origins)
    return _explain_text((str(error).strip() or type(error).__name__).splitlines()[0], line, origins, folder)


def _explain_text(first_line: str, line: CommandLine, origins: Origins, folder: Path | None) -> Problem:
    """Return the problem of an error whose kind only its text tells."""
    if "You must specify 'stage'" in first_line:
        stages = sorted({path.stem for root in origins.roots for path in (root / "stage").glob("*.yaml")})
        return Problem("no_stage", f"'{line.verb}' needs a stage", None, f"set stage=NAME, one of {', '.join(stages)}")
    if "You must specify" in first_line and line.argv:
        return Problem("incomplete", first_line, None, "set it in the stage file or on the command line")
    if first_line.startswith("Config group override must be"):
        chosen = (override.partition("=") for override in line.overrides if override_key(override) in ("", *GROUPS))
        odd = (part for part in chosen if not re.match(r"(?!null$)[A-Za-z]", part[2]))
        group, _, value = next(odd, ("", "", ""))
        cure = explain_value(group, value) or "set its name"
        return Problem("bad_value", f"{group}={value} must be the name of a file of configs/tulu", None, cure)
    for pattern, (message, cure) in _COMPOSING.items():
        if match := re.search(pattern, first_line):
            return Problem("bad_config", message.format(**match.groupdict()), None, cure.format(**match.groupdict()))
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
        values = {override_key(override): override.partition("=")[2] for override in origins.overrides}
        given = next((given for given in values if given == key or given.startswith(f"{key}.")), key)
        cure = suggest_key(parent, name, siblings, values.get(given), given)
        return Problem("unknown_key", f"there is no key '{key}'", where, cure)
    if type(error).__name__ == "MissingMandatoryValue":
        message = f"'{key}' has no value"
        how = "set it on the command line, or in the stage file, which may build on another stage (`defaults: [sft]`)"
        return Problem("missing_value", message, origins.choice_file("stage"), how)
    key = key or "".join(re.findall(r"^field '([\w.]+)'", text))
    for pattern, meaning in _MEANINGS.items():
        if key and (match := re.search(pattern, text)):
            message = f"{key} {meaning.format(*match.groups())}"
            value = next((text.partition("=")[2] for text in origins.overrides if override_key(text) == key), None)
            is_node = "keys of its own" in meaning
            meant = explain_name(key, value) if is_node else explain_value(key, value or "")
            listed = f"`launch help keys` lists those of {key}" if is_node else None
            return Problem("bad_value", message, where, meant or listed)
    return Problem("bad_value", f"{key}: {text}" if key and key not in text else text, where)


_GLOBAL_GROUPS = ("stage", "tuned")  # their files set keys of any node
HEADER = re.compile(r"(?:\s*#.*\n)*?#\s*@package[^\S\n]+(\S+)")  # among the comments at the top of a file
_PACKAGE = re.compile(r"^#\s*@package\b.*$", re.MULTILINE)


def file_problems(choices: Mapping[str, str], roots: Sequence[Path]) -> list[Problem]:
    """Return the problems of the files that `choices` (group -> option) name, and of those that these build on.

    `roots`: the folders that hold the groups, the user's first.
    """
    try:
        for group, option in choices.items():
            _check_chain(group, option, roots, (), None)
    except UserError as error:
        return list(error.problems)
    return []


def _check_chain(group: str, option: str, roots: Sequence[Path], chain: tuple[Path, ...], where: str | None) -> None:
    """Check a file, then those in its defaults list. Raises UserError for the first mistake.

    `chain`: the files that lead to it; `where`: the line that names it.
    """
    path = find_file(group, option, roots)
    if path is None:
        return
    if path in chain:
        names = " -> ".join(each.stem for each in (*chain[chain.index(path) :], path))
        message = f"the defaults lead back to their start: {names}"
        raise UserError(Problem("cyclic_defaults", message, where, "remove this entry"))
    text = _read_text(path)
    document = _parse(path, text)
    for position, entry in enumerate(_read_defaults(path, group, text, document)):
        line = f"{path}:{yaml_positions(text).of(('defaults', str(position)))}"
        for inner_group, inner_option in _read_entry(entry, group, line, roots):
            _check_chain(inner_group, inner_option, roots, (*chain, path), line)


def check_limits(path: Path, text: str) -> None:
    """Refuse a file that is not YAML, or whose size, nesting or aliases would keep its readers busy.

    Raises UserError: bad_yaml, yaml_limit.
    """
    try:
        read_yaml(text)
    except YamlLimitError as error:
        cure = "write out what is needed of it"
        raise UserError(
            Problem("yaml_limit", f"the file is refused: {error.reason}", f"{path}:{error.line}", cure)
        ) from None
    except NotYamlError as error:  # Hydra's reader accepts some of it, as the escape of half a character
        raise UserError(Problem("bad_yaml", *_explain_syntax(error, text, path))) from None


def _read_text(path: Path) -> str:
    """Raises UserError: unreadable_file, not_utf8."""
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise UserError(Problem("unreadable_file", message, str(path), "check its permissions")) from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise UserError(Problem("not_utf8", message, f"{path}:{line}", "save the file as UTF-8")) from None


def _parse(path: Path, text: str) -> object:
    """Raises UserError: bad_yaml, yaml_limit."""
    check_limits(path, text)
    try:
        document, positions = load_yaml(text), yaml_positions(text)
    except NotYamlError as error:
        raise UserError(Problem("bad_yaml", *_explain_syntax(error, text, path))) from None
    if positions.repeated:
        key = positions.repeated[0]
        message, where = f"the key '{'.'.join(key)}' is set twice", f"{path}:{positions.of(key)}"
        raise UserError(Problem("bad_yaml", message, where, "remove one"))
    return document


def _explain_syntax(error: NotYamlError, text: str, path: Path) -> tuple[str, str, str]:
    """Return message, place and cure of an error of the YAML parser."""
    problem, line = error.reason, error.line
    if isinstance(error.__cause__, yaml.reader.ReaderError):
        return f"character {error.__cause__.character:#x} cannot be in a YAML file", f"{path}:{line}", "remove it"
    lines = text.splitlines()
    content = lines[line - 1] if line <= len(lines) else ""
    indentation = content[: len(content) - len(content.lstrip())]
    if "\t" in indentation:
        return "a tab indents this line", f"{path}:{line}", "YAML takes spaces only: replace it with two spaces"
    if "mapping values are not allowed" in problem or "did not find expected key" in problem:
        message = f"'{content.strip()}' is indented differently from the line above"
        return message, f"{path}:{line}", "give the keys of a node the same indentation; quote a value with ': ' in it"
    if "could not determine a constructor" in problem:
        return f"the tag in '{content.strip()}' is not supported", f"{path}:{line}", "write plain text, in quotes"
    if line > len(lines) or not content.strip():
        return f"the file ends too early: {problem}", f"{path}:{line}", "close the bracket or quote that is still open"
    return f"'{content.strip()}' is not YAML: {problem}", f"{path}:{line}", "quote the value, or fix this line"


def _read_defaults(path: Path, group: str, text: str, document: object) -> list[object]:
    """Return the defaults list of a file. Raises UserError: bad_yaml, no_global_header, unknown_key, bad_defaults."""
    if document is not None and not isinstance(document, dict):
        raise UserError(Problem("bad_yaml", "the file must be a map of keys", f"{path}:1", "write KEY: VALUE lines"))
    if not document:
        raise UserError(Problem("bad_yaml", "the file has no keys", str(path), f"copy the keys of a shipped {group}"))
    header = HEADER.match(text)
    if group in _GLOBAL_GROUPS and not (header and header[1] == "_global_"):
        foreign = [f"{key}" for key, value in document.items() if explain_name(f"{key}", f"{value}")]
        if len(foreign) > 1 and not any(isinstance(document.get(key), dict | list) for key in (*GROUPS, "recipe")):
            message = f"{', '.join(foreign[:3])} are keys of another tool"
            overrides, left_out = translate({f"{key}": value for key, value in document.items()})
            without = f", which leaves out {', '.join(left_out)}" if left_out else ""
            advice = Cure(f"what they are here: {{0}}{without}", f"$ launch plan {shlex.join(overrides)}")
            raise UserError(Problem("no_global_header", message, f"{path}:1", advice))
        other = _PACKAGE.search(text)
        line = text.count("\n", 0, other.start()) + 1 if other else 1
        message = f"the line `# @package _global_` is {'something else' if other else 'missing'}"
        raise UserError(Problem("no_global_header", message, f"{path}:{line}", "put it at the top of the file"))
    odd = next((key for key in document if not isinstance(key, str)), None)
    if odd is not None:
        where = f"{path}:{_key_line(text, odd)}"
        raise UserError(Problem("unknown_key", f"there is no key '{odd}'", where, "remove it"))
    defaults = document.get("defaults")
    if defaults is not None and not isinstance(defaults, list):
        where = f"{path}:{_key_line(text, 'defaults')}"
        message = f"defaults must be a list, got '{defaults}'"
        raise UserError(Problem("bad_defaults", message, where, "write `- sft` and `- _self_`"))
    return defaults or []


def _read_entry(entry: object, group: str, where: str, roots: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the group and option of an entry of a defaults list. Raises UserError: bad_defaults, unknown_GROUP."""
    if isinstance(entry, str):
        if entry == "_self_":
            return
        inner_group, _, option = entry.rpartition("/")
        entry = {inner_group: option} if inner_group else {group: entry}
    if not isinstance(entry, dict):
        raise UserError(Problem("bad_defaults", f"'{entry}' is not an entry of a defaults list", where, "remove it"))
    for name, option in entry.items():
        overrides = str(name).startswith("override ")
        inner_group = str(name).removeprefix("override ").removeprefix("optional ").strip().strip("/").split("@")[0]
        if inner_group.startswith("hydra") or option is None:
            continue
        if inner_group not in GROUPS:
            cure = did_you_mean(inner_group, GROUPS) or f"groups: {', '.join(GROUPS)}"
            raise UserError(Problem("bad_defaults", f"there is no group '{inner_group}'", where, cure))
        if inner_group != group and not overrides:
            cure = f"write `override /{inner_group}: {option}`"
            raise UserError(Problem("bad_defaults", f"{inner_group} is chosen already", where, cure))
        if not isinstance(option, str) or find_file(inner_group, option, roots) is None:
            options = sorted({each.stem for root in roots for each in (root / inner_group).glob("*.yaml")})
            cure = did_you_mean(str(option), options) or f"choose from {', '.join(options)}"
            message = f"there is no {inner_group} '{option}'"
            raise UserError(Problem(f"unknown_{inner_group}", message, where, cure))
        yield inner_group, option


def _key_line(text: str, key: object) -> int:
    return next((number for number, line in enumerate(text.splitlines(), 1) if line.startswith(f"{key}:")), 1)
