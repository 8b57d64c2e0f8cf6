"""Find where a simple command starts a trainer, and which arguments belong to the trainer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from launch.check.lint.scan_result import TrainerCommand
from launch.check.lint.shell_syntax import Argument
from launch.check.lint.trainers import TrainerScript, trainer_from_module, trainer_from_path, trainer_from_trl_command

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*w?(?:\.exe)?|(?:py|ipython)")
_LAUNCHER_MODULES = frozenset(
    {"accelerate.commands.launch", "torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner"}
)
_LAUNCHERS = frozenset({"torchrun", "deepspeed", "accelerate-launch"})
_UV_VALUES = re.compile(
    r"-p|--(?:extra|with|with-editable|with-requirements|python|project|directory|env-file|group|no-group|only-group|"
    r"package|index|index-url|extra-index-url|find-links|config-file|cache-dir|refresh-package|color|link-mode)"
)
_PYTHON_VALUES = frozenset({"-X", "-W", "--check-hash-based-pycs"})
# Commands that show, search or edit their arguments instead of running them.
NON_RUNNERS = re.compile(
    r"echo|printf|cat|e?grep|rg|git|sed|ls|vim?|nano|less|more|head|tail|cp|mv|rm|diff|test|\[\[?|:|case|for|which|file"
    r"|wc|touch|mkdir|ln|chmod|find|export|declare|ruff|black|mypy|flake8|isort|cd|pushd|scp|rsync|tar|pylint|pytest|tee"
)
_TOOLS = re.compile(r"ruff|black|mypy|flake8|isort|pylint|pytest|py_compile|compileall|pydoc|pyright|ty")
_RUNNING = ("-exec", "-ok")  # actions of find
_ENV_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=.*", re.DOTALL)


def find_trainer_starts(arguments: Sequence[Argument]) -> list[TrainerCommand]:
    """Return every trainer that one simple command starts (several `--` may each start one)."""
    starts = (_find_start(segment) for segment in _split_at_commands(arguments))
    return [start for start in starts if start is not None]


def command_name(arguments: Sequence[Argument]) -> Argument | None:
    """Return the argument that names the command, behind the assignments before it."""
    return next((argument for argument in arguments if not _ENV_ASSIGNMENT.fullmatch(argument.text)), None)


def is_python_name(base: str) -> bool:
    """Return True for `python3.12` and the like."""
    return _PYTHON.fullmatch(base) is not None


def is_launcher_name(base: str) -> bool:
    """Return True for the name of a program that starts a trainer's script."""
    return base in _LAUNCHERS or base in ("accelerate", "uv", "trl", "env") or is_python_name(base)


def script_is_unknown(arguments: Sequence[Argument]) -> bool:
    """Return True if a launcher's script depends on a value that the text does not determine."""
    for index, argument in enumerate(arguments):
        base = argument.text.rsplit("/", 1)[-1]
        if not argument.is_resolved or not is_launcher_name(base) or base == "env":
            continue
        rest = list(arguments[index + 1 :])
        if is_python_name(base):
            while rest and rest[0].is_resolved and rest[0].text.startswith("-") and rest[0].text not in ("-c", "-m"):
                rest = rest[2 if rest[0].text in _PYTHON_VALUES else 1 :]
            if not rest or rest[0].text != "-m" or len(rest) < 2:
                return bool(rest) and not rest[0].is_resolved
            if rest[1].text not in _LAUNCHER_MODULES:
                return not rest[1].is_resolved
        elif base in ("trl", "uv"):
            return bool(rest) and not rest[0].is_resolved
        scripts = [word for word in rest if word.is_resolved and word.text.endswith(".py")]
        return not scripts and any(not word.is_resolved for word in rest)
    return False


def names_trainer_script(arguments: Sequence[Argument]) -> bool:
    """Return True if a trainer's script or module is an argument, and not the value of an option or of a tool."""
    for before, argument in pairwise(arguments):
        if _TOOLS.fullmatch(before.text.rsplit("/", 1)[-1]) is not None:
            return False
        trainer = trainer_from_path(argument.text) or trainer_from_module(argument.text)
        if trainer is not None and (before.text == "-m" or not before.text.startswith("-")):
            return True
    return False


def with_supplied(arguments: Sequence[Argument]) -> Sequence[Argument]:
    """Return the arguments with those that xargs, parallel or find puts in, which the text does not determine."""
    name = command_name(arguments)
    base = "" if name is None else name.text.rsplit("/", 1)[-1]
    if base not in ("xargs", "parallel", "find"):
        return arguments
    texts = [argument.text for argument in arguments]
    end = next((index for index, text in enumerate(texts) if text in (";", "+", ":::", "::::")), len(texts))
    option = next((index for index, text in enumerate(texts) if text.startswith(("-I", "-i", "--replace"))), None)
    mark = "{}" if option is None else re.sub(r"-[Ii]|--replace=?", "", texts[option]) or texts[option + 1]
    mark = mark if base == "xargs" else "{}"
    supplied = [
        argument._replace(
            text=argument.text.replace(mark, "$_"),
            raw=argument.raw.replace(mark, "$_"),
            is_resolved=False,
            prefix=argument.text[: argument.text.index(mark)],
        )
        if mark in argument.text
        else argument
        for argument in arguments[:end]
    ]
    if base == "find" or option is not None or any(mark in text for text in texts):
        return supplied
    return [*supplied, Argument("...", arguments[-1].line, is_resolved=False, is_single=False)]


def is_mason(arguments: Sequence[Argument]) -> bool:
    """Return True for upstream's job submitter, which joins what follows each `--` for another shell to parse."""
    return any(argument.is_resolved and argument.text.rsplit("/", 1)[-1] == "mason.py" for argument in arguments[:8])


def split_at_separators(arguments: Sequence[Argument]) -> list[list[Argument]]:
    """Return the groups of arguments after each `--`, dropping what precedes the first (mason.py:244-264)."""
    groups: list[list[Argument]] = []
    for argument in arguments:
        if argument.text == "--" and argument.is_resolved:
            groups.append([])
        elif groups:
            groups[-1].append(argument)
    return [group for group in groups if group]


def only_reads_arguments(arguments: Sequence[Argument]) -> bool:
    """Return True if the command only shows, searches or edits its arguments."""
    for argument in arguments:
        if not _ENV_ASSIGNMENT.fullmatch(argument.text):
            base = argument.text.rsplit("/", 1)[-1]
            runs = base == "find" and any(other.text.startswith(_RUNNING) for other in arguments)
            return argument.is_resolved and not runs and NON_RUNNERS.fullmatch(base) is not None
    return True


def _split_at_commands(arguments: Sequence[Argument]) -> list[Sequence[Argument]]:
    starts = [0]
    for index, argument in enumerate(arguments[:-1]):
        if argument.text == "--" and argument.is_resolved and _is_launcher(arguments, index + 1):
            starts.append(index + 1)
    ends = [start - 1 for start in starts[1:]] + [len(arguments)]
    return [arguments[start:end] for start, end in zip(starts, ends, strict=True)]


def _is_launcher(arguments: Sequence[Argument], index: int) -> bool:
    while index < len(arguments) and _ENV_ASSIGNMENT.fullmatch(arguments[index].text):
        index += 1
    if index == len(arguments):
        return False
    return is_launcher_name(arguments[index].text.rsplit("/", 1)[-1])


def _find_start(arguments: Sequence[Argument]) -> TrainerCommand | None:
    index, size = 0, len(arguments)
    first = next((i for i, argument in enumerate(arguments) if not _ENV_ASSIGNMENT.fullmatch(argument.text)), size)
    while index < size:
        trainer: TrainerScript | None = None
        base = arguments[index].text.rsplit("/", 1)[-1]
        following = arguments[index + 1].text if index + 1 < size else ""
        if _PYTHON.fullmatch(base):
            trainer, index = _match_python(arguments, index + 1)
        elif base == "accelerate" and following == "launch":
            trainer, index = _match_launcher(arguments, index + 2)
        elif base in _LAUNCHERS:
            trainer, index = _match_launcher(arguments, index + 1)
        elif base == "uv" and following == "run":
            trainer, index = _match_uv(arguments, index + 2)
        elif base == "trl":
            trainer = trainer_from_trl_command(following)
            index += 2 if trainer else 1
        else:
            # A bare `finetune.py` may be a name in prose; a path is a command.
            if index == first and "/" in arguments[index].text:
                trainer = trainer_from_path(arguments[index].text)
            index += 1
        if trainer is not None:
            return TrainerCommand(
                trainer,
                arguments[0].line,
                tuple(arguments[index:]),
                takes_accelerate_options=trainer.name == f"trl_{arguments[index - 1].text}",
                launcher=tuple(arguments[:index]),
            )
    return None


# The trainer and the index of its first argument; or None and the index where to continue.
_ScriptMatch = tuple[TrainerScript | None, int]


def _match_python(arguments: Sequence[Argument], index: int) -> _ScriptMatch:
    """Parse what follows `python`: its own options, then a script or `-m MODULE`."""
    while index < len(arguments):
        text = arguments[index].text
        if text.startswith("-m") and index + (text == "-m") < len(arguments):
            index += text == "-m"
            module = text[2:] or arguments[index].text
            if module in _LAUNCHER_MODULES:
                return _match_launcher(arguments, index + 1)
            if module in ("trl", "trl.cli", "trl.cli.main") and index + 1 < len(arguments):
                trainer = trainer_from_trl_command(arguments[index + 1].text)
                return trainer, index + (2 if trainer else 1)
            return trainer_from_module(module), index + 1
        if text == "-c":
            return None, index + 2
        if not text.startswith("-"):
            return trainer_from_path(text), index + 1
        index += 2 if text in _PYTHON_VALUES else 1
    return None, index


def _match_launcher(arguments: Sequence[Argument], index: int) -> _ScriptMatch:
    """Parse what follows `accelerate launch` or torchrun: options, then the first script or module."""
    is_module = False
    while index < len(arguments):
        text = arguments[index].text
        index += 1
        if text in ("-m", "--module"):
            is_module = True
        elif is_module and not text.startswith("-"):
            if trainer := trainer_from_module(text):
                return trainer, index
        elif text.endswith(".py") and not text.startswith("-"):
            return trainer_from_path(text), index
        elif text == "--":
            return None, index
    return None, index


def _match_uv(arguments: Sequence[Argument], index: int) -> _ScriptMatch:
    """Parse what follows `uv run`: its options, then a command, a script or `-m MODULE`."""
    while index < len(arguments) and arguments[index].text.startswith("-"):
        text = arguments[index].text
        if text in ("-m", "--module") and index + 1 < len(arguments):
            return trainer_from_module(arguments[index + 1].text), index + 2
        index += 2 if _UV_VALUES.fullmatch(text) else 1
    trainer = trainer_from_path(arguments[index].text) if index < len(arguments) else None
    return trainer, index + bool(trainer)
