"""The faults that ./scripts/seeds --draw can put into a function: each changes one place of its
text.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Node = ast.expr | ast.stmt


@dataclass(frozen=True)
class Change:
    """One place of a file with other text."""

    function: str  # qualified name
    kind: str
    line: int  # from 1
    lines: range  # of the function's body, by which tests are found
    start: int  # characters from the beginning of the file
    end: int
    new: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


def find_changes(text: str) -> list[Change]:
    """Return every change of every function of a module, in order of their places."""
    source = _Source(text)
    changes = []
    for name, function in _functions(ast.parse(text)):
        body = range(function.body[0].lineno, (function.end_lineno or 0) + 1)
        for kind, node, new in _changes_of(function, source):
            changes.append(Change(name, kind, node.lineno, body, *source.place(node), new))
    return sorted(changes, key=lambda change: change.start)


class _Source:
    """The text of a module, in which `ast` gives places by line and byte."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]

    def place(self, node: _Node) -> tuple[int, int]:
        """Return the characters before a node's beginning and before its end."""
        begin = self._offset(node.lineno, node.col_offset)
        return begin, self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def of(self, node: _Node) -> str:
        begin, end = self.place(node)
        return self.text[begin:end]

    def _offset(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)


def _functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        name = f"{outer}{child.name}" if isinstance(child, _Function | ast.ClassDef) else outer
        if isinstance(child, _Function):
            yield name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{name}.")
        elif isinstance(child, ast.If) and ast.unparse(child.test) != "TYPE_CHECKING":
            yield from _functions(child, outer)


def _changes_of(function: _Function, source: _Source) -> Iterator[tuple[str, _Node, str]]:
    """Return the kind of each change, the node that it replaces and the new text."""
    defaults = [
        default for default in [*function.args.defaults, *function.args.kw_defaults] if default
    ]
    for default in defaults:
        if (moved := _move_constant(default)) is not None:
            yield "a default swapped", default, moved
    for statement in function.body:
        for node in _walk(statement):
            yield from _changes_at(node, source)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Return a node and those inside it, but none of an f-string: before Python 3.12 `ast` has no
    places for these.
    """
    if not isinstance(node, ast.JoinedStr):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _changes_at(node: ast.AST, source: _Source) -> Iterator[tuple[str, _Node, str]]:
    match node:
        case ast.Compare(left=left, ops=[operation], comparators=[right]) if (
            type(operation) in _COMPARISONS
        ):
            turned = f"({source.of(left)} {_COMPARISONS[type(operation)]} {source.of(right)})"
            yield "a comparison turned", node, turned
        case ast.If(test=test, body=body) if not isinstance(body[0], ast.Pass):
            yield "a branch left out", test, f"(({source.of(test)}) and False)"
        case ast.IfExp(test=test):
            yield "a branch left out", test, f"(({source.of(test)}) and False)"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "a `not` gone", node, f"({source.of(operand)})"
        case ast.BoolOp(op=operation, values=values):
            other = " or " if isinstance(operation, ast.And) else " and "
            yield (
                "`and` and `or` swapped",
                node,
                "(" + other.join(f"({source.of(value)})" for value in values) + ")",
            )
        case ast.BinOp(left=left, op=operation, right=right) if type(
            operation
        ) in _ARITHMETIC and _is_number(node):
            yield (
                "an operator turned",
                node,
                f"({source.of(left)} {_ARITHMETIC[type(operation)]} {source.of(right)})",
            )
        case ast.Expr(value=ast.Call()):
            yield "a call left out", node, "pass"
        case ast.Constant() if (moved := _move_constant(node)) is not None:
            yield "a constant moved", node, moved


def _is_number(node: ast.BinOp) -> bool:
    """Return whether the operands are not texts or lists, as far as they show it."""
    texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    parts = [part for part in ast.walk(node) if isinstance(part, texts)]
    return not parts and not any(
        isinstance(p, ast.Constant) and isinstance(p.value, str) for p in ast.walk(node)
    )


def _move_constant(node: ast.expr) -> str | None:
    """Return another value than a constant's; None for texts, whose wording is no behaviour."""
    if not isinstance(node, ast.Constant):
        return None
    if isinstance(node.value, bool):
        return str(not node.value)
    if isinstance(node.value, int | float):
        return repr(node.value + 1)
    return None
