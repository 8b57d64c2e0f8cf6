"""The functions and operators whose value the interpreter of `__post_init__` computes.

Each of them is fast, has no side effect and cannot return a large value. The value of any other
function is unknown.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch.upstream.rules.uncertain_values import UncertainValue

_MAX_NUMBER = 2**63  # whole numbers that are operands of arithmetic are smaller

TYPES = {type_.__name__: type_ for type_ in (str, int, float, bool, list, tuple, dict)}
_BUILTINS = (len, isinstance, sum, int, float, bool, list)
# functions whose value does not depend on the items of a list, which may be unknown
IGNORES_ITEMS = ("len", "isinstance")
CONVERSIONS = ("int", "float", "json.loads")  # functions that refuse some values
TEXT_METHODS = ("startswith", "endswith", "lower", "upper", "strip", "rstrip")
COMPARISONS: Mapping[type, Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
ARITHMETIC: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def is_small_number(value: object) -> bool:
    """Return whether a value is a number that arithmetic cannot make large: a float, NaN and
    infinities included, or a whole number below _MAX_NUMBER.
    """
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < _MAX_NUMBER)


def enum_converter(values: Sequence[str]) -> Callable[[Any], Any]:
    """Return the conversion to a text enum; it may convert other values than its own too."""
    return lambda value: value if value in values else UncertainValue()


def _parse_json(text: str) -> UncertainValue:
    """Return what is known of the value of a JSON text. Raises ValueError for any other text."""
    return UncertainValue(is_set=json.loads(text) is not None)


def _are_json(texts: str | Sequence[str]) -> bool:
    """Return whether each text is JSON."""
    if isinstance(texts, str):
        texts = [texts]
    try:
        for text in texts:
            json.loads(text)
    except ValueError:
        return False
    return True


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: function for function in _BUILTINS},
    "json.loads": _parse_json,
    "are_json": _are_json,  # no function of Python's: launch's own rules call it
}
