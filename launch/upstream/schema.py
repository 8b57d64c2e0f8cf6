"""What a trainer accepts, as values: `Schema` and `Field`, and their plain JSON form for the lock file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

# A `__post_init__` as nested lists of plain JSON values (see `post_init.py`).
Program = list[Any]


@dataclass(frozen=True)
class Unknown:
    """Something about the parser as a whole that static reading couldn't tell. It is not evidence of absence."""

    what: str
    reason: str
    where: str | None = None


@dataclass(frozen=True)
class Field:
    """One field of the parser's dataclasses, with the command-line rules that HfArgumentParser derives from it.

    name: with underscores, as the dataclass has it.
    type: the annotation's text.
    kind: how one word is converted: `str`, `int`, `float`, `bool` (yes/true/t/y/1/no/false/f/n/0), `choice` (a Literal
        or enum), `enum` (an enum's own constructor, in lists), `truthy` (`bool(word)`: anything but '' is true), `dict`
        (`dict(word)`: nothing but '' converts), `never` (no word converts), `object` (some class is called with the
        word), `unknown` (the type can't be read).
    nargs: None (exactly one value), `?` (none or one), `+` (one or more: a list).
    const: the value of a bare `--name` where nargs is `?`.
    choices: the allowed values after conversion, or None for no limit.
    default: what the trainer gets when the flag isn't given, `set_defaults` and HfArgumentParser's quirks included.
    declared: the dataclass's own default (differs from `default` for `str | list[str]` and under `set_defaults`).
    required: the parser refuses a command line without it.
    help: the metadata's help text, or the docstring that follows the field.
    owner: the class that defines the field; group: the class of the parser call that brings it.
    file, line: where it is defined, relative to its tree (or to the package folder).
    aliases: further option strings from the metadata. negatable: `--no_name` exists (the default is literally True).
    settable: some command line can set it; unsettable_because says why not.
    none_words: `none` / `null` convert to None (TRL's copy of the parser).
    unknown: {aspect: reason} for what couldn't be read; aspects: `type`, `default`, `choices`, `declaration`.
    """

    name: str
    type: str
    kind: str
    nargs: str | None
    const: Any
    choices: tuple[Any, ...] | None
    default: Any
    declared: Any
    required: bool
    help: str | None
    owner: str
    group: str
    file: str
    line: int
    aliases: tuple[str, ...] = ()
    negatable: bool = False
    settable: bool = True
    unsettable_because: str | None = None
    none_words: bool = False
    in_parser: bool = True
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class ParserClass:
    """A dataclass of the parser call; `post_init` is what its `__post_init__` does to the fields, None without one."""

    name: str
    file: str
    line: int
    fields: tuple[str, ...]
    post_init: Program | None = None


@dataclass(frozen=True)
class Schema:
    """What a trainer accepts. `unknown` is empty where everything about the parser itself could be read.

    entry: the script's path or the module's name. parser: the parser class's name; parser_at: `file:line` of its call.
    parse_call: the method that parses (`parse`, `parse_args_into_dataclasses`, `parse_args_and_config`).
    yaml_file: `script.py file.yaml` is accepted (ArgumentParserPlus.parse, open_instruct/utils.py). config_flag:
    `--config file.yaml` is (TRL). abbreviations: argparse's prefix matching is on.
    files / package_files: {path: git blob id} of every file that the schema was read from, by tree.
    """

    entry: str
    parser: str
    parser_at: str
    parse_call: str | None
    yaml_file: bool
    config_flag: bool
    abbreviations: bool
    classes: tuple[ParserClass, ...]
    fields: Mapping[str, Field]
    unknown: tuple[Unknown, ...]
    files: Mapping[str, str]
    package_files: Mapping[str, str]


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Plain JSON values only; `schema_from_json` gives an equal Schema back."""
    return {
        "schema_version": 1,
        **{name: getattr(schema, name) for name in _PLAIN},
        "classes": [_record(item) for item in schema.classes],
        "fields": {name: _record(item) for name, item in schema.fields.items()},
        "unknown": [_record(item) for item in schema.unknown],
        "files": dict(schema.files),
        "package_files": dict(schema.package_files),
    }


def schema_from_json(data: Mapping[str, Any]) -> Schema:
    """The inverse of `schema_to_json`; raises ValueError for another `schema_version`."""
    if data.get("schema_version") != 1:
        raise ValueError(f"a schema with schema_version {data.get('schema_version')!r} can't be read")
    return Schema(
        **{name: data[name] for name in _PLAIN},
        classes=tuple(ParserClass(**_tuples(item, ("fields",))) for item in data["classes"]),
        fields={name: Field(**_tuples(item, ("choices", "aliases"))) for name, item in data["fields"].items()},
        unknown=tuple(Unknown(**item) for item in data["unknown"]),
        files=dict(data["files"]),
        package_files=dict(data["package_files"]),
    )


_PLAIN = ("entry", "parser", "parser_at", "parse_call", "yaml_file", "config_flag", "abbreviations")


def _record(item: Unknown | Field | ParserClass) -> dict[str, Any]:
    record = {part.name: getattr(item, part.name) for part in fields(item)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in record.items()}


def _tuples(record: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: tuple(value) if name in names and value is not None else value for name, value in record.items()}
