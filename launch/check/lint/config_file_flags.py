"""The configuration files that the launcher of a command names: accelerate's and DeepSpeed's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.check.config_files import check_accelerate_file, check_deepspeed_file
from launch.check.lint.shell_syntax import Argument
from launch.errors import Problem
from launch.upstream.libraries.library_keys import LibraryKeys

_FLAGS = {"--config_file": "accelerate", "--deepspeed_config_file": "deepspeed"}


@dataclass(frozen=True)
class NamedFile:
    """A configuration file of accelerate or DeepSpeed, and the flag that names it."""

    flag: str
    line: int  # of the flag
    library: str
    path: Path

    def check(self, keys: LibraryKeys) -> list[Problem]:
        return (check_accelerate_file if self.library == "accelerate" else check_deepspeed_file)(self.path, keys)


def named_files(script: str, launcher: Sequence[Argument]) -> Iterator[NamedFile]:
    """Yield the files that exist, relative to the working folder, to that of the script, or to one above it."""
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
            yield NamedFile(flag.removeprefix("--"), argument.line, _FLAGS[flag], path)
