"""The parser of a verb's arguments, which takes `key=value` beside `--options`."""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from launch.config.line import CommandLine
from launch.errors import UserError, did_you_mean, refusal
from launch.worker.finding import Finding

Number = TypeVar("Number", int, float)
_WIDEST_HELP = 120  # characters
_HELP_COLUMN = 22  # maximum column of the help text
_KEY = re.compile(r"(?P<name>[a-z_]+)=\S*")
_OPTION = re.compile(r"(?P<name>--?[A-Za-z][^\s=]*)(=.*)?", re.DOTALL)


class VerbParser(argparse.ArgumentParser):
    """Parses what follows a verb: positional arguments, `--options` and `key=value`, in any order.

    `help` is what `launch help VERB` prints, by paragraphs: the usage, examples, what the verb
    does, and after a line `arguments:` what follows these. They are listed in the order of `add`
    and `add_key`.
    """

    def __init__(self, help: str) -> None:
        usage, _, text = help.strip().partition("\n\n")
        text, _, epilog = text.partition("\n\narguments:\n")
        usage = " ".join(usage.split())
        _, self.verb, *_ = usage.split()
        super().__init__(
            prog=f"launch {self.verb}",
            usage=usage,
            description=text,
            epilog=epilog or None,
            formatter_class=_VerbHelp,
            add_help=False,  # launch.__main__ handles --help
            allow_abbrev=False,
            exit_on_error=False,
        )
        self.arguments = self.add_argument_group("arguments")
        self.add = self.arguments.add_argument
        self._keys: dict[str, str] = {}  # the option of each key, by its name

    @property
    def options(self) -> list[str]:
        """The `--options`, without the keys."""
        return [name for name in self._option_string_actions if name not in self._keys.values()]

    @property
    def keys(self) -> list[str]:
        return list(self._keys)

    def add_key(
        self,
        name: str,
        metavar: str,
        help: str,
        *,
        type: Callable[[str], Any] = str,
        default: Any = None,
    ) -> None:
        """Add an argument that is written `name=VALUE`; argparse sees it as `--name VALUE`."""
        self._keys[name] = f"--{name.replace('_', '-')}"
        action = self.arguments.add_argument(
            self._keys[name], dest=name, metavar=metavar, help=help, type=type, default=default
        )
        action.is_key = True  # type: ignore[attr-defined]  # for _VerbHelp

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments.

        Raises UserError: usage, unknown_option, bad_value, duplicate_override.
        """
        self._refuse_unknown(argv)
        options, surplus = self._parse(argv, self.parse_known_intermixed_args)
        if surplus:
            raise UserError(self._problem("usage", f"'{self.verb}' does not take '{surplus[0]}'"))
        return options

    def pop(self, line: CommandLine) -> tuple[argparse.Namespace, CommandLine]:
        """Parse the options of a verb that composes a stage; return them, and the rest of the line.

        Raises UserError: usage, bad_value, duplicate_override.
        """
        argv = list(line.argv)
        if line.json:
            argv.append("--json")
        options, remaining = self._parse(argv, self.parse_known_args)
        return options, replace(line, argv=tuple(remaining))

    def error(self, message: str) -> NoReturn:
        """Raise the error of argparse as a UserError: usage."""
        missing = message.partition("are required: ")[2]
        if missing:
            message = f"'{self.verb}' needs {missing}"
        raise UserError(self._problem("usage", message))

    def _parse(
        self,
        argv: Sequence[str],
        parse: Callable[[list[str]], tuple[argparse.Namespace, list[str]]],
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse with argparse, which gets each key as an option."""
        values, rest = CommandLine(self.verb, False, tuple(argv)).pop_overrides(self._keys)
        options = [f"{self._keys[key]}={value}" for key, value in values.items()]
        try:
            return parse([*options, *rest.argv])
        except argparse.ArgumentError as error:
            key_of_option = {option: key for key, option in self._keys.items()}
            argument = error.argument_name or ""
            name = key_of_option.get(argument, argument)
            raise UserError(self._argument_problem(name, error.message)) from None

    def _argument_problem(self, name: str, message: str) -> Finding:
        if message.startswith("expected"):
            return self._problem("usage", f"{name} needs a value")
        if message.startswith("ignored explicit argument"):
            return self._problem("usage", f"{name} takes no value")
        if message.startswith("not allowed with argument"):
            other = message.rpartition(" ")[2]
            return self._problem("usage", f"{name} and {other} exclude each other")
        where = f"override {name}" if name in self._keys else "command line"
        return Finding.error("bad_value", f"{name} {message}", where)

    def _refuse_unknown(self, argv: Sequence[str]) -> None:
        """Refuse an unknown option or key before argparse complains of a missing argument.

        Raises UserError: unknown_option.
        """
        for argument in argv:
            if argument == "--":
                return
            option = _OPTION.fullmatch(argument)
            key = _KEY.fullmatch(argument)
            if option and option["name"] not in self._option_string_actions:
                message = f"'{self.verb}' has no option {argument}"
                cure = did_you_mean(option["name"], self.options)
                raise UserError(self._problem("unknown_option", message, cure))
            if key and self._keys and key["name"] not in self._keys:
                message = f"'{self.verb}' has no key {key['name']}"
                cure = did_you_mean(key["name"], self._keys)
                raise UserError(self._problem("unknown_option", message, cure))

    def _problem(self, id: str, message: str, cure: str | None = None) -> Finding:
        return Finding.error(id, message, "command line", cure or self.usage)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among an argument's choices; the cure names the nearest.

        Raises UserError: bad_value.
        """
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        cure = did_you_mean(str(value), names) or f"use one of {', '.join(names)}"
        name = action.option_strings[0] if action.option_strings else action.dest
        raise refusal("bad_value", f"unknown {name} '{value}'", "command line", cure)


class _VerbHelp(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal; a key is `key=VALUE`, an option `-o, --output FILE`."""

    def __init__(self, prog: str) -> None:
        width = min(_WIDEST_HELP, shutil.get_terminal_size((_WIDEST_HELP, 24)).columns)
        super().__init__(prog, max_help_position=_HELP_COLUMN, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if getattr(action, "is_key", False):
            return f"{action.dest}={action.metavar}"
        if action.option_strings:
            value = "" if action.nargs == 0 else f" {action.metavar}"
            return ", ".join(action.option_strings) + value
        return super()._format_action_invocation(action)


def number_between(
    kind: type[Number], low: float, high: float = math.inf
) -> Callable[[str], Number]:
    """Return a converter for numbers from `low` to `high`.

    Its error completes a sentence that begins with the argument's name.
    """
    limits = f"{low:g} or greater" if high == math.inf else f"between {low:g} and {high:g}"

    def convert(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            described = "an integer" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {described}, {limits}, got '{text}'")
        return value

    return convert
