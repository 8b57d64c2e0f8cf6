"""Reads the options of accelerate's launcher, and checks the files that they name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.check.lint.trainer_commands import LintFinding, error, warning
from launch.planning.library_key_check import (
    cannot_save_model,
    check_config_file,
    conflicting_keys,
    named_deepspeed_file,
    read_config_file,
)
from launch.upstream.libraries.library_keys import library_keys

_SOURCE = "accelerate/commands/launch.py"
# trl/cli/accelerate_config.py consumes this option before accelerate starts.
_TRL_OPTIONS = {"--accelerate_config": True}
# The options that name a file, and the library that reads it: those of accelerate, those of `trl sft`
# for it, and those of a trainer over transformers.
_FILES = {"--config_file": "accelerate", "--deepspeed_config_file": "deepspeed"}
TRL_FILES = {**_FILES, "--accelerate_config": "accelerate"}
TRANSFORMERS_FILES = {"--deepspeed": "deepspeed"}


@cache
def read_launcher_flags(packages: tuple[Path, ...]) -> Mapping[str, bool]:
    """Read {option string: whether it takes a value} from accelerate's source.

    The lock's options are returned if accelerate is not installed.
    """
    sources = [folder / _SOURCE for folder in packages if (folder / _SOURCE).is_file()]
    if not sources:
        return {**_TRL_OPTIONS, **library_keys("accelerate", ()).options}
    flags = dict(_TRL_OPTIONS)
    for node in ast.walk(ast.parse(sources[0].read_bytes())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "add_argument":
            continue
        actions = [keyword for keyword in node.keywords if keyword.arg == "action"]
        takes_value = not any(
            "store_" in ast.unparse(action) or "help" in ast.unparse(action) for action in actions
        )
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


def find_named_files(argument: Argument, script: str) -> Iterator[Path]:
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
        _, equals, value = argument.text.partition("=")
        option = _option_name(argument)
        if option not in options or not argument.is_resolved:
            continue
        if not equals:
            if not following.is_resolved:
                continue
            value = following.text
        path = _find_file(value, script)
        if path is not None:
            yield option, argument.line, path


def _option_name(argument: Argument) -> str:
    """Return the option of an argument, with underscores: `--config_file`."""
    return argument.text.partition("=")[0].replace("-", "_").replace("__", "--", 1)


def _find_file(name: str, script: str) -> Path | None:
    """Find a file relative to the working folder, the script's folder, or a folder above it."""
    with suppress(OSError):  # the name is too long
        for folder in (Path(), *Path(script).absolute().parents):
            if (folder / name).is_file():
                return folder / name
    return None


def check_named_files(
    script: str,
    arguments: Sequence[Argument],
    packages: Sequence[Path],
    libraries: Mapping[str, str] = MappingProxyType(_FILES),
) -> Iterator[LintFinding]:
    """Check the files that options name, against the installed libraries: `libraries` are those that
    read them, by the option.
    """
    options = {_option_name(argument) for argument in arguments}
    has_deepspeed_file = "--deepspeed_config_file" in options
    for option, line, path in named_files(arguments, script, libraries):
        flag = option.removeprefix("--")
        library = libraries[option]
        yield from _check_file(path, library, packages, line, flag)
        config = read_config_file(path, library) or {}
        if library != "accelerate":
            continue
        names = conflicting_keys(
            config,
            has_deepspeed_file=has_deepspeed_file,
            precision_given="--mixed_precision" in options,
        )
        if names and not conflicting_keys(config):  # those are a problem of the file itself
            message = f"{path}: accelerate refuses {', '.join(names)} beside deepspeed_config_file"
            cure = "set them in the DeepSpeed file only"
            yield error("conflicting_accelerate_keys", message, line, flag, cure=cure)
        name = named_deepspeed_file(config)
        inner = _find_file(name, str(path)) if name and not has_deepspeed_file else None
        if inner is not None:
            yield from _check_file(inner, "deepspeed", packages, line, flag)


def _check_file(
    path: Path, library: str, packages: Sequence[Path], line: int, flag: str
) -> Iterator[LintFinding]:
    """Yield the problems of one file, and a warning if it keeps the model from being saved."""
    for problem in check_config_file(path, library_keys(library, packages)):
        message = f"{problem.where}: {problem.message}"
        yield error(problem.id, message, line, flag, cure=problem.cure)
    if cannot_save_model(read_config_file(path, library) or {}, library):
        yield _unsaved_model(path, library, line, flag)


def _unsaved_model(path: Path, library: str, line: int, flag: str) -> LintFinding:
    """Return the warning about a ZeRO-3 file that does not gather the weights."""
    key = "zero3_save_16bit_model"
    if library == "deepspeed":
        key = "stage3_gather_16bit_weights_on_model_save"
    message = f"{path}: with ZeRO-3 and without {key} the model cannot be saved at the end"
    return warning("unsaved_zero3_model", message, line, flag, cure=f"set {key}: true")
