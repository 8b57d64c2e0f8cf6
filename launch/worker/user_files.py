"""Finds the files of the user's that a process imports or reads: those of a verifier."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .opened import FileState, file_state

_LAUNCH = Path(__file__).parents[1]
_SYSTEM = ("/proc", "/dev", "/sys", "/etc")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class UserFiles:
    """Notes the files that this process opens from now on.

    Those of Python, its packages and the system do not count, nor what the process writes itself.
    Of the folder for temporary files only modules count.
    """

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._written: set[str] = set()
        self._reported: set[str] = set()
        installed = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
        self._others = _inside([*installed, str(_LAUNCH), *_SYSTEM])
        self._temporary = _inside([tempfile.gettempdir()])
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str):
            return
        path, _, flags = arguments
        noted = self._written if flags & _WRITES else self._read
        noted.add(os.path.abspath(path))  # noqa: PTH100 - called at each open; Path is slow

    def take(self) -> list[tuple[str, FileState]]:
        """Return those that were not returned before, with the state in which each is."""
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        imported = {str(Path(file).absolute()) for file in files if isinstance(file, str)}
        found = []
        for path in sorted((imported | self._read) - self._written - self._reported):
            self._reported.add(path)
            real = str(Path(path).resolve())
            is_temporary = real.startswith(self._temporary) and path not in imported
            if is_temporary or real.startswith(self._others) or path.endswith(".pyc"):
                continue
            with contextlib.suppress(OSError):
                if Path(path).is_file():
                    found.append((path, file_state(Path(path))))
        return found


def _inside(folders: Iterable[str]) -> tuple[str, ...]:
    """Return what the paths below folders begin with."""
    return tuple({f"{Path(folder).resolve()}{os.sep}" for folder in folders})
