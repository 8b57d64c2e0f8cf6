"""A module's tests are found by its name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.finder import PACKAGES, TESTS, find_tests
from tests.paths import ROOT

MODULES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "__init__.py"
]


def test_every_module_has_tests_that_are_found() -> None:
    assert len(MODULES) > 100
    assert [module for module in MODULES if not find_tests(module)] == []


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        # of its name
        ("launch/planning/chat_template.py", ["planning/test_chat_template.py"]),
        ("launch/rules/table.py", ["rules/test_table.py"]),
        ("maintain/relock.py", ["tests/maintain/test_relock.py"]),
        # that imports it
        ("maintain/report.py", ["tests/maintain/test_commands.py"]),
        # of its folder
        ("launch/upstream/libraries/__init__.py", ["test_accelerate.py", "test_deepspeed.py"]),
    ],
)
def test_by_name_by_import_or_by_folder(module: str, expected: list[str]) -> None:
    found = find_tests(ROOT / module)
    assert len(found) == len(expected)
    assert all(path.as_posix().endswith(name) for path, name in zip(found, expected, strict=True))


def test_modules_on_the_command_line_become_their_tests() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.finder",
        "launch/planning/chat_template.py",
        "-k",
        "width",
    ]
    printed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert printed == [str(TESTS / "planning" / "test_chat_template.py"), "-k", "width"]


def test_the_folders_of_tests_are_those_of_the_package() -> None:
    others = {
        "docs",
        "equivalence",
        "fixtures",
        "golden",
        "integration",
        "scripts",
        "seeds",
        "lab",
        "other_tool_lines",
        "logs",
    }
    others |= {"synthetic_trainer", "__pycache__"}
    folders = [
        path
        for path in TESTS.rglob("*")
        if path.is_dir() and not others & set(path.relative_to(TESTS).parts)
    ]
    own = {path: ROOT / "launch" / path.relative_to(TESTS) for path in folders}
    own[PACKAGES["maintain"]] = ROOT / "maintain"
    assert [
        path
        for path, place in own.items()
        if not place.is_dir() and not place.with_suffix(".py").is_file()
    ] == []
