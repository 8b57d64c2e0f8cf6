"""Checks a trainer's command line as its own parser would, and more strictly, and reports every problem at once.

Stricter than argparse, and reported with `refused=False`: `abbreviated` (argparse completes a unique prefix) and
`duplicate` (argparse uses the last value). The parser refuses everything else that is reported as refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.errors import nearest
from launch.upstream.rules.contradictions import find_contradictions
from launch.upstream.rules.conversion import (
    EXPECTED_VALUES,
    UNKNOWN,
    ConversionError,
    choice_error,
    convert,
    unsettable_error,
)
from launch.upstream.rules.tokens import ArgvToken, ClassifiedToken, Option, classify_tokens, list_options
from launch.upstream.rules.values import unverified_message
from launch.upstream.schema import Field, Schema

_STRICTER = ("abbreviated", "duplicate")


@dataclass(frozen=True)
class ArgvProblem:
    """One problem of a command line."""

    # unknown_flag, unverified, abbreviated, duplicate, bad_type, bad_choice, missing_value, missing_required,
    # positional or contradiction
    kind: str
    flag: str | None  # without dashes; the field's name where it is known, None for a positional
    index: int | None  # of the token on the command line; None for missing flags and combinations
    message: str
    cure: str | None = None
    refused: bool | None = True  # the real parser refuses the command because of it; None: undecided
    where: str | None = None  # upstream's file:line, for a contradiction


@dataclass(frozen=True)
class ArgvReport:
    """The problems of a command line, the values that it sets, and what can't be decided."""

    problems: tuple[ArgvProblem, ...]
    values: Mapping[str, Any]  # {field name: value} of the given flags; lists for `+`, `UNKNOWN` if it can't be known
    given: Mapping[str, int]  # {field name: token index} of the first occurrence
    undecided: tuple[str, ...] = ()  # why the parser's verdict is uncertain
    assumed: tuple[str, ...] = ()  # conditions on the machine under which a `__post_init__` would refuse

    @property
    def refused(self) -> bool | None:
        """Whether the trainer's own parser (with `__post_init__`) refuses the command; None: undecided."""
        if any(problem.refused for problem in self.problems):
            return True
        if self.undecided or any(problem.refused is None for problem in self.problems):
            return None
        return False

    @property
    def ok(self) -> bool | None:
        """False if the parser refuses, or a flag is abbreviated or given twice; None: undecided."""
        if self.refused or any(problem.kind in _STRICTER for problem in self.problems):
            return False
        return None if self.refused is None else True


def check_argv(schema: Schema, argv: Sequence[str | ArgvToken], config: Mapping[str, Any] | None = None) -> ArgvReport:
    """Check the arguments after the script's name.

    An `ArgvToken` with `unknown=True` contains a shell variable or the like. Where a flag takes a value, it stands for
    one plain argument: a string field accepts it, and for a number the verdict is undecided. Elsewhere it may stand for
    any arguments. `config` is the content of the file that TRL's `--config` names, if it has been read.
    """
    checker = _ArgvChecker(schema, config)
    checker.check([token if isinstance(token, ArgvToken) else ArgvToken(token) for token in argv])
    return checker.report()


@dataclass
class _ArgvChecker:
    schema: Schema
    config: Mapping[str, Any] | None
    problems: list[ArgvProblem] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    open_lists: list[str] = field(default_factory=list)  # those with an unquoted variable: how long they are is unknown
    more_flags_possible: bool = False  # an unknown token may stand for further flags
    config_given: bool = False
    file_mode: bool = False
    help_requested: bool = False

    def check(self, tokens: list[ArgvToken]) -> None:
        start = self._skip_file_argument(tokens)
        strings = {text: option for option in list_options(self.schema) for text in option.strings}
        classified = self._remove_config(classify_tokens(tokens, strings, self.schema.abbreviations)[start:])
        if self.file_mode:
            return
        self._consume(classified)
        if not self.help_requested:
            self._check_required()
            self._check_contradictions()

    def report(self) -> ArgvReport:
        ordered = sorted(self.problems, key=lambda problem: (problem.index is None, problem.index or 0))
        return ArgvReport(tuple(ordered), self.values, self.given, tuple(self.undecided), tuple(self.assumed))

    def _skip_file_argument(self, tokens: list[ArgvToken]) -> int:
        """Return the index of the first argument after `file.yaml`.

        ArgumentParserPlus.parse (open_instruct/utils.py) takes it as the first argument and applies other rules to the
        rest, so the command is then undecided.
        """
        if not tokens or not self.schema.yaml_file:
            return 0
        if tokens[0].unknown and not tokens[0].prefix.startswith("-"):
            self.undecided.append(f"what {tokens[0].text} stands for (this script also takes a YAML file)")
            self.more_flags_possible = True
            return 1
        if not tokens[0].unknown and tokens[0].text.endswith(".yaml"):
            self.file_mode = True
            self.undecided.append(f"the values come from {tokens[0].text}")
        return 0

    def _remove_config(self, tokens: list[ClassifiedToken]) -> list[ClassifiedToken]:
        """Remove the first `--config PATH`, as TrlParser.parse_args_and_config does before argparse sees the rest."""
        if not self.schema.config_flag:
            return tokens
        texts = [None if classified.token.unknown else classified.token.text for classified in tokens]
        if "--config" not in texts:
            return tokens
        position = texts.index("--config")
        self.config_given = True
        if position + 1 == len(tokens):
            message = "--config needs the path of a YAML file"
            self._add_problem("missing_value", "config", tokens[position].index, message)
        elif self.config is None:
            self.undecided.append(f"the values in {tokens[position + 1].token.text}")
        return tokens[:position] + tokens[position + 2 :]

    def _consume(self, arguments: list[ClassifiedToken]) -> None:
        position = 0
        after_unknown = False  # the values here may belong to an unknown flag
        while position < len(arguments):
            argument = arguments[position]
            position += 1
            if argument.role == "end":
                # after a bare `--` everything is positional, and these parsers have no positionals
                message = "everything after '--' is positional, which this parser refuses"
                self._add_problem("positional", None, argument.index, message)
                return
            if argument.role == "value":
                if not after_unknown:
                    message = f"'{argument.token.text}' does not belong to a flag"
                    cure = _positional_cure(arguments, position - 1)
                    self._add_problem("positional", None, argument.index, message, cure)
            elif argument.role == "unsure":
                self.undecided.append(f"what {argument.token.text} stands for")
                self.more_flags_possible = after_unknown = True
            elif argument.role == "help":
                self.help_requested = True  # argparse prints the help and exits with 0: nothing after it matters
                return
            elif argument.option is None:
                self._add_unknown_flag(argument)
                after_unknown = True
            else:
                position, after_unknown = self._consume_option(argument, argument.option, arguments, position)

    def _consume_option(
        self, argument: ClassifiedToken, option: Option, arguments: list[ClassifiedToken], position: int
    ) -> tuple[int, bool]:
        """Store one option's values.

        Returns the index of the first argument after them, and whether an unknown one among them may contain flags.
        """
        if argument.matches:
            self._add_abbreviated(argument)
            if len(argument.matches) > 1:
                return position, True
        values: list[tuple[int, ArgvToken]] = []
        may_contain_flags = False
        if argument.explicit_value is not None:
            values = [(argument.index, argument.explicit_value)]
            if option.negates:
                message, cure = f"--no_{option.field.name} takes no value", f"write --{option.field.name} false"
                self._add_problem("bad_type", option.field.name, argument.index, message, cure)
        else:
            limit = {None: 1, "?": 1, "0": 0, "+": len(arguments)}[option.nargs]
            while len(values) < limit and position < len(arguments) and _can_be_value(arguments[position]):
                token = arguments[position].token
                # `--packing $MORE`: an unquoted variable after an optional value may contain more flags
                is_optional = option.nargs == "?" or bool(values)
                may_contain_flags = token.unknown and token.splits and not token.prefix and is_optional
                self.more_flags_possible = self.more_flags_possible or may_contain_flags
                values.append((arguments[position].index, token))
                position += 1
        self._store(option, argument, values)
        if not values and option.nargs in (None, "+") and argument.dashed_number is not None:
            position += 1  # the argument meant as the value is part of the same mistake
        return position, may_contain_flags

    def _store(self, option: Option, argument: ClassifiedToken, values: list[tuple[int, ArgvToken]]) -> None:
        name = option.field.name
        if name in self.given:
            message = f"{name} is given twice; argparse silently uses the last value"
            self._add_problem("duplicate", name, argument.index, message, "keep one of them", refused=False)
        self.given.setdefault(name, argument.index)
        if self.schema.is_unverified(name):
            self._add_unverified(name, argument.index)
        if option.negates:
            self.values[name] = False
        elif not values and option.nargs == "?":
            self.values[name] = option.field.const
        elif not values:
            missing = "at least one value" if option.nargs == "+" else "a value"
            cure = None
            if argument.dashed_number is not None:
                cure = f"write --{name}={argument.dashed_number}: the value begins with '-'"
            self._add_problem("missing_value", name, argument.index, f"{name} needs {missing}", cure)
            self.values[name] = UNKNOWN
        else:
            converted = [self._convert(option.field, token, index) for index, token in values]
            self.values[name] = converted if option.nargs == "+" else converted[0]
            if option.nargs == "+" and any(token.splits for _, token in values):
                self.open_lists.append(name)

    def _convert(self, flag: Field, token: ArgvToken, index: int) -> Any:
        if token.unknown:
            self._check_unknown_value(flag, token, index)
            return UNKNOWN
        try:
            value = convert(flag, token.text)
        except ConversionError as error:
            self._add_problem(error.kind, flag.name, index, error.message, error.cure)
            return UNKNOWN
        if value is UNKNOWN:
            self.undecided.append(f"whether {flag.name} accepts '{token.text}': {flag.unknown.get('type', flag.type)}")
        return value

    def _check_unknown_value(self, flag: Field, token: ArgvToken, index: int) -> None:
        if token.prefix.startswith("-") and index != self.given.get(flag.name):
            self.undecided.append(f"whether {token.text} is a value or a flag")
        choices = None if flag.choices is None or flag.none_words else [str(choice) for choice in flag.choices]
        if choices is not None and token.prefix and not any(c.startswith(token.prefix) for c in choices):
            error = choice_error(flag, token.text)
            self._add_problem(error.kind, flag.name, index, error.message, error.cure)
        elif flag.kind == "never":
            error = unsettable_error(flag)
            self._add_problem(error.kind, flag.name, index, error.message, error.cure)
        elif flag.kind not in ("str", "truthy") or choices is not None:
            expected = EXPECTED_VALUES.get(flag.kind, "one of its choices")
            self.undecided.append(f"whether {token.text} is {expected}, for {flag.name}")

    def _add_abbreviated(self, argument: ClassifiedToken) -> None:
        names = sorted({option.field.name for option in argument.abbreviated})
        given = argument.flag_text.lstrip("-")
        if len(argument.matches) > 1:
            message = f"--{given} is ambiguous: it could be {', '.join(argument.matches[:6])}"
            cure = f"write --{names[0]}" if len(names) == 1 else "write the full name"
            self._add_problem("abbreviated", given, argument.index, message, cure)
            return
        message = f"--{given} is short for --{names[0]}; argparse completes it silently"
        cure = f"write {argument.matches[0]}"
        self._add_problem("abbreviated", given, argument.index, message, cure, refused=False)

    def _add_unknown_flag(self, argument: ClassifiedToken) -> None:
        given = argument.flag_text.lstrip("-")
        name = given.replace("-", "_")
        flags = [flag.name for flag in self.schema.fields.values() if flag.in_parser]
        suggestions = [name] if name in flags else nearest(name, flags)
        cure = f"did you mean {' or '.join(f'--{suggestion}' for suggestion in suggestions)}?" if suggestions else None
        unread = self.schema.unknown
        if unread:
            self.undecided.append(f"whether --{given} exists: {unread[0].reason}")
        if self.schema.is_unverified(name):
            self._add_unverified(name, argument.index)
            return
        script = self.schema.entry.rpartition("/")[2]
        message = f"{script} has no flag {argument.flag_text}"
        self._add_problem("unknown_flag", given, argument.index, message, cure, refused=None if unread else True)

    def _add_unverified(self, name: str, index: int) -> None:
        message = unverified_message(self.schema, name)
        self._add_problem("unverified", name, index, message, "the job asks the trainer's own parser", refused=None)

    def _check_required(self) -> None:
        for flag in self.schema.fields.values():
            if not (flag.required and flag.in_parser) or flag.name in self.given:
                continue
            if self.config_given and (self.config is None or flag.name in self.config):
                continue
            if self.more_flags_possible:
                self.undecided.append(f"whether the required {flag.name} is given")
                continue
            self._add_problem("missing_required", flag.name, None, f"{flag.name} is required", f"add --{flag.name}")

    def _check_contradictions(self) -> None:
        values = {**(self.config or {}), **self.values, **dict.fromkeys(self.open_lists, UNKNOWN)}
        defaults_known = not self.config_given or self.config is not None
        for contradiction in find_contradictions(self.schema, values, defaults_known):
            flags = contradiction.flags
            text = f"{contradiction.message} ({contradiction.where})"
            if contradiction.certain is None:
                if not defaults_known:
                    continue  # one reason is enough: the file has not been read
                unknown_flags = " and ".join(name for name in flags if UNKNOWN in _as_list(self.values.get(name)))
                self.undecided.append(f"whether {unknown_flags or 'the command'} avoids: {text}")
            elif not contradiction.certain:
                self.assumed.append(f"the machine avoids: {text}")
            else:
                flag = next((name for name in flags if name in self.given), None)
                settings = _describe_settings(self.schema, flags, self.values)
                self.problems.append(
                    ArgvProblem(
                        "contradiction",
                        flag or next(iter(flags), None),
                        None if flag is None else self.given[flag],
                        f"{settings}: {contradiction.message}" if settings else contradiction.message,
                        where=contradiction.where,
                    )
                )

    def _add_problem(
        self,
        kind: str,
        flag: str | None,
        index: int | None,
        message: str,
        cure: str | None = None,
        *,
        refused: bool | None = True,
    ) -> None:
        self.problems.append(ArgvProblem(kind, flag, index, message, cure, refused))


def _describe_settings(schema: Schema, flags: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """Describe the flags that a condition reads: `push_to_hub False and try_launch_beaker True (its default)`."""
    given = [
        f"{name} {'(given)' if values[name] is UNKNOWN else repr(values[name])}" for name in flags if name in values
    ]
    defaults = [
        f"{name} {schema.fields[name].default!r} (its default)"
        for name in flags
        if name not in values and schema.fields[name].default not in (None, [], {}, "")
    ]
    return " and ".join([*given, *defaults])


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _can_be_value(argument: ClassifiedToken) -> bool:
    return argument.role == "value" or (argument.role == "unsure" and not argument.token.prefix.startswith("--"))


def _positional_cure(arguments: list[ClassifiedToken], position: int) -> str | None:
    """Explain a leftover value: `--flag=a b` takes only `a`."""
    flag = next((argument for argument in reversed(arguments[:position]) if argument.role != "value"), None)
    if flag is None or flag.option is None:
        return None
    name = flag.option.field.name
    if flag.explicit_value is not None and flag.option.nargs == "+":
        return f"write --{name} {flag.explicit_value.text} {arguments[position].token.text}: '=' takes one value"
    if flag.option.negates:
        return f"--no_{name} takes no value"
    return f"{name} takes one value" if flag.option.nargs is None else None
