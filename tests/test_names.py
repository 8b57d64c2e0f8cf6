"""A public name of a module stands for one thing: no two modules of the package give it a class, a
function, a type or a constant of their own, but for the names of SHARED.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

_DEFINITION = re.compile(
    r"^(?:class|def) ([A-Za-z]\w*)|^([A-Za-z]\w*)(?:: .+?)? = (?!PatchInfo\()", re.MULTILINE
)

# Each name that several modules define, and what they have in common.
SHARED = {
    "main": "the start of a program",
    **dict.fromkeys(
        ("plan", "run", "status", "compare"), "a verb, as a command and as a function of the API"
    ),
    **dict.fromkeys(
        ("check_mixture", "check_step", "count_rows", "leaks", "step_fields"),
        "one job of each trainer's own module",
    ),
    **dict.fromkeys(("passed", "warned", "failed"), "what a rule and a gate return"),
    "Message": "a message of a conversation; the worker does not change it",
    **dict.fromkeys(("EXPORT", "LABEL", "PAIR", "TEXT", "UNKNOWN"), "the same value"),
    **dict.fromkeys(
        ("EXIT_MISSING_PACKAGE", "EXIT_STOPPED"), "an exit code that another interpreter repeats"
    ),
    **dict.fromkeys(("KINDS", "SEED"), "of the demo too, whose key is a digest of its sources"),
    "RULES": "all rules that judge one thing: a plan, or a machine",
    "SHORT": "the options of a trial's verb, which stand for keys of its node",
    "parse_json": "a JSON text; in a row of data, one that is none is a value like another",
}


def public_names(text: str) -> Iterator[str]:
    """Yield the classes, functions, types and constants that a module defines; those of one letter
    are the variables of generic types. A patch of a trainer has a name in its own module alone.
    """
    for definition in _DEFINITION.finditer(text):
        name = definition[1] or definition[2]
        if len(name) > 1:
            yield name


def find_shared(folder: Path) -> dict[str, list[str]]:
    """Return the names that several modules of a folder define, with these modules."""
    places: dict[str, set[str]] = defaultdict(set)
    for file in sorted(folder.rglob("*.py")):
        for name in public_names(file.read_text(encoding="utf-8")):
            places[name].add(file.relative_to(folder).as_posix())
    return {name: sorted(files) for name, files in places.items() if len(files) > 1}


def test_a_public_name_means_one_thing() -> None:
    shared = find_shared(ROOT / "launch")
    assert {name: files for name, files in shared.items() if name not in SHARED} == {}
    assert [name for name in SHARED if name not in shared] == [], "it has one meaning now"


def test_a_second_meaning_is_found(tmp_path: Path) -> None:
    private = "_LIMIT = 1\ndef _help() -> None: ...\nSTEPS = PatchInfo()\n"
    (tmp_path / "a.py").write_text(f"class Run: ...\nLIMIT = 1\n{private}")
    (tmp_path / "b.py").write_text(f"Run = tuple\nLIMIT: int = 2\n{private}")
    assert find_shared(tmp_path) == {"LIMIT": ["a.py", "b.py"], "Run": ["a.py", "b.py"]}
