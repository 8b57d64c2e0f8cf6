"""The options of a schema, and the arguments of a command line classified by them (argparse.py, `_parse_optional`).

The rules are those of Python 3.11 and 3.12, which open-instruct's trainers run on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launch.upstream.schema import Field, Schema

_NEGATIVE_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")
_HELP = ("-h", "--help")


@dataclass(frozen=True)
class Option:
    """One argparse action."""

    field: Field  # where it stores its value
    strings: tuple[str, ...]
    nargs: str | None  # None: one value; `?`, `+`; `0`: no value
    required: bool
    negates: bool = False  # the `--no_x` twin, which stores False


def list_options(schema: Schema) -> tuple[Option, ...]:
    """List every option of the parser except `--help`; a `--no_x` twin follows its option."""
    options: list[Option] = []
    for field in schema.fields.values():
        if not field.in_parser:
            continue
        options.append(Option(field, (*_spellings(field.name), *field.aliases), field.nargs, field.required))
        if field.negatable:
            # `no_` keeps its underscore only in the first spelling (hf_argparser.py, `_parse_dataclass_field`)
            strings = (f"--no_{field.name}", f"--no-{field.name.replace('_', '-')}")
            options.append(Option(field, strings, "0", False, negates=True))
    return tuple(options)


def _spellings(name: str) -> tuple[str, ...]:
    """Return `--a_b` and `--a-b`; mixtures of the two don't exist."""
    return (f"--{name}", f"--{name.replace('_', '-')}") if "_" in name else (f"--{name}",)


@dataclass(frozen=True)
class ArgvToken:
    """One argument of a command line."""

    text: str  # as written
    unknown: bool = False  # a part of it is unknown (`$X`)
    prefix: str = ""  # the known text before the first unknown part
    splits: bool = False  # it may become several arguments, or none (an unquoted variable)


@dataclass(frozen=True)
class ClassifiedToken:
    """A token and its role on the command line."""

    index: int
    token: ArgvToken
    role: str  # option, help, value, end (the bare `--`) or unsure (it may be an option)
    flag_text: str = ""  # without `=value`
    option: Option | None = None  # None for an unknown flag
    explicit_value: ArgvToken | None = None  # after `=`
    abbreviated: tuple[Option, ...] = ()  # the options that it is a prefix of
    matches: tuple[str, ...] = ()  # the strings of `abbreviated`
    dashed_number: str | None = None  # the following argument if it is a number like `-1e-5`, which can't be a value


def classify_tokens(
    tokens: list[ArgvToken], strings: Mapping[str, Option], abbreviations: bool
) -> list[ClassifiedToken]:
    """Classify the tokens; `strings` maps every option string of the parser to its option."""
    classified: list[ClassifiedToken] = []
    ended = False
    for index, token in enumerate(tokens):
        if ended:
            classified.append(ClassifiedToken(index, token, "value"))
        elif not token.unknown and token.text == "--":
            ended = True
            classified.append(ClassifiedToken(index, token, "end"))
        else:
            following = tokens[index + 1] if index + 1 < len(tokens) else None
            classified.append(_classify_token(index, token, strings, abbreviations, following))
    return classified


def _classify_token(  # noqa: PLR0911 - one return per rule, in argparse's order
    index: int, token: ArgvToken, strings: Mapping[str, Option], abbreviations: bool, following: ArgvToken | None
) -> ClassifiedToken:
    text = token.prefix if token.unknown else token.text
    if token.unknown and (not text or (text.startswith("-") and "=" not in text)):
        return ClassifiedToken(index, token, "unsure")
    if not text.startswith("-") or text == "-":
        return ClassifiedToken(index, token, "value")
    if not token.unknown and text in strings:
        return ClassifiedToken(index, token, "option", text, strings[text], dashed_number=_dashed_number(following))
    name, equals, value = text.partition("=")
    explicit_value = None
    if equals:
        explicit_value = ArgvToken(token.text[len(name) + 1 :], token.unknown, value if token.unknown else "")
    if name in strings:
        return ClassifiedToken(index, token, "option", name, strings[name], explicit_value)
    completed = (*strings, "--help") if abbreviations and name.startswith("--") else ()
    matches = tuple(string for string in completed if string.startswith(name))
    if text in _HELP or matches == ("--help",):
        return ClassifiedToken(index, token, "help", text)
    if matches:
        options = tuple(strings[string] for string in matches if string in strings)
        return ClassifiedToken(
            index, token, "option", name, options[0], explicit_value, options, matches, _dashed_number(following)
        )
    if _NEGATIVE_NUMBER.match(text) or (" " in text and not token.unknown):
        return ClassifiedToken(index, token, "value")
    return ClassifiedToken(index, token, "option", name)


def _dashed_number(following: ArgvToken | None) -> str | None:
    """Return the following argument if it is a number like `-1e-5`, which argparse takes for an option."""
    if following is None or following.unknown:
        return None
    is_number = re.match(r"-[\d.]", following.text) and not _NEGATIVE_NUMBER.match(following.text)
    return following.text if is_number else None
