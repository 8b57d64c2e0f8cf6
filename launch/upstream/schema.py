"""What a trainer accepts: `Schema` and `Field`, and their JSON form for the lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 2
_OF_THIS_MACHINE = ("is_locked", "source_words", "moved")  # not in the JSON


@dataclass(frozen=True)
class Unknown:
    """A part of the parser that the capture could not determine. It is not evidence of absence."""

    what: str  # options: the parser accepts more than its fields
    reason: str
    where: str | None = None  # file:line


@dataclass(frozen=True)
class Field:
    """One field of the parser's dataclasses, with the command-line rules that HfArgumentParser derives from it.

    kind is how one argument string is converted:
        `str`, `int`, `float`; `bool`: yes/true/t/y/1/no/false/f/n/0; `choice`: a Literal or enum;
        `enum`: an enum's own constructor (in lists); `truthy`: `bool(text)`, anything but '' is true;
        `dict`: `dict(text)`, only '' converts; `never`: no text converts; `object`: some class is called with the text;
        `unknown`: the type is of a package that is not installed.
    """

    name: str  # with underscores, as in the dataclass
    type: str  # the annotation's text
    kind: str
    nargs: str | None  # None: exactly one value; `?`: none or one; `+`: one or more (a list)
    const: Any  # the value of a bare `--name` where nargs is `?`
    choices: tuple[Any, ...] | None  # the allowed values after conversion; None: no restriction
    default: Any  # the trainer's value without the flag, including `set_defaults` and HfArgumentParser's quirks
    declared: Any  # the dataclass's own default: differs for `str | list[str]` and under `set_defaults`
    required: bool  # the parser refuses a command line without it
    help: str | None  # the metadata's help text, or the docstring after the field
    owner: str  # the class that defines the field
    group: str  # the class of the parser call that includes it
    file: str  # relative to the source tree, or to the package folder
    line: int
    aliases: tuple[str, ...] = ()  # more option strings, from the metadata
    negatable: bool = False  # `--no_name` exists (the default is literally True)
    settable: bool = True  # some command line can set it
    unsettable_because: str | None = None
    none_words: bool = False  # `none` and `null` convert to None (TRL's copy of the parser)
    in_parser: bool = True
    unknown: Mapping[str, str] = field(default_factory=dict)  # {type | default | choices: why}

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class ParserClass:
    """A dataclass of the parser call."""

    name: str
    file: str
    line: int
    fields: tuple[str, ...]
    # `methods`: `__post_init__` and the methods that it calls ({owner, name, file, line, source}), in the order in
    # which Python finds them, and functions, without owner; `names`: the constants that they refer to
    post_init: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Schema:
    """What a trainer's command line accepts."""

    entry: str  # the script's path or the module's name
    parser: str  # the parser's class name
    parser_at: str  # file:line of the parser call
    parse_call: str | None  # `parse`, `parse_args_into_dataclasses` or `parse_args_and_config`
    yaml_file: bool  # accepts `script.py file.yaml` (ArgumentParserPlus.parse, open_instruct/utils.py)
    config_flag: bool  # accepts `--config file.yaml` (TRL)
    abbreviations: bool  # argparse's prefix matching is on
    classes: tuple[ParserClass, ...]
    fields: Mapping[str, Field]
    unknown: tuple[Unknown, ...]  # empty where everything about the parser itself is known
    names: Mapping[
        str, Sequence[str]
    ]  # {flag: the names that upstream looks its value up in}; `olmo_presets`, `verifiers`
    stand_ins: tuple[str, ...]  # the packages that were not installed when it was captured
    files: Mapping[str, str]  # {path: git blob id} of upstream's files that were imported
    packages: Mapping[str, str]  # {distribution: version} of the packages that were imported
    is_locked: bool = False  # it is the committed lock's
    # of a lock that is used although files here differ from it: the words of these, and the flags whose line is gone
    source_words: frozenset[str] = frozenset()
    moved: frozenset[str] = frozenset()

    def is_unverified(self, flag: str) -> bool:
        """Whether only the trainer's own parser knows if it has the flag: files here that differ may add or drop it."""
        return flag in self.moved or (flag not in self.fields and flag in self.source_words)


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Convert to plain JSON values; `schema_from_json` restores an equal Schema."""
    content = {name: value for name, value in vars(schema).items() if name not in _OF_THIS_MACHINE}
    content["classes"] = [_to_record(parser_class) for parser_class in schema.classes]
    content["fields"] = {name: _to_record(field) for name, field in schema.fields.items()}
    content["unknown"] = [_to_record(unknown) for unknown in schema.unknown]
    return {"schema_version": SCHEMA_VERSION, **content, "stand_ins": list(schema.stand_ins)}


def schema_from_json(data: Mapping[str, Any]) -> Schema:
    """Invert `schema_to_json`. Raises ValueError for another `schema_version`."""
    content = dict(data)
    if content.pop("schema_version", None) != SCHEMA_VERSION:
        raise ValueError(f"a schema with schema_version {data.get('schema_version')!r} can't be read")
    content["classes"] = tuple(ParserClass(**_with_tuples(record, ("fields",))) for record in data["classes"])
    fields = data["fields"].items()
    content["fields"] = {name: Field(**_with_tuples(record, ("choices", "aliases"))) for name, record in fields}
    content["unknown"] = tuple(Unknown(**record) for record in data["unknown"])
    return Schema(**{**content, "stand_ins": tuple(data["stand_ins"])})


def _to_record(value: Unknown | Field | ParserClass) -> dict[str, Any]:
    return {name: list(part) if isinstance(part, tuple) else part for name, part in vars(value).items()}


def _with_tuples(record: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: tuple(value) if name in names and value is not None else value for name, value in record.items()}
