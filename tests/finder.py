"""Finds the tests of a module: `python -m tests.finder launch/x/y.py` prints their files, for
`scripts/test`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.paths import ROOT

TESTS = ROOT / "tests"


def find_tests(module: Path) -> list[Path]:
    """Return the test of the module's name, tests/x/test_y.py; else those that import it; else the
    nearest folder's.
    """
    module = module.resolve().relative_to(ROOT / "launch")
    own = TESTS / module.parent / f"test_{module.stem}.py"
    if own.is_file():
        return [own]
    parent, stem = ".".join(("launch", *module.parent.parts)), re.escape(module.stem)
    imports = re.compile(
        rf"\b{re.escape(parent)}\.{stem}\b|from {re.escape(parent)} import .*\b{stem}\b"
    )
    importing = [path for path, text in test_files() if imports.search(text)]
    folder = TESTS / module.parent
    while not importing:
        importing = [path for path, _ in test_files() if path.parent == folder]
        folder = folder.parent
    return importing


@cache
def test_files() -> list[tuple[Path, str]]:
    return [(path, path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("test_*.py"))]


def main(arguments: Sequence[str]) -> None:
    """Print the arguments, each module of launch/ replaced by its tests."""
    for argument in arguments:
        path = Path(argument)
        is_module = (
            path.suffix == ".py"
            and path.resolve().is_relative_to(ROOT / "launch")
            and path.is_file()
        )
        print(*(find_tests(path) if is_module else [argument]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
