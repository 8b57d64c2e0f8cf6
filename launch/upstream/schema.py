"""What a trainer accepts: `Schema` and `Field`, and their JSON form for the lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.worker.json_codec import to_json, versioned

_FORMAT = 5  # the number of the JSON form
# fields that describe this machine, and are not in the JSON
_OF_THIS_MACHINE = ("is_locked", "sources", "source_words", "moved")


@dataclass(frozen=True)
class Unknown:
    """A part of the parser that the capture could not determine. It is not evidence of absence."""

    what: str  # options: the parser accepts more than its fields
    reason: str
    where: str | None = None  # file:line


@dataclass(frozen=True)
class Field:
    """One field of the parser's dataclasses, with the command-line rules that HfArgumentParser
    derives from it.

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
    choices: Sequence[Any] | None  # the allowed values after conversion; None: no restriction
    # the trainer's value without the flag, including `set_defaults` and HfArgumentParser's quirks
    default: Any
    required: bool  # the parser refuses a command line without it
    # digest of its help text, which is in the field's metadata or in the docstring after the field
    # (`launch.upstream.help_text`); None: it has no help
    help_digest: str | None
    owner: str  # the class that defines the field
    group: str  # the class of the parser call that includes it
    file: str  # relative to the source tree, or to the package folder
    line: int
    aliases: Sequence[str] = field(default_factory=list)  # more option strings, from the metadata
    negatable: bool = False  # `--no_name` exists (the default is literally True)
    unsettable_because: str | None = None  # None: some command line can set it
    none_words: bool = False  # `none` and `null` convert to None (TRL's copy of the parser)
    in_parser: bool = True
    unknown: Mapping[str, str] = field(default_factory=dict)  # {type | default | choices: why}

    @property
    def settable(self) -> bool:
        return self.unsettable_because is None

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Schema:
    """What a trainer's command line accepts."""

    entry: str  # the script's path or the module's name
    parser_at: str  # file:line of the parser call
    # accepts `script.py file.yaml` (ArgumentParserPlus.parse, open_instruct/utils.py)
    yaml_file: bool
    config_flag: bool  # accepts `--config file.yaml` (TRL)
    abbreviations: bool  # argparse's prefix matching is on
    # {class: the code of its `__post_init__`}. `functions` has it and the functions that it calls,
    # methods in the order in which Python finds them, each as {name, file, lines, digest}; `names`
    # has the constants that they use, and `opaque` the fields whose values are objects
    post_init: Mapping[str, Mapping[str, Any]]
    fields: Mapping[str, Field]
    unknown: Sequence[Unknown]  # empty where everything about the parser itself is known
    # {flag: the names that upstream accepts as its value}; also `olmo_presets` and `verifiers`
    names: Mapping[str, Sequence[str]]
    files: Mapping[str, str]  # {path: git blob id} of upstream's files that were imported
    # {distribution: version} of the packages that were imported; '' for one that was missing
    packages: Mapping[str, str]
    is_locked: bool = False  # whether it is the committed lock's
    # folders that may have the text of its functions
    sources: tuple[Path, ...] = field(default=(), compare=False)
    # if the lock is used although files on this machine differ from it: the words in these files,
    # and the flags whose declaration is no longer in them
    source_words: frozenset[str] = frozenset()
    moved: frozenset[str] = frozenset()

    def is_unverified(self, flag: str) -> bool:
        """Return whether only the trainer's own parser knows if it has the flag.

        A file on this machine that differs from the lock may add or drop it.
        """
        return flag in self.moved or (flag not in self.fields and flag in self.source_words)


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Convert to plain JSON values; `schema_from_json` restores an equal Schema."""
    content = {
        name: value for name, value in to_json(schema).items() if name not in _OF_THIS_MACHINE
    }
    return versioned(content, _FORMAT)


def schema_from_json(data: Mapping[str, Any]) -> Schema:
    """Invert `schema_to_json`. Raises TypeError for the JSON of another version."""
    content = {name: value for name, value in data.items() if name != "schema_version"}
    content["fields"] = {name: Field(**record) for name, record in data["fields"].items()}
    content["unknown"] = [Unknown(**record) for record in data["unknown"]]
    return Schema(**content)
