"""Evaluate shell arithmetic, `$((A * B / 2))`, when every operand is known."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

MAX_LENGTH = 200  # characters; longer expressions are not evaluated
_LIMIT = 1 << 63  # bash computes in 64 bits and wraps around

_NAME = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$?\b([A-Za-z_]\w*)\b")
_ARITHMETIC = re.compile(r"[\d\s()+*/%-]+")
_OCTAL = re.compile(r"(?<![\d.])0\d")


def evaluate(source: str, lookup: Callable[[str], str | None]) -> int | None:
    """Return the value of `$((...))`; None if an operand is unknown or an operator is not one of + - * / %."""
    if not (source.startswith("$((") and source.endswith("))")) or len(source) > MAX_LENGTH:
        return None

    def substitute(match: re.Match[str]) -> str:
        value = (lookup(match.group(1) or match.group(2)) or "").strip()
        if not value.isdecimal():
            raise ValueError(f"unknown: {match.group()}")
        return value

    try:
        expression = _NAME.sub(substitute, source[3:-2]).strip()
        if not _ARITHMETIC.fullmatch(expression) or _OCTAL.search(expression) or "**" in expression:
            return None
        return _compute(ast.parse(expression, mode="eval").body)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _compute(node: ast.expr) -> int:
    """Compute with integers. Raises KeyError or ValueError for any other expression."""
    match node:
        case ast.Constant(value=int(number)):
            result = number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_compute(operand)
        case ast.BinOp(left=left, op=symbol, right=right):
            result = _OPERATORS[type(symbol)](_compute(left), _compute(right))
        case _:
            raise ValueError(ast.dump(node))
    if abs(result) >= _LIMIT:
        raise ValueError("out of range")
    return result


def _divide(left: int, right: int) -> int:
    """Divide, truncating towards zero as bash does."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: _divide,
    ast.Mod: lambda left, right: left - right * _divide(left, right),
}
