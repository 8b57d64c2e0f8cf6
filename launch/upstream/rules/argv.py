"""Check a trainer's command line by the rules of its parser, and report every problem at once.

Some rules are stricter than the parsers: `abbreviated` (argparse completes a unique prefix),
`duplicate` (argparse uses the last value), and about YAML files `dropped_key` (TRL's scripts drop an
unknown key of a `--config` file), `dropped_flag` (open-instruct's drop an unknown flag after the file)
and `wrong_type` (neither checks that a list is not a number).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.errors import UserError, nearest
from launch.upstream.rules.config_file import find_config_problems, find_file_values
from launch.upstream.rules.contradictions import find_contradictions
from launch.upstream.rules.conversion import (
    EXPECTED_VALUES,
    UNKNOWN,
    choice_error,
    convert_text,
    unsettable_error,
)
from launch.upstream.rules.parser import (
    ArgvToken,
    GivenOption,
    SplitArgv,
    looks_like_flag,
    split_argv,
)
from launch.upstream.rules.post_init_state import Contradiction
from launch.upstream.rules.values import unverified_message
from launch.upstream.schema import Field, Schema
from launch.worker.finding import Finding

_STRICTER = ("abbreviated", "duplicate", "dropped_key", "dropped_flag", "wrong_type")


@dataclass(kw_only=True)
class ArgvReport:
    """The problems of a command line, the values that it sets, and what can't be decided."""

    # (index, problem); the index is that of the token, and None for missing flags and combinations.
    # `where` is the flag, without dashes. Ids: unknown_flag, unverified, abbreviated, duplicate,
    # bad_type, bad_choice, missing_value, missing_required, positional, contradiction, and about a
    # YAML file: unknown_key, dropped_key, bad_value, wrong_type, dropped_flag,
    # not_joined
    problems: list[tuple[int | None, Finding]] = field(default_factory=list)
    rejected: bool | None = False  # whether argparse refuses it; None if undecided
    # the value of each given flag by its field's name; a list for `+`, `UNKNOWN` if it can't be
    # known
    values: dict[str, Any] = field(default_factory=dict)
    # the index of the token in which a flag is first given, by the field's name
    given: dict[str, int] = field(default_factory=dict)
    # reasons why it is uncertain whether the parser accepts the command
    undecided: list[str] = field(default_factory=list)
    # conditions on the machine under which a `__post_init__` refuses
    assumed: list[str] = field(default_factory=list)

    @property
    def refused(self) -> bool | None:
        """Whether the trainer's own parser (with `__post_init__`) refuses the command; None if
        undecided.
        """
        if self.rejected or any(problem.id == "contradiction" for _, problem in self.problems):
            return True
        return None if self.undecided or self.rejected is None else False

    @property
    def ok(self) -> bool | None:
        """False if the parser refuses, or a flag is abbreviated or given twice; None if
        undecided.
        """
        if self.refused or any(problem.id in _STRICTER for _, problem in self.problems):
            return False
        return None if self.refused is None else True


def check_argv(
    schema: Schema,
    argv: Sequence[str | ArgvToken],
    config: Mapping[str, Any] | None = None,
    other_keys: Collection[str] | None = None,
) -> ArgvReport:
    """Check the arguments after the script's name.

    An `ArgvToken` with `unknown=True` contains a shell variable or the like. Where a flag takes a
    value, it stands for one plain argument: a string field accepts it, and for a number the verdict
    is undecided. Elsewhere it may stand for any arguments. `config` is the content of the YAML file
    that the command names, if it has been read: by TRL's `--config`, or as the first argument. `other_keys`
    are keys of that file that a program before the trainer reads; None if an unknown key is dropped.
    """
    tokens = [token if isinstance(token, ArgvToken) else ArgvToken(token) for token in argv]
    checker = _ArgvChecker(schema=schema, config=config, other_keys=other_keys)
    checker.check(tokens)
    checker.problems.sort(key=_problem_order)
    return checker


def _problem_order(item: tuple[int | None, Finding]) -> int:
    """Sort problems by their tokens; those without a token come last."""
    index, _ = item
    return sys.maxsize if index is None else index


@dataclass(kw_only=True)
class _ArgvChecker(ArgvReport):
    schema: Schema
    config: Mapping[str, Any] | None
    other_keys: Collection[str] | None
    # flags with a list that contains an unquoted variable: its length is unknown
    open_lists: list[str] = field(default_factory=list)
    more_flags_possible: bool = False  # an unknown token may stand for further flags
    config_given: bool = False

    def check(self, tokens: list[ArgvToken]) -> None:
        start = self._skip_file_argument(tokens)
        if start is None:
            return
        indexed_tokens = list(enumerate(tokens))[start:]
        split = split_argv(self.schema, self._remove_config(indexed_tokens))
        for given in split.options:
            self._store(given, split, tokens)
        self._check_others(split, tokens)
        if split.error:
            self._add(None, Finding.error("bad_type", split.error))
        # with --help argparse prints the help and exits with 0, and checks nothing else
        if not split.asks_help:
            self._check_required()
            self._check_contradictions()

    def _skip_file_argument(self, tokens: list[ArgvToken]) -> int | None:
        """Return the index of the first argument for argparse; None if the first one is a YAML
        file.

        ArgumentParserPlus.parse (open_instruct/utils.py:735) has other rules for that file and for
        the rest.
        """
        if not tokens or not self.schema.yaml_file:
            return 0
        if tokens[0].unknown and not tokens[0].prefix.startswith("-"):
            self.undecided.append(
                f"what {tokens[0].text} stands for (this script also takes a YAML file)"
            )
            self.more_flags_possible = True
            return 1
        if not tokens[0].unknown and tokens[0].text.endswith(".yaml"):
            if self.config is None:
                self.undecided.append(f"the values come from {tokens[0].text}")
            else:
                self._check_file_and_flags(self.config, tokens)
            return None
        return 0

    def _check_file_and_flags(self, config: Mapping[str, Any], tokens: list[ArgvToken]) -> None:
        """Check a YAML file that is the first argument, and the flags after it."""
        values = find_file_values(self.schema, config, tokens)
        for index, problem in values.problems:
            self._add(index, problem, rejects=problem.id not in _STRICTER)
        self.undecided += values.undecided
        self.values = values.values
        self.given = values.given
        if not values.problems:
            self._check_contradictions()

    def _remove_config(self, tokens: list[tuple[int, ArgvToken]]) -> list[tuple[int, ArgvToken]]:
        """Remove the first `--config PATH`, as TrlParser.parse_args_and_config does before argparse
        sees the rest.
        """
        texts = [None if token.unknown else token.text for _, token in tokens]
        if not self.schema.config_flag or "--config" not in texts:
            return tokens
        position = texts.index("--config")
        self.config_given = True
        if position + 1 == len(tokens):
            message = "--config needs the path of a YAML file"
            self._add(tokens[position][0], Finding.error("missing_value", message, "config"))
        elif self.config is None:
            self.undecided.append(f"the values in {tokens[position + 1][1].text}")
        else:
            index = tokens[position][0]
            for problem in find_config_problems(self.schema, self.config, self.other_keys):
                self._add(index, problem, rejects=problem.id not in _STRICTER)
            for key, value in self.config.items():
                flag = self.schema.fields.get(str(key))
                if flag is not None and flag.kind in ("object", "unknown") and value is not None:
                    self.undecided.append(f"whether {key} accepts {value!r}: {flag.type}")
        return tokens[:position] + tokens[position + 2 :]

    def _check_others(self, split: SplitArgv, tokens: list[ArgvToken]) -> None:
        """Report the tokens that belong to no option. A token after an unknown flag may be its
        value, and is not reported.
        """
        # indices of tokens after which a value may follow
        may_take_value = set()
        for given in split.options:
            if given.values and self._may_contain_flags(given):
                last_index, _ = given.values[-1]
                may_take_value.add(last_index)
        for index in split.others:
            token = tokens[index]
            if token.text == "--" and not token.unknown:
                # these parsers have no positional arguments
                message = "everything after '--' is positional, which this parser refuses"
                self._add(index, Finding.error("positional", message))
                return
            may_be_value = index - 1 in may_take_value
            if looks_like_flag(token.text) or token.unknown or may_be_value:
                may_take_value.add(index)
            may_be_flags = "=" not in token.prefix and token.prefix[:1] in ("", "-")
            if token.unknown and may_be_flags:
                self.undecided.append(f"what {token.text} stands for")
                self.more_flags_possible = True
            elif index in split.completions:
                self._add_abbreviated(split, index, token)
            elif looks_like_flag(token.text):
                self._add_unknown_flag(index, token.text.partition("=")[0], split)
            elif not may_be_value:
                message = f"'{token.text}' does not belong to a flag"
                cure = self._file_cure(index, token) or _positional_cure(split, tokens, index)
                self._add(index, Finding.error("positional", message, None, cure))

    def _file_cure(self, index: int, token: ArgvToken) -> str | None:
        """Explain a file of flags that the trainer does not read; None for any other argument."""
        if not re.search(r"\.(?:ya?ml|json)$", token.text):
            return None
        script = self.schema.entry.rpartition("/")[2]
        if self.schema.config_flag:
            return None if self.config_given else f"write --config {token.text}"
        if not self.schema.yaml_file:
            return f"{script} reads no file of flags: write them on the command line"
        if index:
            return f"{script} reads a file of flags as its first argument only"
        return f"{script} reads a file of flags whose name ends with .yaml only"

    @staticmethod
    def _may_contain_flags(given: GivenOption) -> bool:
        """Return whether the last value may be further flags, as in `--packing $MORE`: an unquoted
        variable in the place of an optional value.
        """
        token = given.values[-1][1]
        is_optional = not given.is_joined and (given.option.nargs == "?" or len(given.values) > 1)
        return is_optional and token.unknown and token.splits and not token.prefix

    def _store(self, given: GivenOption, split: SplitArgv, tokens: list[ArgvToken]) -> None:
        """Check an option, and store its value."""
        option = given.option
        index = given.index
        name = option.field.name
        if index in split.completions:
            self._add_abbreviated(split, index, tokens[index])
        if index in split.negated_values:
            message = f"--no_{name} takes no value"
            cure = f"write --{name} false"
            self._add(index, Finding.error("bad_type", message, name, cure))
        if name in self.given:
            message = f"{name} is given twice; argparse silently uses the last value"
            duplicate = Finding.error("duplicate", message, name, "keep one of them")
            self._add(index, duplicate, rejects=False)
        self.given.setdefault(name, index)
        if self.schema.is_unverified(name):
            self._add_unverified(name, index)
        if option.negates:
            self.values[name] = False
        elif given.values:
            self._store_values(given)
        elif option.nargs == "?":
            self.values[name] = option.field.const
        else:
            self.values[name] = UNKNOWN
            self._add_missing_value(given, split, tokens)

    def _store_values(self, given: GivenOption) -> None:
        name = given.option.field.name
        if self._may_contain_flags(given):
            self.more_flags_possible = True
        values = []
        for index, token in given.values:
            values.append(self._convert(given.option.field, token, index))
        if given.option.nargs != "+":
            self.values[name] = values[0]
            return
        self.values[name] = values
        if any(token.splits for _, token in given.values):
            self.open_lists.append(name)

    def _add_missing_value(
        self, given: GivenOption, split: SplitArgv, tokens: list[ArgvToken]
    ) -> None:
        name = given.option.field.name
        missing = "at least one value" if given.option.nargs == "+" else "a value"
        next_index = given.index + 1
        number = _negative_number(tokens, next_index)
        cure = f"write --{name}={number}: the value begins with '-'" if number else None
        problem = Finding.error("missing_value", f"{name} needs {missing}", name, cure)
        self._add(given.index, problem)
        if number and next_index in split.others:
            split.others.remove(next_index)  # it is part of the same mistake

    def _convert(self, flag: Field, token: ArgvToken, index: int) -> Any:
        """Return the value of an argument; UNKNOWN if it is wrong, or cannot be known."""
        if token.unknown:
            self._check_unknown_value(flag, token, index)
            return UNKNOWN
        try:
            value = convert_text(flag, token.text)
        except UserError as error:
            self._add(index, *error.problems)
            return UNKNOWN
        if value is UNKNOWN:
            reason = flag.unknown.get("type", flag.type)
            self.undecided.append(f"whether {flag.name} accepts '{token.text}': {reason}")
        return value

    def _check_unknown_value(self, flag: Field, token: ArgvToken, index: int) -> None:
        """Check a value with a shell variable, of which only the beginning may be known."""
        if token.prefix.startswith("-") and index != self.given.get(flag.name):
            self.undecided.append(f"whether {token.text} is a value or a flag")
        choices = None
        if flag.choices is not None and not flag.none_words:
            choices = [str(choice) for choice in flag.choices]
        if choices is not None and token.prefix:
            candidates = [choice for choice in choices if choice.startswith(token.prefix)]
            if not candidates:
                self._add(index, *choice_error(flag, token.text).problems)
                return
        if flag.kind == "never":
            self._add(index, *unsettable_error(flag).problems)
        elif flag.kind not in ("str", "truthy") or choices is not None:
            expected = EXPECTED_VALUES.get(flag.kind, "one of its choices")
            self.undecided.append(f"whether {token.text} is {expected}, for {flag.name}")

    def _add_abbreviated(self, split: SplitArgv, index: int, token: ArgvToken) -> None:
        matches = split.completions[index]
        given = token.text.partition("=")[0].lstrip("-")
        names = sorted({text.lstrip("-").removeprefix("no_").replace("-", "_") for text in matches})
        if len(matches) > 1:
            message = f"--{given} is ambiguous: it could be {', '.join(matches[:6])}"
            cure = f"write --{names[0]}" if len(names) == 1 else "write the full name"
            self._add(index, Finding.error("abbreviated", message, given, cure))
            return
        message = f"--{given} is short for --{names[0]}; argparse completes it silently"
        problem = Finding.error("abbreviated", message, given, f"write {matches[0]}")
        self._add(index, problem, rejects=False)

    def _add_unknown_flag(self, index: int, text: str, split: SplitArgv) -> None:
        given = text.lstrip("-")
        name = given.replace("-", "_")
        flags = [flag.name for flag in self.schema.fields.values() if flag.in_parser]
        suggestions = [name] if name in flags else nearest(name, flags)
        cure = None
        if suggestions:
            choice = " or ".join(f"--{suggestion}" for suggestion in suggestions)
            cure = f"did you mean {choice}?"
        if self.schema.config_flag and text == "--config":
            # TrlParser looks for the word alone (trl/scripts/utils.py:321)
            cure = "write --config FILE: TRL reads no file after '='"
        unknown_parts = self.schema.unknown
        if unknown_parts:
            self.undecided.append(f"whether --{given} exists: {unknown_parts[0].reason}")
        if self.schema.is_unverified(name):
            self._add_unverified(name, index)
            return
        script = self.schema.entry.rpartition("/")[2]
        problem = Finding.error("unknown_flag", f"{script} has no flag {text}", given, cure)
        self._add(index, problem, rejects=None if unknown_parts else True)

    def _add_unverified(self, name: str, index: int) -> None:
        message = unverified_message(self.schema, name)
        cure = "the job asks the trainer's own parser"
        self._add(index, Finding.error("unverified", message, name, cure), rejects=None)

    def _check_required(self) -> None:
        for flag in self.schema.fields.values():
            if not (flag.required and flag.in_parser) or flag.name in self.given:
                continue
            if self.config_given and (self.config is None or flag.name in self.config):
                continue
            if self.more_flags_possible:
                self.undecided.append(f"whether the required {flag.name} is given")
                continue
            message = f"{flag.name} is required"
            cure = f"add --{flag.name}"
            self._add(None, Finding.error("missing_required", message, flag.name, cure))

    def _check_contradictions(self) -> None:
        """Report values that a `__post_init__` of the trainer refuses together."""
        values = {**(self.config or {}), **self.values, **dict.fromkeys(self.open_lists, UNKNOWN)}
        defaults_known = not self.config_given or self.config is not None
        for contradiction in find_contradictions(self.schema, values, defaults_known):
            if contradiction.certain:
                self._add_contradiction(contradiction)
            elif contradiction.certain is False:
                self.assumed.append(f"the machine avoids the error of {contradiction.where}")
            elif defaults_known:  # a file that was not read is already a reason why it is undecided
                unknown_flags = [name for name in contradiction.flags if self._is_unknown(name)]
                subject = " and ".join(unknown_flags) or "the command"
                self.undecided.append(
                    f"whether {subject} avoids the error of {contradiction.where}"
                )

    def _is_unknown(self, name: str) -> bool:
        """Return whether the value of a flag, or an item of its list, is unknown."""
        value = self.values.get(name)
        return UNKNOWN in value if isinstance(value, list) else value is UNKNOWN

    def _add_contradiction(self, contradiction: Contradiction) -> None:
        flags = contradiction.flags
        message = f"{contradiction.message} ({contradiction.where})"
        settings = _describe_settings(self.schema, flags, self.values)
        if settings:
            message = f"{settings}: {message}"
        given_flags = [name for name in flags if name in self.given]
        named_flags = [*given_flags, *flags]
        where = named_flags[0] if named_flags else None
        index = self.given[given_flags[0]] if given_flags else None
        self.problems.append((index, Finding.error("contradiction", message, where)))

    def _add(self, index: int | None, problem: Finding, *, rejects: bool | None = True) -> None:
        """Add a problem. `rejects`: whether argparse refuses the command because of it; None if
        that is not known.
        """
        self.problems.append((index, problem))
        if rejects is not False:
            self.rejected = self.rejected or rejects


def _describe_settings(schema: Schema, flags: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """Describe the flags that a condition reads: `push_to_hub False and try_launch_beaker True (its
    default)`.
    """
    given = []
    defaults = []
    for name in flags:
        if name in values:
            text = "(given)" if values[name] is UNKNOWN else repr(values[name])
            given.append(f"{name} {text}")
            continue
        default = schema.fields[name].default
        if default not in (None, [], {}, ""):
            defaults.append(f"{name} {default!r} (its default)")
    return " and ".join([*given, *defaults])


def _negative_number(tokens: list[ArgvToken], index: int) -> str | None:
    """Return an argument like `-1e-5`, a number that argparse takes for a flag; None for another
    one.
    """
    if index >= len(tokens) or tokens[index].unknown:
        return None
    text = tokens[index].text
    return text if re.match(r"-[\d.]", text) and looks_like_flag(text) else None


def _positional_cure(split: SplitArgv, tokens: list[ArgvToken], index: int) -> str | None:
    """Explain a leftover value: `--flag=a b` takes only `a`."""
    options_before = [given for given in split.options if given.index < index]
    if not options_before:
        return None
    given = options_before[-1]
    tokens_between = tokens[given.index + 1 : index]
    if any(looks_like_flag(token.text) for token in tokens_between):
        return None
    name = given.option.field.name
    if given.is_joined and given.option.nargs == "+":
        return f"write --{name} {given.values[0][1].text} {tokens[index].text}: '=' takes one value"
    if given.option.negates:
        return f"--no_{name} takes no value"
    return f"{name} takes one value" if given.option.nargs is None else None
