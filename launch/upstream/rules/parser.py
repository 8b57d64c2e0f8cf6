"""A trainer's parser, rebuilt from its schema: argparse splits a command into options and values.

Its options accept any value, so that it reaches the end of every command line; `argv.py` checks the
values afterwards. The rules are those of the Python that the launcher runs on.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from launch.upstream.schema import Field, Schema

# argparse's nargs by the option's, such that a missing value is not an error
_NARGS: dict[str | None, Any] = {None: "?", "?": "?", "+": "*", "0": 0}
# arguments that argparse takes for a value
_NO_FLAG = re.compile(r"[^-].*|-?|-\d+|-\d*\.\d+|.* .*", re.DOTALL)
_NO_OPTION = "--?"  # prefix of the word for a flag that the parser does not have
_PART_LENGTH = 500  # words that argparse splits at a time
# by the schema's id, which is not used again as long as the schema is kept here
_PARSERS: dict[int, tuple[Schema, _Parser]] = {}


@dataclass(frozen=True)
class ParserOption:
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

    option: ParserOption
    index: int
    values: tuple[tuple[int, ArgvToken], ...]
    is_joined: bool  # `--x=value`


@dataclass
class SplitArgv:
    """A command line, split by argparse."""

    options: list[GivenOption] = field(default_factory=list)
    # indices of the options' tokens that argparse has not reached yet
    flags: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)  # indices of tokens that belong to no option
    # the flags that an abbreviated one may stand for, by its index
    completions: dict[int, tuple[str, ...]] = field(default_factory=dict)
    negated_values: list[int] = field(default_factory=list)  # indices of `--no_x=value`
    asks_help: bool = False
    error: str | None = None  # the message with which argparse stopped


def list_options(schema: Schema) -> tuple[ParserOption, ...]:
    """List every option of the parser except `--help`; a `--no_x` twin follows its option."""
    options: list[ParserOption] = []
    for item in schema.fields.values():
        if not item.in_parser:
            continue
        strings = (*_spellings(item.name), *item.aliases)
        options.append(ParserOption(item, strings, item.nargs, item.required))
        if item.negatable:
            strings = _spellings(f"no_{item.name}")
            options.append(ParserOption(item, strings, "0", required=False, negates=True))
    return tuple(options)


def _spellings(name: str) -> tuple[str, ...]:
    """Return `--a_b` and `--a-b`; mixtures of the two don't exist (hf_argparser.py,
    `_parse_dataclass_field`).
    """
    with_dashes = name.replace("_", "-")
    if with_dashes == name:
        return (f"--{name}",)
    return f"--{name}", f"--{with_dashes}"


def looks_like_flag(text: str) -> bool:
    """Return whether argparse reads an argument as a flag, known or not."""
    return not _NO_FLAG.fullmatch(text)


def split_argv(schema: Schema, tokens: Sequence[tuple[int, ArgvToken]]) -> SplitArgv:
    """Have argparse split the tokens, each given with its index.

    An unknown token is a value where an option takes one, unless its known part begins with `--`.
    """
    if id(schema) not in _PARSERS:
        _PARSERS[id(schema)] = schema, _Parser(schema)
    _, parser = _PARSERS[id(schema)]
    split = SplitArgv()
    # argparse takes quadratic time. Between two flags it has no state, so parts are parsed alone.
    parts: list[list[str]] = [[]]
    rest: list[int] = []
    for position, (index, token) in enumerate(tokens):
        if token.text == "--" and not token.unknown:
            rest = [later_index for later_index, _ in tokens[position:]]
            break
        word = parser.encode(index, token, split)
        if len(parts[-1]) >= _PART_LENGTH and looks_like_flag(word):
            parts.append([])
        parts[-1].append(word)
    namespace = argparse.Namespace(split=split, tokens=dict(tokens))
    others: list[str] = []
    try:
        for part in parts:
            _, others_of_part = parser.parse_known_args(part, namespace)
            others += others_of_part
        split.others = [int(word.removeprefix(_NO_OPTION)) for word in others] + rest
    except _EndError as end:
        if end.args:
            split.error = end.args[0]
        else:
            split.asks_help = True
    return split


class _EndError(Exception):
    """argparse stops, because of `--help` (without a message) or because of an error."""


class _Keep(argparse.Action):
    """Stores the tokens that an option is given.

    `const` is the option, or None for `--help`. If the option is given without a value, argparse
    passes `const` as its value.
    """

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if self.const is None:
            raise _EndError
        index = namespace.split.flags.pop(0)
        given = values if isinstance(values, list) else [values]
        indices = [int(value) for value in given if value is not self.const]
        is_joined = indices == [index]
        tokens = []
        for value_index in indices:
            token = namespace.tokens[value_index]
            tokens.append((value_index, _after_equals(token) if is_joined else token))
        namespace.split.options.append(GivenOption(self.const, index, tuple(tokens), is_joined))


def _after_equals(token: ArgvToken) -> ArgvToken:
    """Return the value of a token `--flag=value`."""
    _, _, text = token.text.partition("=")
    _, _, prefix = token.prefix.partition("=")
    return ArgvToken(text, token.unknown, prefix, token.splits)


class _Parser(argparse.ArgumentParser):
    """A parser whose arguments have the indices of the tokens in the place of the values."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("-h", "--help", action=_Keep, nargs=0)
        self.options: dict[str, ParserOption | None] = {"-h": None, "--help": None}
        for option in list_options(schema):
            self.add_argument(
                *option.strings, action=_Keep, nargs=_NARGS[option.nargs], const=option
            )
            self.options |= dict.fromkeys(option.strings, option)
        self.completes = schema.abbreviations

    def encode(self, index: int, token: ArgvToken, split: SplitArgv) -> str:
        """Return the word for a token that `_Parser` reads.

        It is the full name of a flag, `--x=INDEX` for `--x=value`, and the index of any other token.
        """
        if token.unknown and not token.prefix.startswith("--"):
            return str(index)
        name, equals, _ = token.text.partition("=")
        matches: tuple[str, ...] = (name,)
        if name not in self.options:
            matches = self._complete(name)
            if matches and matches != ("--help",):
                split.completions[index] = matches
        if len(matches) != 1:
            may_be_flag = matches or looks_like_flag(token.text)
            return f"{_NO_OPTION}{index}" if may_be_flag else str(index)
        split.flags.append(index)
        option = self.options[matches[0]]
        if equals and option and option.negates:
            split.negated_values.append(index)
            equals = ""
        return f"{matches[0]}={index}" if equals else matches[0]

    def _complete(self, name: str) -> tuple[str, ...]:
        """Return the flags that an abbreviated one may stand for."""
        if not self.completes or not name.startswith("--"):
            return ()
        return tuple(text for text in self.options if text.startswith(name))

    def error(self, message: str) -> NoReturn:
        raise _EndError(message)
