"""Splits a command line into options and values, as argparse does in the parser that a schema describes.

Nothing is refused, so that every command line is split to its end: what the options are given is checked afterwards
(`argv.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from launch.upstream.schema import Field, Schema

_NO_FLAG = re.compile(r"[^-].*|-?|-\d+|-\d*\.\d+|.* .*", re.DOTALL)  # what argparse takes for a value


@dataclass(frozen=True)
class Option:
    """One argparse action."""

    field: Field  # where it stores its value
    strings: tuple[str, ...]
    nargs: str | None  # None: one value; `?`, `+`; `0`: no value
    required: bool
    negates: bool = False  # the `--no_x` twin, which stores False


@dataclass(frozen=True)
class ArgvToken:
    """One argument of a command line."""

    text: str  # as written
    unknown: bool = False  # a part of it is unknown (`$X`)
    prefix: str = ""  # the known text before the first unknown part
    splits: bool = False  # it may become several arguments, or none (an unquoted variable)


@dataclass(frozen=True)
class GivenOption:
    """An option on a command line, with its values by token index."""

    option: Option
    index: int
    values: list[tuple[int, ArgvToken]]
    is_joined: bool  # `--x=value`

    @property
    def takes_more(self) -> bool:
        if self.is_joined or self.option.negates:
            return False
        return self.option.nargs == "+" or not self.values


@dataclass
class SplitArgv:
    """The options and values of a command line."""

    options: list[GivenOption] = field(default_factory=list)
    others: list[int] = field(default_factory=list)  # the tokens that belong to none
    completions: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of abbreviated flags
    asks_help: bool = False  # which ends it
    error: str | None = None  # which ends it too


def list_options(schema: Schema) -> tuple[Option, ...]:
    """List every option of the parser except `--help`; a `--no_x` twin follows its option."""
    options: list[Option] = []
    for item in schema.fields.values():
        if item.in_parser:
            options.append(Option(item, (*_spellings("", item.name), *item.aliases), item.nargs, item.required))
            if item.negatable:
                options.append(Option(item, _spellings("no_", item.name), "0", required=False, negates=True))
    return tuple(options)


def _spellings(prefix: str, name: str) -> tuple[str, ...]:
    """Return `--a_b` and `--a-b`; mixtures of the two don't exist (hf_argparser.py, `_parse_dataclass_field`)."""
    return tuple(dict.fromkeys((f"--{prefix}{name}", f"--{prefix.replace('_', '-')}{name.replace('_', '-')}")))


def is_flag(text: str) -> bool:
    """Whether argparse takes an argument for a flag, known or not."""
    return not _NO_FLAG.fullmatch(text)


def split_argv(schema: Schema, tokens: Sequence[tuple[int, ArgvToken]]) -> SplitArgv:
    """Give each option the values that follow it; each token comes with its index.

    An unknown token is a value where an option takes one, unless its known part begins with `--`.
    """
    split = SplitArgv()
    options: dict[str, Option | None] = {"-h": None, "--help": None}  # None: help
    options |= {flag: option for option in list_options(schema) for flag in option.strings}
    last: GivenOption | None = None  # which the next value may belong to
    for position, (index, token) in enumerate(tokens):
        if token.text == "--" and not token.unknown:
            split.others += [at for at, _ in tokens[position:]]
            break
        name, equals, _ = token.text.partition("=")
        is_value = token.unknown and not token.prefix.startswith("--")
        matches: tuple[str, ...] = (name,) if name in options and not is_value else ()
        if not is_value and not matches and schema.abbreviations and name.startswith("--"):
            matches = tuple(flag for flag in options if flag.startswith(name))
            split.completions |= {index: matches} if matches and matches != ("--help",) else {}
        is_value = is_value or not (matches or is_flag(token.text))
        if is_value and last and last.takes_more:
            last.values.append((index, token))
        elif len(matches) != 1:
            last = None
            split.others.append(index)
        elif (option := options[matches[0]]) is None:
            split.asks_help, split.error = not equals, f"{matches[0]} takes no value" if equals else None
            split.others.clear()
            break
        else:
            last = GivenOption(option, index, [(index, _after_equals(token))] if equals else [], bool(equals))
            split.options.append(last)
    return split


def _after_equals(token: ArgvToken) -> ArgvToken:
    text, prefix = token.text.partition("=")[2], token.prefix.partition("=")[2]
    return ArgvToken(text, token.unknown, prefix, token.splits)
