"""What makes a line hard to read is kept out: comprehensions inside comprehensions, and conditional
expressions inside conditional expressions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.paths import ROOT

FOLDERS = ("launch", "maintain")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def find_nested(text: str) -> Iterator[str]:
    """Yield `LINE: what` for each comprehension and conditional expression that holds another."""
    for node in ast.walk(ast.parse(text)):
        inside = [child for child in ast.walk(node) if child is not node]
        if isinstance(node, _COMPREHENSIONS) and any(
            isinstance(child, _COMPREHENSIONS) for child in inside
        ):
            yield f"{node.lineno}: a comprehension inside a comprehension"
        elif isinstance(node, ast.IfExp) and any(
            isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse)
        ):
            yield f"{node.lineno}: a conditional expression inside a conditional expression"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_line_nests(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 5
    nested = [
        f"{file.relative_to(ROOT)}:{place}"
        for file in files
        for place in find_nested(file.read_text(encoding="utf-8"))
    ]
    assert nested == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[a for a in b]", 0),
        ("[f(a) for a in b if a]", 0),
        ("[[a for a in b] for b in c]", 1),
        ("sum(max(a for a in b) for b in c)", 1),
        ("{a: 1 for a in {b for b in c}}", 1),
        ("a if b else c", 0),
        ("f(a if b else c) if d else e", 0),
        ("a if b else c if d else e", 1),
        ("(a if b else c) if d else e", 1),
    ],
)
def test_what_counts_as_nested(text: str, count: int) -> None:
    assert len(list(find_nested(text))) == count
