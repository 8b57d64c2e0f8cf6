"""Finds the user's files that a process imports, reads or writes, such as those of a verifier."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .opened import FileUse, UsedFile, file_state

_LAUNCH = Path(__file__).parents[1]
_SYSTEM = ("/proc", "/dev", "/sys", "/etc")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# {audit event: the number of the argument whose path names another file afterwards}
_REPLACES = {"os.rename": 1, "os.link": 1, "os.symlink": 1, "os.truncate": 0}


class UserFiles:
    """Notes the files that this process uses from now on, each in the state in which it is opened.

    Files of Python, its packages and the system do not count, nor files that the process reads after
    it wrote them. In folders for temporary files and caches only modules count.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._noted: dict[str, UsedFile] = {}  # the files that are not returned yet, by path
        self._returned: dict[str, UsedFile] = {}
        self._written: set[str] = set()
        self._modules: set[str] = set()
        self._module_count = 0  # size of sys.modules when the modules were last searched
        installed = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
        self._others = _path_prefixes([*installed, str(_LAUNCH), *_SYSTEM])
        caches = [environ.get("XDG_CACHE_HOME") or "~/.cache", environ.get("HF_HOME")]
        folders = [os.path.expanduser(folder) for folder in caches if folder]  # noqa: PTH111
        self._temporary = _path_prefixes([tempfile.gettempdir(), *folders])
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        # An error here would be raised in the verifier's own call.
        with contextlib.suppress(Exception):
            if event == "open":
                path, _, flags = arguments
                if flags & _WRITES:
                    self._written.add(_absolute_path(path))
                else:
                    self._note_use(_absolute_path(path), is_module=False)
            elif event in _REPLACES:
                self._written.add(_absolute_path(arguments[_REPLACES[event]]))

    def _note_use(self, path: str, *, is_module: bool) -> None:
        """Note the state of a file that is a module, or that is opened for reading."""
        real = os.path.realpath(path)
        is_temporary = real.startswith(self._temporary) and not is_module
        if is_temporary or real.startswith(self._others) or path.endswith(".pyc"):
            return
        if stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - called at each open; Path is slow
            use: FileUse = "import" if is_module else "read"
            self._noted[path] = UsedFile(path, file_state(Path(path)), use)

    def take(self) -> list[UsedFile]:
        """Return the files that were not returned before, or were in another state then.

        A returned file that the process has written since has the use "write"; what the process
        reads of it afterwards does not count.
        """
        noted = self._noted
        self._noted = {}
        modules = self._find_modules()
        for path in modules - self._returned.keys():
            with contextlib.suppress(OSError):
                self._note_use(path, is_module=True)
        # The state in which a source was opened takes precedence over its state now.
        noted = {**self._noted, **noted}
        self._noted = {}
        taken = []
        for path, file in sorted(noted.items()):
            returned = self._returned.get(path)
            is_own = path in self._written and path not in modules
            if is_own or (returned is not None and returned.state == file.state):
                continue
            is_imported = path in modules and returned is None
            taken.append(replace(file, use="import") if is_imported else file)
        self._returned.update((file.path, file) for file in taken)
        rewritten = []
        for path in self._written & self._returned.keys():
            with contextlib.suppress(OSError):
                if self._returned[path].use != "write":
                    rewritten.append(UsedFile(path, file_state(Path(path)), "write"))
        self._returned.update((file.path, file) for file in rewritten)
        return [*taken, *rewritten]

    def _find_modules(self) -> set[str]:
        """Return the files of the modules that this process has imported."""
        if len(sys.modules) != self._module_count:
            self._module_count = len(sys.modules)
            files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
            self._modules = {_absolute_path(file) for file in files if isinstance(file, str)}
        return self._modules


def _absolute_path(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - called at each open; Path is slow


def _path_prefixes(folders: Iterable[str]) -> tuple[str, ...]:
    """Return what the paths below folders begin with."""
    return tuple({f"{Path(folder).resolve()}{os.sep}" for folder in folders})
