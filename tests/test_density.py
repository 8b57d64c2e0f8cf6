"""What makes a line hard to read is kept out: comprehensions inside comprehensions, conditional
expressions inside conditional expressions or beside `and` and `or`, several values assigned in one
line, and functions of more than 60 lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.paths import ROOT

FOLDERS = ("launch", "maintain")
LONGEST = 60  # lines of a function
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def find_dense(text: str) -> Iterator[str]:
    """Yield `LINE: what` for each part of a file that a reader has to take apart."""
    for node in ast.walk(ast.parse(text)):
        what = _judge(node)
        if what:
            yield f"{getattr(node, 'lineno', 0)}: {what}"


def _judge(node: ast.AST) -> str | None:
    match node:
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            inside = [child for child in ast.walk(node) if child is not node]
            if any(isinstance(child, _COMPREHENSIONS) for child in inside):
                return "a comprehension inside a comprehension"
        case ast.IfExp() | ast.BoolOp():
            if any(isinstance(child, ast.IfExp) for child in ast.iter_child_nodes(node)):
                return "a conditional expression inside another one, or as an operand of and, or"
        case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple()):
            return "several values assigned in one line"
        case ast.FunctionDef():
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST:
                return f"{node.name} has {lines} lines"
    return None


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_part_is_dense(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 5
    dense = [
        f"{file.relative_to(ROOT)}:{place}"
        for file in files
        for place in find_dense(file.read_text(encoding="utf-8"))
    ]
    assert dense == []


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
        ("a or (b if c else d)", 1),
        ("a or f(b if c else d)", 0),
        ("a, b = c, d", 1),
        ("a, b = c", 0),
        ("a = c, d", 0),
        ("def f():\n" + "    a()\n" * 59, 0),
        ("def f():\n" + "    a()\n" * 60, 1),
    ],
)
def test_what_counts_as_dense(text: str, count: int) -> None:
    assert len(list(find_dense(text))) == count
