"""Find where a simple command starts a trainer, and which arguments belong to the trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from launch.check.lint.shell_syntax import Argument
from launch.check.lint.trainer_commands import (
    LintFinding,
    TrainerCommand,
    TrainerScript,
    error,
    is_trl_example,
    trainer_from_module,
    trainer_from_path,
    trainer_from_trl_command,
    warning,
)
from launch.worker.moves import path_at_pin

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*w?(?:\.exe)?|(?:py|ipython)")
_LAUNCHER_MODULES = frozenset(
    {
        "accelerate.commands.launch",
        "torch.distributed.run",
        "torch.distributed.launch",
        "deepspeed.launcher.runner",
    }
)
_LAUNCHERS = frozenset({"torchrun", "deepspeed", "accelerate-launch"})
_UV_VALUES = re.compile(
    r"-p|--(?:extra|with|with-editable|with-requirements|python|project|directory|env-file|"
    r"group|no-group|only-group|package|index|index-url|extra-index-url|find-links|"
    r"config-file|cache-dir|refresh-package|color|link-mode|"
    r"flavor|secrets|env|image|namespace|timeout)"  # of `hf jobs uv run`
)
_PYTHON_VALUES = re.compile(r"-[XW]|--check-hash-based-pycs")
_TRL_MODULE = "trl.cli.main"
# Packages without a __main__.py, which `python -m` refuses.
_TRL_PACKAGES = frozenset({"trl", "trl.cli"})
# Commands that show, search or edit their arguments instead of running them.
NON_RUNNERS = re.compile(
    r"echo|printf|cat|e?grep|rg|git|sed|ls|vim?|nano|less|more|head|tail|cp|mv|rm|diff"
    r"|test|\[\[?|:|case|for|which|file|wc|touch|mkdir|ln|chmod|find|export|declare"
    r"|ruff|black|mypy|flake8|isort|cd|pushd|scp|rsync|tar|pylint|pytest|tee"
)
_TOOLS = re.compile(
    r"ruff|black|mypy|flake8|isort|pylint|pytest|py_compile|compileall|pydoc|pyright|ty"
)
_RUNNING = ("-exec", "-ok")  # actions of find
_ENV_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=.*", re.DOTALL)


class _Start(NamedTuple):
    """What a launcher starts."""

    trainer: TrainerScript | None
    end: int  # the index of the next argument
    is_unknown: bool = False  # it depends on a value that the text does not determine


def find_trainer_starts(arguments: Sequence[Argument]) -> list[TrainerCommand]:
    """Return every trainer that one simple command starts (several `--` may each start one)."""
    first, *groups = split_at_separators(arguments)
    segments = [first]
    for group in groups:
        name = command_name(group[1:])
        if name is not None and is_launcher_name(name.base):
            segments.append(group[1:])
        else:
            segments[-1] += group
    commands = [_find_trainer_start(segment) for segment in segments]
    return [command for command in commands if command is not None]


def _find_trainer_start(arguments: list[Argument]) -> TrainerCommand | None:
    """Return the first trainer that the arguments start, None if they start none."""
    for start in _starts(arguments):
        if start.trainer is None:
            continue
        started_by = arguments[start.end - 1].text
        launcher = arguments[: start.end]
        return TrainerCommand(
            start.trainer,
            arguments[0].line,
            tuple(arguments[start.end :]),
            notes=tuple(_notes_on_start(launcher)),
            # it may have other flags than the script that replaced it
            is_truncated=is_trl_example(started_by),
            takes_accelerate_options=start.trainer.name == f"trl_{started_by}",
            launcher=tuple(launcher),
        )
    return None


def _notes_on_start(launcher: Sequence[Argument]) -> Iterator[LintFinding]:
    """Yield what is wrong with how a trainer is started."""
    started_by = launcher[-1]
    path = f"open_instruct/{started_by.base.removeprefix('open_instruct.').removesuffix('.py')}.py"
    if path_at_pin(path) != path:
        message = f"upstream has moved {path}, whose old name works for one release"
        cure = f"write {path_at_pin(path)}"
        yield warning("moved_script", message, started_by.line, cure=cure)
    if is_trl_example(started_by.text):
        name = started_by.base.removesuffix(".py")
        message = (
            f"TRL's repository has this script in trl/scripts/{name}.py, whose flags are checked; "
            "the old file only names the new place"
        )
        yield warning("moved_script", message, started_by.line, cure=f"write trl {name}")
    for before, module in pairwise(launcher):
        if before.text in ("-m", "--module") and module.text in _TRL_PACKAGES:
            message = f"'{module.text}' is a package that Python cannot run: it has no __main__.py"
            cure = f"write -m trl.scripts.{started_by.text}"
            yield error("not_a_module", message, module.line, cure=cure)


def command_name(arguments: Sequence[Argument]) -> Argument | None:
    """Return the argument that names the command: the first that is not an assignment."""
    for argument in arguments:
        if not _ENV_ASSIGNMENT.fullmatch(argument.text):
            return argument
    return None


def is_python_name(base: str) -> bool:
    """Return True for `python3.12` and the like."""
    return _PYTHON.fullmatch(base) is not None


def is_launcher_name(base: str) -> bool:
    """Return True for the name of a program that starts a trainer's script."""
    return base in _LAUNCHERS or base in ("accelerate", "uv", "trl", "env") or is_python_name(base)


def script_is_unknown(arguments: Sequence[Argument]) -> bool:
    """Return True if a launcher's script depends on a value that the text does not determine."""
    return any(start.is_unknown for start in _starts(arguments))


def names_trainer_script(arguments: Sequence[Argument]) -> bool:
    """Return True if a trainer's script or module is an argument of its own.

    The value of an option and the argument of a tool, such as a linter, do not count.
    """
    for before, argument in pairwise(arguments):
        if _TOOLS.fullmatch(before.base) is not None:
            return False
        trainer = trainer_from_path(argument.text) or trainer_from_module(argument.text)
        if trainer is not None and (before.text == "-m" or not before.text.startswith("-")):
            return True
    return False


def with_supplied(name: Argument, arguments: Sequence[Argument]) -> Sequence[Argument]:
    """Return the arguments with those that xargs, parallel or find supplies.

    The text does not determine the supplied ones.
    """
    if name.base not in ("xargs", "parallel", "find"):
        return arguments
    own_arguments = _before_input(arguments)
    texts = [argument.text for argument in arguments]
    options = [
        index for index, text in enumerate(texts) if text.startswith(("-I", "-i", "--replace"))
    ]
    mark = "{}"
    if options and name.base == "xargs":
        mark = _replacement_mark(texts[options[0] :]) or mark
    supplied = [_replace_mark(argument, mark) for argument in own_arguments]
    if name.base == "find" or options or any(mark in text for text in texts):
        return supplied
    return [*supplied, Argument("...", arguments[-1].line, is_resolved=False, is_single=False)]


def _before_input(arguments: Sequence[Argument]) -> Sequence[Argument]:
    """Return the arguments before the end of find's action, or the input of parallel."""
    for index, argument in enumerate(arguments):
        if argument.text in (";", "+", ":::", "::::"):
            return arguments[:index]
    return arguments


def _replacement_mark(texts: Sequence[str]) -> str:
    """Return the mark that the option at the start of `texts` sets: `-I%`, `-I %`."""
    attached = re.sub(r"-[Ii]|--replace=?", "", texts[0])
    return attached or "".join(texts[1:2])


def _replace_mark(argument: Argument, mark: str) -> Argument:
    """Return the argument with an unknown variable in place of the mark."""
    if mark not in argument.text:
        return argument
    return argument._replace(
        text=argument.text.replace(mark, "$_"),
        raw=argument.raw.replace(mark, "$_"),
        is_resolved=False,
        prefix=argument.text[: argument.text.index(mark)],
    )


def is_mason(arguments: Sequence[Argument]) -> bool:
    """Return True for upstream's job submitter, which joins what follows each `--`.

    Another shell parses the joined text.
    """
    return any(argument.is_resolved and argument.base == "mason.py" for argument in arguments[:8])


def split_at_separators(arguments: Sequence[Argument]) -> list[list[Argument]]:
    """Return the arguments in groups, of which each but the first begins with a `--`."""
    groups: list[list[Argument]] = [[]]
    for argument in arguments:
        if argument.text == "--" and argument.is_resolved:
            groups.append([])
        groups[-1].append(argument)
    return groups


def only_reads_arguments(name: Argument, arguments: Sequence[Argument]) -> bool:
    """Return True if the command of this name only shows, searches or edits its arguments."""
    if name.base == "command":  # `command -v python` prints a path
        return any(argument.text in ("-v", "-V") for argument in arguments[1:2])
    runs = name.base == "find" and any(argument.text.startswith(_RUNNING) for argument in arguments)
    return name.is_resolved and not runs and NON_RUNNERS.fullmatch(name.base) is not None


def _starts(arguments: Sequence[Argument]) -> Iterator[_Start]:
    """Yield what each launcher among the arguments starts, in their order."""
    name = command_name(arguments)
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        following = arguments[index + 1] if index + 1 < len(arguments) else argument
        is_accelerate = argument.base == "accelerate"
        if is_python_name(argument.base):
            start = _match_program(arguments, index + 1, _PYTHON_VALUES)
        elif argument.base == "uv":
            options_start = index + 2 if following.text == "run" else index + 1
            start = _match_program(arguments, options_start, _UV_VALUES)
        elif argument.base in _LAUNCHERS or (is_accelerate and following.text == "launch"):
            start = _match_launcher(arguments, index + 1)
        elif argument.base == "trl":
            start = _match_trl(arguments, index + 1)
        else:
            # A bare `finetune.py` may be a name in prose; a path is a command.
            is_path = argument is name and "/" in argument.text
            trainer = trainer_from_path(argument.text) if is_path else None
            start = _Start(trainer, index + 1, is_accelerate and not following.is_resolved)
        yield start
        index = start.end


def _match_program(
    arguments: Sequence[Argument], index: int, takes_value: re.Pattern[str]
) -> _Start:
    """Parse what follows `python` or `uv run`.

    That is their own options, then a script, `-m MODULE` or another command.
    """
    is_unknown = False
    while index < len(arguments):
        text = arguments[index].text
        is_unknown |= not arguments[index].is_resolved
        if not text.startswith("-"):
            trainer = trainer_from_path(text)
            is_script = trainer is not None or takes_value is _PYTHON_VALUES
            return _Start(trainer, index + 1 if is_script else index, is_unknown)
        if text.startswith("-m") or text == "--module":
            if text in ("-m", "--module"):
                index += 1
            if index == len(arguments):
                return _Start(None, index)
            return _match_module(arguments, index)
        if text == "-c":
            return _Start(None, index + 2)
        index += 2 if takes_value.fullmatch(text) else 1
    return _Start(None, index, is_unknown)


def _match_module(arguments: Sequence[Argument], index: int) -> _Start:
    module = arguments[index].text.removeprefix("-m")
    if module in _LAUNCHER_MODULES:
        return _match_launcher(arguments, index + 1)
    if module == _TRL_MODULE or module in _TRL_PACKAGES:
        return _match_trl(arguments, index + 1)
    return _Start(trainer_from_module(module), index + 1, not arguments[index].is_resolved)


def _match_trl(arguments: Sequence[Argument], index: int) -> _Start:
    if index == len(arguments):
        return _Start(None, index)
    trainer = trainer_from_trl_command(arguments[index].text)
    return _Start(trainer, index + bool(trainer), not arguments[index].is_resolved)


def _match_launcher(arguments: Sequence[Argument], index: int) -> _Start:
    """Parse what follows `accelerate launch` or torchrun: options, then a script or module."""
    is_module = False
    is_unknown = False
    for end, argument in enumerate(arguments[index:], index + 1):
        text = argument.text
        is_unknown |= not argument.is_resolved
        is_trl = (
            text == _TRL_MODULE or text in _TRL_PACKAGES if is_module else argument.base == "trl"
        )
        if text in ("-m", "--module"):
            is_module = True
        elif is_trl:  # also the program itself: `accelerate launch $(which trl) sft`
            return _match_trl(arguments, end)
        elif is_module:
            trainer = trainer_from_module(text)
            if trainer is not None:
                return _Start(trainer, end)
            if text == "--":
                return _Start(None, end, is_unknown)
        elif text.endswith(".py") and not text.startswith("-"):
            return _Start(trainer_from_path(text), end, not argument.is_resolved)
        elif text == "--":
            return _Start(None, end, is_unknown)
    return _Start(None, len(arguments), is_unknown)
