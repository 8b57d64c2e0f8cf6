"""Finds the tests of a module: `python -m tests.finder launch/x/y.py` prints their files, for
`scripts/test`.

The tests of `launch/` are in `tests/`, folder by folder; those of `maintain/` are in
`tests/maintain/`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.paths import ROOT

TESTS = ROOT / "tests"
PACKAGES = {"launch": TESTS, "maintain": TESTS / "maintain"}  # and the folders of their tests


def find_tests(module: Path) -> list[Path]:
    """Return the test of the module's name, tests/x/test_y.py; else those that import it; else the
    nearest folder's.
    """
    module = module.resolve().relative_to(ROOT)
    package, *folders = module.parent.parts
    folder = PACKAGES[package].joinpath(*folders)
    own = folder / f"test_{module.stem}.py"
    if own.is_file():
        return [own]
    parent, stem = ".".join(module.parent.parts), re.escape(module.stem)
    imports = re.compile(
        rf"\b{re.escape(parent)}\.{stem}\b|from {re.escape(parent)} import .*\b{stem}\b"
    )
    importing = [
        path for path, text in test_files() if module.stem in text and imports.search(text)
    ]
    while not importing:
        importing = [path for path, _ in test_files() if path.parent == folder]
        folder = folder.parent
    return importing


@cache
def test_files() -> list[tuple[Path, str]]:
    return [(path, path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("test_*.py"))]


def main(arguments: Sequence[str]) -> None:
    """Print the arguments, each module of PACKAGES replaced by its tests."""
    for argument in arguments:
        path = Path(argument)
        is_in_package = any(path.resolve().is_relative_to(ROOT / package) for package in PACKAGES)
        is_module = path.suffix == ".py" and path.is_file() and is_in_package
        print(*(find_tests(path) if is_module else [argument]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
