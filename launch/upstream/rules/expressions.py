"""Evaluates expressions of upstream's code whose names have known and unknown values; nothing of it is executed.

What is not understood has an unknown value, and what it may change is unknown from then on.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from launch.upstream.rules.unknown import CERTAIN, MACHINE, USER, Kinds, Unknown, merged, truth_of, unknown_kinds

_MAX_SIZE = 100_000  # items, characters or bits of a value that is computed
_MAX_DEPTH = 6  # of lists in lists


def _are_json(texts: Sequence[str]) -> bool:
    try:
        for text in texts:
            json.loads(text)
    except ValueError:
        return False
    return True


_TYPES = {type_.__name__: type_ for type_ in (str, int, float, bool, list, tuple, dict)}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (len, isinstance, hasattr, sum, min, max, abs, any, all)},
    **{name: _TYPES[name] for name in ("int", "float", "bool", "list", "tuple")},
    "enumerate": lambda items: list(enumerate(items)),
    "zip": lambda *lists: list(zip(*lists, strict=False)),
    "json.loads": json.loads,
    "are_json": _are_json,  # for launch's rules
}
_OF_PARTS = ("len", "list", "tuple", "enumerate", "zip")  # the items need not be known
_CONVERSIONS = ("int", "float", "json.loads")  # which refuse some texts
_TEXT_METHODS = ("startswith", "endswith", "lower", "upper", "strip", "rstrip", "lstrip", "split")
_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


class Special(Enum):
    """Objects of upstream's code."""

    SELF = "self"
    SUPER = "super()"


class StatementError(Exception):
    """An expression raises an error, which has been recorded."""


@dataclass(frozen=True)
class Raised:
    """An error that upstream's code raises."""

    message: str
    reads: tuple[str, ...]  # the fields that it depends on
    kinds: Kinds  # and what it depends on that is not known


@dataclass
class State:
    """The values at one point of one way through the code."""

    fields: dict[str, Any]  # and other attributes of the instance
    names: dict[str, Any]  # local ones
    origins: dict[str, list[str]]  # {local name: the fields that its value comes from}

    def copy(self) -> State:
        return State({**self.fields}, {**self.names}, {**self.origins})


class Evaluator(ast.NodeVisitor):
    """Evaluates an expression by `visit`. Raises StatementError for an error, which is recorded in `raised`.

    constants: of upstream's modules and classes; a text enum is {"enum": its values}.
    """

    def __init__(self, fields: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
        self.own, self.constants = frozenset(fields), constants
        self.state = State({**fields}, {}, {})
        self.file = ""
        self.doubt = CERTAIN  # what it depends on whether this statement is reached
        self.reads: list[str] = []  # the fields that the statement has read
        self.conditions: list[list[str]] = []  # the same of each condition around it
        self.raised: dict[str, Raised] = {}  # by file:line

    def call_function(self, name: str, base: Any, arguments: Sequence[Any], origins: Sequence[list[str]]) -> Any:
        """Return the value of a call of upstream's own function; NotImplemented if it is not known."""
        return NotImplemented

    def record(self, where: str, message: str, kinds: Kinds = CERTAIN) -> None:
        """Record that an error is raised here, which depends on `kinds`."""
        known = self.raised.get(where)
        if known is None or (known.kinds and not kinds | self.doubt):
            reads = [name for names in (*self.conditions, self.reads) for name in names if name in self.own]
            text = " ".join(message.split())
            self.raised[where] = Raised(text, tuple(dict.fromkeys(reads)), kinds | self.doubt)

    def place_of(self, node: ast.expr | ast.stmt) -> str:
        return f"{self.file}:{node.lineno}"

    def assign(self, target: ast.AST, value: Any) -> None:
        """Give a target of an assignment its value."""
        if isinstance(target, ast.Name):
            self.state.names[target.id] = value
            self.state.origins[target.id] = list(dict.fromkeys(self.reads))
        elif isinstance(target, ast.Tuple | ast.List):
            is_known = isinstance(value, list | tuple) and len(value) == len(target.elts)
            for index, part in enumerate(target.elts):
                self.assign(part, value[index] if is_known else Unknown(MACHINE | unknown_kinds(value)))
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Unknown(MACHINE | unknown_kinds(value)))
        elif isinstance(target, ast.Attribute | ast.Subscript):
            base = self.visit(target.value)
            if base is Special.SELF and isinstance(target, ast.Attribute):
                self.state.fields[target.attr] = value
            else:
                self.lose(base)

    def lose(self, *values: Any) -> Unknown:
        """Return the unknown value of what is made of these; what code can change of them may have been changed."""
        kinds = MACHINE | unknown_kinds(values)
        changed = set(_changeable(values))
        for scope in (self.state.fields, self.state.names) if changed else ():
            for name, value in scope.items():
                is_instance = scope is self.state.fields and id(Special.SELF) in changed
                is_changed = is_instance or not changed.isdisjoint(_changeable(value))
                if is_changed and value is not Special.SELF:
                    scope[name] = Unknown(kinds | unknown_kinds(value))
        return Unknown(kinds)

    def lose_targets(self, node: ast.AST, kinds: Kinds = MACHINE) -> None:
        """Leave unknown what the code assigns."""
        for part in ast.walk(node):
            if isinstance(part, ast.ExceptHandler | ast.alias):
                self.state.names.pop(str(part.name).partition(".")[0], None)
            elif isinstance(part, ast.Name | ast.Attribute) and not isinstance(part.ctx, ast.Load):
                base = part.value if isinstance(part, ast.Attribute) else part
                if isinstance(base, ast.Name):
                    self.assign(part, Unknown(kinds))

    def generic_visit(self, node: ast.AST) -> Any:
        """Leave out code that is not understood: what it may change is unknown."""
        parts = list(ast.walk(node))
        attributes = [part for part in parts if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)]
        called = [part.func for part in parts if isinstance(part, ast.Call)]
        bases = [part.value for part in attributes if part not in called]
        names = [part for part in parts if isinstance(part, ast.Name) and part not in bases]
        touched = [self.visit(part) for part in (*names, *attributes)]
        self.lose(*touched)
        self.lose_targets(node, MACHINE | unknown_kinds(touched))
        return Unknown(MACHINE | unknown_kinds(touched))

    # Values

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        self.reads += self.state.origins.get(node.id, ())
        value = self.constants.get(node.id, _TYPES.get(node.id, Unknown()))
        return self.state.names.get(node.id, Unknown() if isinstance(value, dict) else value)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        base = self.visit(node.value)
        if base is Special.SELF:
            return self._field(node.attr)
        return self.constants.get(self._global_name(node), Unknown(MACHINE | unknown_kinds(base)))

    def _field(self, name: str) -> Any:
        self.reads.append(name)
        return self.state.fields.get(name, self.constants.get(f"self.{name}", Unknown()))

    def _global_name(self, node: ast.expr) -> str:
        """Return a dotted name that does not begin with a local one, else ''."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        return ast.unparse(node) if isinstance(root, ast.Name) and root.id not in self.state.names else ""

    def visit_List(self, node: ast.List | ast.Tuple) -> Any:
        if has_part(node, ast.Starred):
            return self.generic_visit(node)
        parts = [self.visit(part) for part in node.elts]
        return _bounded(parts if isinstance(node, ast.List) else tuple(parts))

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return self.visit_List(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        """Its text is not known: that of an enum's member, which counts as a text here, is another."""
        parts = [self.visit(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
        return Unknown(MACHINE | unknown_kinds(parts), is_set=True)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.slice, ast.Slice):
            return self.generic_visit(node)
        items, index = self.visit(node.value), self.visit(node.slice)
        of_items = unknown_kinds(items) if isinstance(items, Unknown) else CERTAIN
        return self._compute(node, operator.getitem, [items, index], of_items | unknown_kinds(index))

    # Conditions

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        ends = isinstance(node.op, ast.Or)  # the truth of a part after which no other is evaluated
        outer, kinds, value = self.doubt, CERTAIN, None
        for part in node.values:
            value = self._visit_part(part, kinds)
            truth = truth_of(value)
            if truth is ends:
                break
            kinds |= unknown_kinds(value) if truth is None else CERTAIN
            self.doubt = outer | kinds
        self.doubt = outer
        truth = ends if truth_of(value) is ends else None
        return Unknown(kinds | unknown_kinds(value), truth=truth) if kinds else value

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        truth = truth_of(test)
        if truth is not None:
            return self.visit(node.body if truth else node.orelse)
        outer, kinds = self.doubt, unknown_kinds(test)
        self.doubt |= kinds
        values = [self._visit_part(part, kinds) for part in (node.body, node.orelse)]
        self.doubt = outer
        return merged(values, kinds)

    def _visit_part(self, node: ast.expr, kinds: Kinds) -> Any:
        """Return an expression's value; whether it is evaluated depends on `kinds`."""
        try:
            return self.visit(node)
        except StatementError:
            if not kinds:
                raise
            return Unknown(kinds)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.visit(node.operand)
        if not isinstance(node.op, ast.Not):
            return self._operate(node, node.op, value)
        truth = truth_of(value)
        return Unknown(unknown_kinds(value), is_set=True) if truth is None else not truth

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return self._operate(node, node.op, self.visit(node.left), self.visit(node.right))

    def visit_Compare(self, node: ast.Compare) -> Any:
        operands = [node.left, *node.comparators]
        if len(node.ops) > 1:  # 0 < x < 1
            pairs = zip(operands, node.ops, operands[1:], strict=False)
            parts: list[ast.expr] = [ast.Compare(left, [operation], [right]) for left, operation, right in pairs]
            return self.visit(ast.BoolOp(ast.And(), [ast.copy_location(part, node) for part in parts]))
        left, right = (self.visit(operand) for operand in operands)
        (operation,) = node.ops
        same = _is_same(left, right)
        if isinstance(operation, ast.Is | ast.IsNot):
            return same if isinstance(same, Unknown) else same is isinstance(operation, ast.Is)
        if same is False and (left is None or right is None) and isinstance(operation, ast.Eq | ast.NotEq):
            return isinstance(operation, ast.NotEq)
        return self._operate(node, operation, left, right)

    def _operate(self, node: ast.expr, operation: ast.AST, *values: Any) -> Any:
        function, kinds = _OPERATORS.get(type(operation)), unknown_kinds(values)
        is_format = isinstance(operation, ast.Mod) and isinstance(values[0], str)
        if function is None or is_format or _is_large(operation, values):
            return Unknown(MACHINE | kinds)
        return self._compute(node, function, values, kinds)

    def _compute(self, node: ast.expr, function: Callable[..., Any], values: Sequence[Any], kinds: Kinds) -> Any:
        """Return a function's value; `kinds`: what it depends on that is not known."""
        if kinds or any(isinstance(value, Special) for value in values):
            return Unknown(kinds or MACHINE)
        try:
            return _bounded(function(*values))
        except (RecursionError, MemoryError):
            return Unknown()
        except Exception as error:
            self.record(self.place_of(node), f"{type(error).__name__}: {error}")
            raise StatementError from None

    # Calls

    def visit_Call(self, node: ast.Call) -> Any:
        function = node.func
        base = self.visit(function.value) if isinstance(function, ast.Attribute) else None
        arguments: list[Any] = []
        origins: list[list[str]] = []
        for part in (*node.args, *(keyword.value for keyword in node.keywords)):
            before = len(self.reads)
            arguments.append(self.visit(part))
            origins.append(self.reads[before:])
        value = NotImplemented
        if not node.keywords and not has_part(node, ast.Starred):
            name = self._global_name(function)
            if isinstance(function, ast.Attribute) and isinstance(base, Special | str):
                name = function.attr
            value = self.call_function(name, base, arguments, origins)
            if value is NotImplemented:
                value = self._call_known(node, name, base, arguments)
        return self.lose(base, *arguments) if value is NotImplemented else value

    def _call_known(self, node: ast.Call, name: str, base: Any, arguments: Sequence[Any]) -> Any:
        """Return the value of a call of Python's; NotImplemented if it is not known here."""
        kinds, first = unknown_kinds(arguments), next(iter(arguments), None)
        if isinstance(base, str):
            if name in _TEXT_METHODS:
                return self._compute(node, getattr(base, name), arguments, kinds)
        elif isinstance(base, Special):
            pass
        elif name in ("getattr", "setattr") and first is Special.SELF and isinstance(arguments[1], str):
            if name == "getattr":
                return self._field(arguments[1])
            self.state.fields[arguments[1]] = arguments[2]
            return None
        elif isinstance(self.constants.get(name), dict):
            return self._to_member(node, name, first, kinds)
        elif name in _FUNCTIONS and (name != "hasattr" or str(arguments[-1]).startswith("__")):
            if name in _OF_PARTS:
                kinds = CERTAIN.union(*(argument.kinds for argument in arguments if isinstance(argument, Unknown)))
            if name in _CONVERSIONS and kinds >= USER and not (isinstance(first, Unknown) and first.is_number):
                self.record(self.place_of(node), f"{name} refuses some texts", kinds)
            return self._compute(node, _FUNCTIONS[name], arguments, kinds)
        return NotImplemented

    def _to_member(self, node: ast.Call, name: str, value: Any, kinds: Kinds) -> Any:
        """Return the member of a text enum that has this value; others may be converted too, or refused."""
        if not kinds and value in self.constants[name]["enum"]:
            return value
        if not kinds or kinds >= USER:
            self.record(self.place_of(node), f"{name} refuses some values", kinds or MACHINE)
        return Unknown(kinds or MACHINE, is_set=True)


def has_part(node: ast.AST, *kinds: type[ast.AST]) -> bool:
    """Whether some code has a part of one of these kinds."""
    return any(isinstance(part, kinds) for part in ast.walk(node))


def _changeable(value: Any) -> Iterator[int]:
    """Yield the identity of each object among the parts of a value that code may change."""
    if isinstance(value, Special):
        yield id(Special.SELF)
    elif isinstance(value, list | dict | tuple):
        yield id(value)
        for part in value.values() if isinstance(value, dict) else value:
            yield from _changeable(part)


def _is_same(left: Any, right: Any) -> Any:
    """Return what `left is right` gives."""
    kinds = unknown_kinds([left, right])
    if left is None or right is None:
        other = right if left is None else left
        return Unknown(kinds) if isinstance(other, Unknown) and not other.is_set else left is right
    if kinds or bool not in (type(left), type(right)):
        return Unknown(kinds or MACHINE)
    return left is right


def _is_large(operation: ast.AST, values: Sequence[Any]) -> bool:
    """Whether the result may be larger than what is computed."""
    lengths = [len(value) for value in values if isinstance(value, str | list | tuple)]
    numbers = [value for value in values if isinstance(value, int)]
    if isinstance(operation, ast.Mult) and lengths and numbers:
        return lengths[0] * numbers[0] > _MAX_SIZE
    return sum([*lengths, *(number.bit_length() for number in numbers)]) > _MAX_SIZE


def _bounded(value: Any) -> Any:
    """Return a value; an unknown one for lists that are nested deeper than is followed."""
    return Unknown(unknown_kinds(value) or MACHINE) if _depth(value) > _MAX_DEPTH else value


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, parts), default=0) if isinstance(value, list | tuple | dict) else 0
