"""The configuration files that the launcher of a command names: accelerate's and DeepSpeed's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from launch.check.lint.scan_result import LintFinding, error
from launch.check.lint.shell_syntax import Argument
from launch.planning.config_files import check_config_file
from launch.upstream.libraries.library_keys import LibraryKeys

_FLAGS = {"--config_file": "accelerate", "--deepspeed_config_file": "deepspeed"}


def check_named_files(
    script: str, launcher: Sequence[Argument], keys_of: Callable[[str], LibraryKeys]
) -> Iterator[LintFinding]:
    """Check the files that exist, relative to the working folder, to that of the script, or to one above it.

    `keys_of`: the keys of a library by its name.
    """
    for index, argument in enumerate(launcher):
        name, equals, value = argument.text.partition("=")
        flag = name.replace("-", "_").replace("__", "--", 1)
        following = launcher[index + 1] if index + 1 < len(launcher) else None
        is_known = argument.is_resolved and (equals or (following is not None and following.is_resolved))
        if flag not in _FLAGS or not is_known:
            continue
        text = value if equals or following is None else following.text
        candidates = (folder / text for folder in (Path(), *Path(script).absolute().parents))
        path = next((path for path in candidates if path.is_file()), None)
        if path is not None:
            for problem in check_config_file(path, keys_of(_FLAGS[flag])):
                message = f"{problem.where}: {problem.message}"
                yield error(problem.id, message, argument.line, flag.removeprefix("--"), cure=problem.cure)
