"""The options of a command's launcher: which are accelerate's, and the configuration files that they name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice, pairwise
from pathlib import Path

from launch.check.lint.scan_result import LintFinding, error
from launch.check.lint.shell_syntax import Argument, literal_argument
from launch.planning.library_key_check import check_config_file
from launch.upstream.libraries.library_keys import library_keys

_SOURCE = "accelerate/commands/launch.py"
_TRL_OPTIONS = {"--accelerate_config": True}  # trl/cli/accelerate_config.py consumes it before accelerate starts
_FILES = {"--config_file": "accelerate", "--deepspeed_config_file": "deepspeed"}


@cache
def read_launcher_flags(packages: tuple[Path, ...]) -> Mapping[str, bool] | None:
    """Read {option string: whether it takes a value} from accelerate's source; None if it is not installed."""
    source = next((path for folder in packages if (path := folder / _SOURCE).is_file()), None)
    if source is None:
        return None
    flags = dict(_TRL_OPTIONS)
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            takes_value = all("store_" not in ast.unparse(it) for it in node.keywords if it.arg == "action")
            for name in names:
                if name.startswith("--"):
                    flags[name] = flags["--" + name[2:].replace("_", "-")] = takes_value
    return flags


def drop_launcher_flags(
    arguments: Sequence[Argument], launcher_flags: Mapping[str, bool], trainer_flags: Collection[str]
) -> tuple[Argument, ...]:
    """Return the arguments left for the trainer, which keeps its own flags (`trainer_flags`, with underscores)."""
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


def named_files(arguments: Sequence[Argument], script: str, options: Container[str]) -> Iterator[tuple[str, int, Path]]:
    """Yield the option, its line and the path of each file that one of the options names and that exists.

    Its path is relative to the working folder, to that of the script, or to one above it.
    """
    for argument, following in pairwise([*arguments, literal_argument("", 0)]):
        name, equals, value = argument.text.partition("=")
        option = name.replace("-", "_").replace("__", "--", 1)
        if option in options and argument.is_resolved and (equals or following.is_resolved):
            folders = (Path(), *Path(script).absolute().parents)
            paths = (folder / (value if equals else following.text) for folder in folders)
            with suppress(OSError):  # the name is too long
                yield from ((option, argument.line, path) for path in islice(filter(Path.is_file, paths), 1))


def check_named_files(script: str, launcher: Sequence[Argument], packages: Sequence[Path]) -> Iterator[LintFinding]:
    """Check the configuration files that a launcher's options name, against the libraries among the packages."""
    for option, line, path in named_files(launcher, script, _FILES):
        for problem in check_config_file(path, library_keys(_FILES[option], packages)):
            yield error(
                problem.id, f"{problem.where}: {problem.message}", line, option.removeprefix("--"), cure=problem.cure
            )
