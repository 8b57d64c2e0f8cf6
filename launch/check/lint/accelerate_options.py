"""Reads the options of accelerate's launcher, and checks the files that they name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path

from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainer_commands import LintFinding, error
from launch.planning.library_key_check import check_config_file
from launch.upstream.libraries.library_keys import library_keys

_SOURCE = "accelerate/commands/launch.py"
# trl/cli/accelerate_config.py consumes this option before accelerate starts.
_TRL_OPTIONS = {"--accelerate_config": True}
_FILES = {"--config_file": "accelerate", "--deepspeed_config_file": "deepspeed"}


@cache
def read_launcher_flags(packages: tuple[Path, ...]) -> Mapping[str, bool] | None:
    """Read {option string: whether it takes a value} from accelerate's source.

    None is returned if accelerate is not installed.
    """
    sources = [folder / _SOURCE for folder in packages if (folder / _SOURCE).is_file()]
    if not sources:
        return None
    flags = dict(_TRL_OPTIONS)
    for node in ast.walk(ast.parse(sources[0].read_bytes())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "add_argument":
            continue
        actions = [keyword for keyword in node.keywords if keyword.arg == "action"]
        takes_value = not any("store_" in ast.unparse(action) for action in actions)
        for argument in node.args:
            name = argument.value if isinstance(argument, ast.Constant) else None
            if isinstance(name, str) and name.startswith("--"):
                flags[name] = takes_value
                flags["--" + name[2:].replace("_", "-")] = takes_value
    return flags


def drop_launcher_flags(
    arguments: Sequence[Argument],
    launcher_flags: Mapping[str, bool],
    trainer_flags: Collection[str],
) -> tuple[Argument, ...]:
    """Return the arguments without the launcher's flags.

    The trainer keeps its own flags, which are `trainer_flags`, with underscores.
    """
    kept: list[Argument] = []
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        name, equals, _ = argument.prefix.partition("=")
        is_trainer_flag = name not in launcher_flags or name[2:].replace("-", "_") in trainer_flags
        if is_trainer_flag or not (argument.is_resolved or equals):
            kept.append(argument)
        elif launcher_flags[name] and not equals:
            index += 1
    return tuple(kept)


def find_file(argument: Argument, script: str) -> Iterator[Path]:
    """Yield the path of the file that an argument of a script's command names, if it exists."""
    path = _find_file(argument.text, script) if argument.is_resolved else None
    if path is not None:
        yield path


def named_files(
    arguments: Sequence[Argument], script: str, options: Container[str]
) -> Iterator[tuple[str, int, Path]]:
    """Yield the option, its line and the path of each existing file that one of the options names.

    The path is relative to the working folder, the script's folder, or a folder above it.
    """
    for argument, following in pairwise([*arguments, literal_argument("", 0)]):
        name, equals, value = argument.text.partition("=")
        option = name.replace("-", "_").replace("__", "--", 1)
        if option not in options or not argument.is_resolved:
            continue
        if not equals:
            if not following.is_resolved:
                continue
            value = following.text
        path = _find_file(value, script)
        if path is not None:
            yield option, argument.line, path


def _find_file(name: str, script: str) -> Path | None:
    """Find a file relative to the working folder, the script's folder, or a folder above it."""
    with suppress(OSError):  # the name is too long
        for folder in (Path(), *Path(script).absolute().parents):
            if (folder / name).is_file():
                return folder / name
    return None


def check_named_files(
    script: str, launcher: Sequence[Argument], packages: Sequence[Path]
) -> Iterator[LintFinding]:
    """Check the files that a launcher's options name, against the installed libraries."""
    for option, line, path in named_files(launcher, script, _FILES):
        flag = option.removeprefix("--")
        for problem in check_config_file(path, library_keys(_FILES[option], packages)):
            message = f"{problem.where}: {problem.message}"
            yield error(problem.id, message, line, flag, cure=problem.cure)
