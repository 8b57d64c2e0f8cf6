"""Finds what a shell text may run that lint does not follow.

Examples are `eval "$X"`, a stream into a shell, a script whose name is a variable, and a nameref.
Each is listed by its line as undecided, since the verdicts on the other commands do not cover it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import pairwise

from launch.check.lint.launchers import (
    is_launcher_name,
    is_python_name,
    names_trainer_script,
    script_is_unknown,
)
from launch.check.lint.shell_syntax import Argument, ShellDocument, ShellWord, SimpleCommand
from launch.check.lint.trainer_commands import (
    MARKER,
    ScanResult,
    not_followed,
    starts_trainer,
    trainer_from_path,
)
from launch.check.lint.variables import (
    VARIABLE,
    Variables,
    defined_function,
    is_assignment,
    without_prefix,
)

_SHELL = re.compile(r"(?:ba|z|da|k|a)?sh")
_SCRIPT_OPTION = re.compile(r"-[a-z]*c|--(?:wrap|command|cmd)")
_CODE_IN_TEXT = re.compile(r"\$\(|`")
# Programs that pass what they read on to the terminal, a file or other such programs.
_PASSIVE = re.compile(
    r"tee|cat|e?grep|less|more|head|tail|wc|sort|uniq|column|logger|nl|fold|tr|cut|tac|ts"
)
_PRINTING = ("echo", "printf")
_RUN_A_FILE = re.compile(r"source|\.|sbatch|qsub|bsub|parallel")
_EDITING = re.compile(r"sed|perl|awk|envsubst|mv|cp|ln|install|patch")
_WRAPPING = re.compile(r"env|command|exec|nohup|nice|time|timeout|sudo|setsid|stdbuf|ionice")
# Names in the text of a program that may start another one.
_STARTING = re.compile(r"\b(?:system|popen|exec\w*|subprocess|spawn\w*)\b", re.IGNORECASE)
_TRAINERS_FOLDER = re.compile(r"(?:.*/)?open_instruct/?")


def explain_unfollowed(
    name: Argument, arguments: Sequence[Argument], command: SimpleCommand, variables: Variables
) -> str | None:
    """Return why a command may start a trainer unknown to lint; None if it does not look so.

    `name` is the argument that names the command, which starts no known trainer. Of several
    reasons, the first is returned.
    """
    if not name.is_resolved:
        calls_arguments = command.depth and name.text in ("$@", "$*")  # the calls are checked
        is_pattern = re.search(r"[$`]", name.text) is None  # a pattern of `case`
        if calls_arguments or is_pattern:
            return None
        return f"{name.text} is the command, and its value is not known here"
    rest = arguments[arguments.index(name) + 1 :]
    return (
        _explain_builtin(name.base, rest)
        or _explain_program(arguments, rest, command)
        or _explain_arguments(name.base, arguments, rest, command, variables)
    )


def _explain_builtin(base: str, rest: Sequence[Argument]) -> str | None:
    """Return why a builtin of the shell may start a trainer."""
    if base == "eval" and any(map(_is_unresolved, rest)):
        return "eval runs a text that is not known here"
    if base in ("source", ".") and rest and _is_stream(rest[0]):
        return "what another command prints is run"
    if base == "alias" and any(map(_mentions_trainer, rest)):
        return "an alias is a trainer's command"
    return None


def _explain_program(
    arguments: Sequence[Argument], rest: Sequence[Argument], command: SimpleCommand
) -> str | None:
    """Return why the program that a shell, Python or a launcher runs may start a trainer."""
    if _reads_program(arguments, command):
        return "the commands come from a stream"
    if _has_script(rest, _is_unresolved):
        return "the text that a shell runs is not known here"
    if any(map(is_python, arguments)) and _has_script(rest, _mentions_trainer):
        return "a Python text mentions a trainer"
    if script_is_unknown(arguments) or _xargs_runs_input(arguments):
        return "the script that it starts is not known here"
    return None


def _explain_arguments(
    base: str,
    arguments: Sequence[Argument],
    rest: Sequence[Argument],
    command: SimpleCommand,
    variables: Variables,
) -> str | None:
    """Return why a command may start a trainer that one of its arguments mentions."""
    if any(_uses_trainer_variable(argument, variables) for argument in rest):
        return "a value that mentions a trainer is not known here"
    if names_trainer_script(arguments):
        return f"whether {base} starts the trainer is not known"
    for option, argument in pairwise(arguments):
        if starts_trainer(argument.raw) and not option.text.startswith("--"):
            return f"what {base} does with a text that starts a trainer is not known"
    reads_pipe = command.before in ("|", "|&")
    if reads_pipe and any(_STARTING.search(argument.text) for argument in rest):
        return f"what the program of {base} starts is not known"
    return None


def _is_unresolved(argument: Argument) -> bool:
    return not argument.is_resolved


def _uses_trainer_variable(argument: Argument, variables: Variables) -> bool:
    """Return True if an argument uses a variable whose value mentions a trainer."""
    return not variables.trainer_commands.isdisjoint(VARIABLE.findall(argument.raw))


def is_python(argument: Argument) -> bool:
    """Return True if the argument is an interpreter's name or path."""
    return argument.is_resolved and is_python_name(argument.base)


def find_unfollowed_declarations(
    document: ShellDocument, expanded: Sequence[Sequence[Argument]], variables: Variables
) -> Iterator[ScanResult]:
    """Yield what changes the meaning of other commands of the text, or depends on them.

    Examples are launchers that are redefined, and the doubts of variables. `expanded` has the
    arguments of each command.
    """
    for offset, doubt in variables.doubts.items():
        yield not_followed(doubt, variables.line_of(offset))
    enters_folder = False
    for command, arguments in zip(document.commands, expanded, strict=True):
        if _names_trainers_folder(arguments) and not is_assignment(command.words[0]):
            enters_folder = True
    written = _files_written(document.commands)
    for index, command in enumerate(document.commands):
        texts = [word.text for word in without_prefix(command.words)]
        reasons = _explain_declaration(command, texts)
        if _is_printed_to_program(document.commands, index, texts):
            reasons.append("the text is printed to a command that may run it")
        if _runs_file(texts, written):
            reasons.append("it runs a file that this text writes")
        if enters_folder and any(map(_is_trainer_here, texts[1:])):
            reasons.append("whether its script is a trainer depends on the folder")
        line = variables.line_of(command.start)
        for reason in reasons:
            yield not_followed(reason, line)


def _explain_declaration(command: SimpleCommand, texts: Sequence[str]) -> list[str]:
    """Return how a command changes the meaning of others. `texts` are its words from its name on."""
    reasons = []
    if _redefines_launcher(command, texts):
        reasons.append(
            "a launcher is redefined, so what the commands with its name start is unknown"
        )
    if texts[0] == "set" and any(text.startswith("-") and "k" in text for text in texts[1:]):
        reasons.append("'set -k' takes assignments out of the arguments")
    assignments = [word for word in without_prefix(command.words) if is_assignment(word)]
    if any(map(_holds_code, assignments)):
        reasons.append("a value contains a substitution that may run later")
    return reasons


def _is_printed_to_program(
    commands: Sequence[SimpleCommand], index: int, texts: Sequence[str]
) -> bool:
    """Return True if a command prints a trainer's command to another one that may run it."""
    prints_command = texts[0] in _PRINTING and starts_trainer(" ".join(texts[1:]))
    return prints_command and _is_read_by_program(commands, index)


def _names_trainers_folder(arguments: Sequence[Argument]) -> bool:
    return any(_TRAINERS_FOLDER.fullmatch(argument.text) for argument in arguments)


def _redefines_launcher(command: SimpleCommand, texts: Sequence[str]) -> bool:
    """Return True if a function or an alias has the name of a launcher."""
    redefined = [defined_function(command)]
    if texts[0] == "alias":
        redefined += texts[1:2]
    for text in redefined:
        if not text:
            continue
        if is_launcher_name(text.partition("=")[0]) or text == "command_not_found_handle":
            return True
    return False


def _is_trainer_here(text: str) -> bool:
    """Return True for the name of a trainer's script, without its folder."""
    if not text.endswith(".py"):
        return False
    return trainer_from_path(f"open_instruct/{text.removeprefix('./')}") is not None


def _files_written(commands: Sequence[SimpleCommand]) -> set[str]:
    """Return the files that the commands write, but those of a here-document.

    The body of a here-document is read on its own.
    """
    names: set[str] = set()
    for command in commands:
        texts = [word.text.removeprefix("./") for word in command.words]
        if command.input != "<<" or texts[0] not in ("cat", "tee"):
            names.update(text.removeprefix("./") for text in command.outputs)
            names.update(texts[1:] if texts[0] == "tee" else ())
        if _EDITING.fullmatch(texts[0]):
            names.update(texts[1:])
    return names


def _runs_file(texts: Sequence[str], written: Set[str]) -> bool:
    """Return True if the command runs one of the files, itself or through another program."""
    names = list(texts[:1])
    for index, text in enumerate(texts):
        base = text.rsplit("/", 1)[-1]
        if _RUN_A_FILE.fullmatch(base):
            names = list(texts[index + 1 :])
        elif _SHELL.fullmatch(base) or is_python_name(base):
            names = [name for name in texts[index + 1 :] if not name.startswith("-")][:1]
    return any(name.removeprefix("./") in written for name in names)


def _xargs_runs_input(arguments: Sequence[Argument]) -> bool:
    """Return True if xargs runs a command that stands in its input."""
    return arguments[0].text == "xargs" and _WRAPPING.fullmatch(arguments[-2].text) is not None


def _is_read_by_program(commands: Sequence[SimpleCommand], index: int) -> bool:
    """Return True if what the command prints goes through a pipe to one that may run it."""
    while commands[index].after in ("|", "|&") and index + 1 < len(commands):
        index += 1
        if _PASSIVE.fullmatch(commands[index].words[0].text) is None:
            return True
    return False


def _holds_code(assignment: ShellWord) -> bool:
    """Return True for `X='$(...)'` with a command that starts a trainer."""
    for piece in assignment.pieces:
        is_literal = piece.kind == "text" and piece.quoted
        if is_literal and _CODE_IN_TEXT.search(piece.text) and starts_trainer(piece.text):
            return True
    return False


def _is_stream(argument: Argument) -> bool:
    return argument.text.startswith(("<(", "/dev/"))


def _mentions_trainer(argument: Argument) -> bool:
    return MARKER.search(argument.text) is not None


def _has_script(arguments: Sequence[Argument], is_such: Callable[[Argument], bool]) -> bool:
    """Return True if an argument that `is_such` accepts follows `-c`, `--wrap` or the like."""
    return any(
        _SCRIPT_OPTION.fullmatch(option.text) is not None and is_such(script)
        for option, script in pairwise(arguments)
    )


def _reads_program(arguments: Sequence[Argument], command: SimpleCommand) -> bool:
    """Return True for a shell or Python that reads its program from a stream.

    That is a pipe, a redirected input or `<(...)`.
    """
    programs = [
        index
        for index, argument in enumerate(arguments)
        if is_python(argument) or (argument.is_resolved and _SHELL.fullmatch(argument.base))
    ]
    if not programs:
        return False
    rest = arguments[programs[0] + 1 :]
    if rest and _is_stream(rest[0]):
        return True
    if any(word.text.startswith("<(") for word in rest):
        return True
    options = [word.text for word in rest if word.text.startswith(("-", "+"))]
    has_program = any(option == "-m" or _SCRIPT_OPTION.fullmatch(option) for option in options)
    if has_program or command.input == "<<":
        return False
    has_input = command.before in ("|", "|&") or command.input != ""
    # Without any argument it reads the input of the whole text, a group, a function or a coprocess.
    inherits_input = command.depth > 0 or len(arguments) == 1 or arguments[0].text == "coproc"
    if not has_input and not inherits_input:
        return False
    return "-s" in options or len(options) == len(rest)
