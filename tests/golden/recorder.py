"""Runs command lines as a user would and records what they print, the same on every machine.

The lines go through `launch.__main__.main` in this process, in a folder, a home and an environment
of their own; what names the machine becomes a placeholder.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launch import resources
from launch.__main__ import main
from launch.upstream.pin.lock import load_lock
from tests.messages import outlines

# what is another one each time, or on each machine
_VOLATILE = (
    (re.compile(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z?|Written \d{4}-[-\d: ]+UTC \(.....\)"), "{time}"),
    (re.compile(r"python3(\.\d+)?\b"), "{python}"),
)
_PADDING = re.compile(r"(?<=\S) {3,}")
# what moves with the pin and the libraries: the lock has it, and the golden files need not move
# with it
_UPSTREAM = (
    (re.compile(rf"\b{load_lock().pin[:9]}(?:{load_lock().pin[9:]})?\b"), "{pin}"),
    (re.compile(r"(?<=\.py):\d+(?:-\d+)?\b"), ":{line}"),
    (
        re.compile(r"(?<= )\d+\.\d+(\.\d+)?(?= as installed| from the lock)|(?<=TRL )\d+\.\d+\b"),
        "{version}",
    ),
)
SUBMODULE = resources.ROOT / "external" / "open-instruct" / "open_instruct"
CRASHED = 1  # Python's exit code of an exception that nothing catches

without_submodule = pytest.mark.skipif(
    SUBMODULE.exists(), reason="the plans are recorded without a checkout, and the submodule is one"
)


@dataclass(frozen=True)
class Printed:
    """What one command line printed, and its exit code."""

    line: str
    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        """Return the command line, and what it printed, as lines of a golden file."""
        text = _PADDING.sub("  ", self.out)  # columns are as wide as the longest path
        shown = [
            f"$ launch {self.line}",
            *text.splitlines(),
            *(f"stderr: {line}" for line in self.err.splitlines()),
        ]
        return [*shown, f"exit code {self.code}", ""]

    def answers(self) -> list[str]:
        """Return the command line with its exit code, and its messages without their wording."""
        return [
            f"$ launch {self.line} -> {self.code}",
            *outlines([*self.out.splitlines(), *self.err.splitlines()]),
        ]


class Terminal:
    """A place to type command lines in: an empty folder, home and environment, without a checkout
    or a GPU.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "work"
        home = folder / "home"
        for made in (self.folder, home, folder / "bin"):
            made.mkdir(parents=True, exist_ok=True)
        inherited = ("PYTHONPATH", "HF_HUB_OFFLINE", "PYTEST_CURRENT_TEST", "LANG")
        keep = {name: os.environ[name] for name in inherited if name in os.environ}
        for name in list(os.environ):
            patch.delenv(name)
        fixed = {
            "HOME": str(home),
            "PATH": str(folder / "bin"),
            "USER": "user",
            "COLUMNS": "100",
            "TERM": "dumb",
        }
        for name, value in (keep | fixed | {"XDG_CONFIG_HOME": str(home / ".config")}).items():
            patch.setenv(name, value)
        patch.chdir(self.folder)
        self._places = {
            str(self.folder): "{cwd}",
            str(home): "{home}",
            str(folder): "{tmp}",
            str(resources.ROOT): "{project}",
            sys.executable: "{python}",
            sys.prefix: "{venv}",
        }

    def run(self, *argv: str) -> Printed:
        """Run one command line. A crash, which a user would see as a traceback, is recorded as its
        last line.
        """
        out, err = io.StringIO(), io.StringIO()
        code = CRASHED
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(list(argv))
            except Exception as error:
                print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
        return Printed(
            self.mask(" ".join(argv)), code, self.mask(out.getvalue()), self.mask(err.getvalue())
        )

    def mask(self, text: str) -> str:
        for path, name in sorted(self._places.items(), key=lambda item: -len(item[0])):
            text = text.replace(path, name)
        for pattern, name in _VOLATILE:
            text = pattern.sub(name, text)
        return text


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a JSON value as `path.to.it` and its JSON text; lists of scalars are one
    leaf.
    """
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, inner in enumerate(value):
            yield from flatten(inner, f"{path}.{number}")
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def describe_json(text: str) -> list[str]:
    """Return the leaves of a JSON text as lines."""
    return [f"{path} = {value}" for path, value in flatten(json.loads(text))]


def mask_upstream(text: str) -> str:
    """Replace the pin, line numbers of upstream's sources and versions of libraries."""
    for pattern, name in _UPSTREAM:
        text = pattern.sub(name, text)
    return text
