"""What a shell text runs that lint sees and does not follow: each is undecided, and listed by its line.

`eval "$X"`, a stream into a shell, a script whose name is a variable, a nameref: a verdict on the other commands of the
text does not cover them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import pairwise

from launch.check.lint.launchers import command_name, is_launcher_name, is_python_name, script_is_unknown
from launch.check.lint.scan_result import LintFinding, warning
from launch.check.lint.shell_syntax import Argument, ShellDocument, SimpleCommand
from launch.check.lint.trainers import MARKER
from launch.check.lint.variables import DECLARING, TRAPS, VARIABLE, is_assignment, without_prefix

_SHELL = re.compile(r"(?:ba|z|da|k|a)?sh")
_SCRIPT_OPTION = re.compile(r"-[a-z]*c|--(?:wrap|command|cmd)")


def explain_unfollowed(
    arguments: Sequence[Argument], command: SimpleCommand | None, trainer_commands: Set[str]
) -> str | None:
    """Return why a command that starts no known trainer may start one; None if it does not look like that.

    `trainer_commands` are the variables whose value mentions a trainer.
    """
    name = command_name(arguments)
    if name is None:
        return None
    if not name.is_resolved:
        in_function = command is not None and command.depth and name.text in ("$@", "$*")  # its calls are looked at
        is_pattern = re.search(r"[$`]", name.text) is None  # of `case`
        return None if in_function or is_pattern else f"{name.text} is the command, and its value is not known here"
    base = name.text.rsplit("/", 1)[-1]
    rest = arguments[arguments.index(name) + 1 :]
    reasons = {
        "eval runs a text that is not known here": base == "eval" and not all(word.is_resolved for word in rest),
        "what another command prints is run": base in ("source", ".") and rest[:1] and _is_stream(rest[0]),
        "an alias is a trainer's command": base == "alias" and any(MARKER.search(word.text) for word in rest),
        "the commands come from a stream": _reads_program(arguments, command),
        "the text that a shell runs is not known here": _has_script(rest, lambda word: not word.is_resolved),
        "a Python text mentions a trainer": any(map(is_python, arguments)) and _has_script(rest, _mentions_trainer),
        "the script that it starts is not known here": script_is_unknown(arguments),
        "a value that mentions a trainer is not known here": any(
            not word.is_resolved and not trainer_commands.isdisjoint(VARIABLE.findall(word.text)) for word in rest
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def is_python(argument: Argument) -> bool:
    """Return True if the argument is an interpreter's name or path."""
    return argument.is_resolved and is_python_name(argument.text.rsplit("/", 1)[-1])


def find_unfollowed_declarations(document: ShellDocument, line_of: Callable[[int], int]) -> Iterator[LintFinding]:
    """Yield what changes what other commands of the text mean: namerefs, IFS, traps, launchers that are redefined."""
    for command in document.commands:
        words = without_prefix(command.words)
        texts = [word.text for word in words]
        first, rest = texts[0], texts[1:]
        assigned = words if is_assignment(words[-1]) and is_assignment(words[0]) else words[1:]
        redefined = [first] if command.after == "(" and not rest else rest[:1] if first in ("function", "alias") else []
        reasons = {
            f"'{first} -n' names another variable, so every variable is unknown": first in DECLARING - {"export"}
            and any(text.startswith("-") and "n" in text for text in rest),
            "a trap runs between the commands, so every variable is unknown": first == "trap" and TRAPS & set(rest),
            "IFS is set, so what unquoted variables become is unknown": (first in DECLARING or assigned is words)
            and any(word.text.startswith("IFS=") for word in assigned),
            "a launcher is redefined, so what the commands with its name start is unknown": any(
                is_launcher_name(text.partition("=")[0]) for text in redefined
            ),
        }
        yield from (not_followed(reason, line_of(command.start)) for reason, holds in reasons.items() if holds)


def not_followed(reason: str, line: int) -> LintFinding:
    """Build the entry of a construct that is not followed."""
    return warning("not_followed", f"not followed: {reason}", line)


def _is_stream(argument: Argument) -> bool:
    return argument.text.startswith(("<(", "/dev/"))


def _mentions_trainer(argument: Argument) -> bool:
    return MARKER.search(argument.text) is not None


def _has_script(arguments: Sequence[Argument], is_such: Callable[[Argument], bool]) -> bool:
    """Return True if such an argument follows `-c`, `--wrap` or the like."""
    return any(
        _SCRIPT_OPTION.fullmatch(option.text) is not None and is_such(script) for option, script in pairwise(arguments)
    )


def _reads_program(arguments: Sequence[Argument], command: SimpleCommand | None) -> bool:
    """Return True for a shell or Python that reads its program from a pipe, a redirected input or `<(...)`."""
    programs = [
        index
        for index, argument in enumerate(arguments)
        if is_python(argument) or (argument.is_resolved and _SHELL.fullmatch(argument.text.rsplit("/", 1)[-1]))
    ]
    if not programs:
        return False
    rest = arguments[programs[0] + 1 :]
    if rest and _is_stream(rest[0]):
        return True
    options = [word.text for word in rest if word.text.startswith(("-", "+"))]
    has_program = any(option == "-m" or _SCRIPT_OPTION.fullmatch(option) for option in options)
    is_piped = command is not None and (command.before in ("|", "|&") or command.input != "")
    return is_piped and not has_program and ("-s" in options or len(options) == len(rest))
