"""Checks the YAML file of a command by the rules of the parser that reads it.

TRL's `--config FILE` replaces defaults of argparse (`TrlParser`, trl/scripts/utils.py:303): a text is
converted like an argument, and any other value is taken as it is. open-instruct's `SCRIPT FILE
--flag=value` builds the dataclasses from the file and then overrides their values
(`ArgumentParserPlus`, open_instruct/utils.py:681): nothing is converted but the flags of a plain type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.errors import UserError, did_you_mean
from launch.upstream.rules.conversion import EXPECTED_VALUES, UNKNOWN, choice_error, convert_text
from launch.upstream.rules.parser import ArgvToken
from launch.upstream.schema import Field, Schema
from launch.worker.finding import Finding

_ENVIRONMENT = "env"  # the key of TRL's file that sets environment variables
_CONVERTED = ("int", "float", "bool")  # kinds whose texts argparse converts, or refuses

_MAPS = ("dict", "never")  # kinds that no text but an empty one converts to


@dataclass
class FileValues:
    """The values of a YAML file and the flags after it, and their problems.

    The index of a problem is that of its token; 0 is the file.
    """

    problems: list[tuple[int, Finding]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)


def find_config_problems(
    schema: Schema, config: Mapping[str, Any], other_keys: Collection[str] | None
) -> Iterator[Finding]:
    """Yield the problems of the file that TRL's `--config` names.

    `trl sft` passes an unknown key on to accelerate, whose options are `other_keys`. With None,
    TRL's script drops the key without a word (`fail_with_unknown_args=False`).
    """
    environment = config.get(_ENVIRONMENT, {})
    if not isinstance(environment, Mapping):
        message = f"'{_ENVIRONMENT}' must be a map of environment variables, got {environment!r}"
        yield Finding.error("bad_value", message, _ENVIRONMENT)
    for key, value in config.items():
        flag = schema.fields.get(str(key))
        if flag is not None and flag.in_parser:
            problem = _refused_value(flag, value) or _wrong_type(flag, value, converts=True)
            if problem is not None:
                yield problem
        elif key != _ENVIRONMENT and not (other_keys and str(key) in other_keys):
            yield _unknown_key(schema, str(key), is_dropped=other_keys is None)


def _refused_value(flag: Field, value: Any) -> Finding | None:
    """Return the problem of a text that argparse cannot convert, or of a value that is none of an
    enum's (transformers' training_args.py:1558-1563 converts it); others are not looked at.
    """
    if flag.kind == "choice" and "choices" not in flag.unknown:
        choices = flag.choices or ()
        if value in choices:
            return None
        (problem,) = choice_error(flag, str(value)).problems
        return Finding.error("bad_value", problem.message, flag.name, problem.cure)
    if isinstance(value, str) and flag.kind in _MAPS and value:
        message = f"{flag.name} must be a map here, but YAML reads {value!r}, a text"
        return Finding.error("bad_value", message, flag.name, "write a map")
    try:
        if isinstance(value, str) and flag.kind in (*_CONVERTED, "enum"):
            convert_text(flag, value)
    except UserError as error:
        (problem,) = error.problems
        return Finding.error("bad_value", problem.message, flag.name, problem.cure)
    return None


def _unknown_key(schema: Schema, key: str, *, is_dropped: bool) -> Finding:
    """Return the problem of a key of a file that is not a flag of the script."""
    script = schema.entry.rpartition("/")[2]
    flags = [flag.name for flag in schema.fields.values() if flag.in_parser]
    cure = did_you_mean(key, flags) or "leave it out"
    if is_dropped:
        message = f"{script} has no flag '{key}' and drops the key without a word"
        return Finding.error("dropped_key", message, key, cure)
    return Finding.error("unknown_key", f"{script} has no flag '{key}'", key, cure)


def find_file_values(
    schema: Schema, config: Mapping[str, Any], tokens: Sequence[ArgvToken]
) -> FileValues:
    """Return the values of `SCRIPT FILE --flag=value ...`; the first token is the file."""
    result = FileValues()
    for key, value in config.items():
        flag = schema.fields.get(str(key))
        if flag is None or not flag.in_parser:
            result.problems.append((0, _unknown_key(schema, str(key), is_dropped=False)))
            continue
        result.values[flag.name] = value
        result.given[flag.name] = 0
    for flag in schema.fields.values():
        if flag.required and flag.in_parser and flag.name not in config:
            message = f"{flag.name} is required in the file: a flag after it comes too late"
            missing = Finding.error(
                "missing_required", message, flag.name, f"add {flag.name}: VALUE"
            )
            result.problems.append((0, missing))
    for index, token in enumerate(tokens[1:], 1):
        is_value = index > 1 and not token.text.startswith("-") and "=" not in token.text
        if is_value and "=" not in tokens[index - 1].text:
            continue  # it is part of the mistake of the flag before it
        following = tokens[index + 1].text if index + 1 < len(tokens) else ""
        _read_flag(schema, index, token, following, result)
    for name, index in result.given.items():
        problem = _wrong_type(schema.fields[name], result.values[name], converts=False)
        if index == 0 and problem is not None:
            result.problems.append((0, problem))
    return result


def _wrong_type(flag: Field, value: Any, *, converts: bool) -> Finding | None:
    """Return the problem of a value that cannot be the flag's, although the parser takes it.

    `converts` is whether the parser converts a text. YAML reads `1e-5` as one: without a conversion,
    the trainer fails later.
    """
    takes = flag.type.lower()
    is_many = isinstance(value, (list, Mapping))
    if flag.kind not in _CONVERTED:
        name = "list" if isinstance(value, list) else "dict"
        if not is_many or name in takes or flag.nargs == "+" or flag.kind in ("object", "unknown"):
            return None
        expected = "a text"
    elif flag.nargs == "+" or value is None:
        return None
    else:
        expected = EXPECTED_VALUES[flag.kind]
        is_text = isinstance(value, str) and not converts
        is_fraction = flag.kind == "int" and isinstance(value, float)
        if not (is_many or is_text or is_fraction):
            return None
    message = f"{flag.name} must be {expected}, but YAML reads {value!r}"
    cure = f"write {expected}"
    if isinstance(value, str):
        message += ", a text"
    if isinstance(value, str) and flag.kind == "float":
        cure = "write a number with a point, such as 1.0e-5"
    return Finding.error("wrong_type", message, flag.name, cure)


def _read_flag(
    schema: Schema, index: int, token: ArgvToken, following: str, result: FileValues
) -> None:
    """Read one argument after the file into `result` (open_instruct/utils.py:700-737)."""
    name, equals, text = token.text.partition("=")
    name = name.strip("-")
    is_name_known = not token.unknown or "=" in token.prefix
    if not is_name_known:
        result.undecided.append(f"what {token.text} stands for")
        return
    if not equals:
        message = f"'{token.text}' has no '=': after a YAML file the parser reads only --flag=value"
        is_pair = token.text.startswith("-") and following and not following.startswith("-")
        cure = f"write {token.text}={following}" if is_pair else None
        result.problems.append((index, Finding.error("not_joined", message, name or None, cure)))
        return
    flag = schema.fields.get(name)
    if flag is None or not flag.in_parser:
        script = schema.entry.rpartition("/")[2]
        message = f"{script} has no flag '{name}', and after a YAML file it drops it without a word"
        flags = [item.name for item in schema.fields.values() if item.in_parser]
        cure = did_you_mean(name.replace("-", "_"), flags) or "leave it out"
        result.problems.append((index, Finding.error("dropped_flag", message, name, cure)))
        return
    result.given[name] = index
    result.values[name] = UNKNOWN if token.unknown else _override(flag, text.partition("=")[0])
    if token.unknown and flag.kind in ("int", "float"):
        result.undecided.append(f"whether {token.text} is {EXPECTED_VALUES[flag.kind]}")
    elif flag.type in ("int", "float") and result.values[name] is UNKNOWN:
        message = f"{name} must be {EXPECTED_VALUES[flag.type]}, got '{text}'"
        result.problems.append((index, Finding.error("bad_type", message, name)))


def _override(flag: Field, text: str) -> Any:
    """Return what the parser makes of a value: only the plain types are converted."""
    if flag.type in ("int", "float"):
        try:
            return int(text) if flag.type == "int" else float(text)
        except ValueError:
            return UNKNOWN
    if flag.type == "bool":
        return text in ("true", "True")
    return text.split(",") if flag.type in ("list[str]", "List[str]") else text
