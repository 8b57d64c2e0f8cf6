"""Evaluates expressions in source without running it: literals, names across modules, enums, a few pure calls.

A part that can't be read (a dict value, say) becomes `UNREADABLE` and matters only if the result depends on it.
"""

from __future__ import annotations

import ast
import operator
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from launch.upstream.reader.classes import EnumMember, class_attribute, enum_members
from launch.upstream.reader.name_resolver import (
    ClassRef,
    External,
    FunctionRef,
    NameResolver,
    Scope,
    Target,
    ValueRef,
)
from launch.upstream.reader.tree import UnreadableSourceError
from launch.upstream.rules.evaluation import OPERATORS


class _Unreadable:
    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE = _Unreadable()

# The sign of each operator, by which a compiled `__post_init__` has it too.
SIGNS: Mapping[type[ast.operator | ast.cmpop], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitOr: "|",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_BUILTINS: Mapping[str, Callable[..., Any]] = {
    **{
        f"builtins.{f.__name__}": f
        for f in (list, dict, tuple, set, frozenset, str, int, float, bool, len, sorted, min, max)
    },
    "os.path.basename": posixpath.basename,
    "os.path.dirname": posixpath.dirname,
    "os.path.join": posixpath.join,
    "os.path.splitext": posixpath.splitext,
    "copy.copy": lambda value: value,
    "copy.deepcopy": lambda value: value,
}
_METHODS = {
    str: {
        *("lower", "upper", "title", "strip", "lstrip", "rstrip", "split", "join", "replace"),
        *("removesuffix", "removeprefix"),
    },
    dict: {"keys", "values", "items", "get", "copy"},
    list: {"copy", "index", "count"},
    tuple: {"index", "count"},
}
_ENVIRONMENT = {"os.environ.get", "os.getenv", "os.environ"}
_MAX_ELEMENTS = 1_000_000  # of a repeated sequence: `"a" * 10**9` must not be built


def evaluate(resolver: NameResolver, node: ast.expr, scope: Scope) -> Any:
    """Evaluate an expression. Raises UnreadableSourceError where its value depends on more than the source."""
    try:
        value = _Evaluator(resolver, scope).value(node)
    except RecursionError:
        raise UnreadableSourceError("the value refers to itself, or nests too deeply", scope.where(node)) from None
    if _contains_unreadable(value):
        raise UnreadableSourceError(f"'{ast.unparse(node)[:80]}' contains values that can't be read", scope.where(node))
    return value


def call_factory(resolver: NameResolver, node: ast.expr, scope: Scope) -> Any:
    """Evaluate a `default_factory`: a lambda, a function of one `return`, or a builtin type."""
    call = ast.copy_location(ast.Call(node, [], []), node)
    return evaluate(resolver, call, scope)


@dataclass
class _Evaluator:
    resolver: NameResolver
    scope: Scope

    def value(self, node: ast.expr) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.error(node)
        try:
            return method(node)
        except (UnreadableSourceError, RecursionError):
            raise
        except Exception as error:  # the source itself fails, such as 1 / 0 or a missing key
            raise self.error(node, f"fails ({type(error).__name__})") from None

    def error(self, node: ast.expr, why: str = "isn't a constant") -> UnreadableSourceError:
        return UnreadableSourceError(f"'{ast.unparse(node)[:80]}' {why}", self.scope.where(node))

    def value_or_unreadable(self, node: ast.expr) -> Any:
        try:
            return self.value(node)
        except UnreadableSourceError:
            return UNREADABLE

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id == "__file__":
            return self.scope.module.path
        if node.id == "__name__":
            return self.scope.module.name
        return self.value_of_target(self.resolver.resolve(node, self.scope), node)

    def _attribute(self, node: ast.Attribute) -> Any:
        try:
            target = self.resolver.resolve(node, self.scope)
        except UnreadableSourceError:
            inherited = self._inherited(node)
            if inherited is not None:
                return inherited[0]
            value = self.value(node.value)
            if isinstance(value, EnumMember) and node.attr in ("value", "name"):
                return value.value if node.attr == "value" else value.name
            raise
        return self.value_of_target(target, node)

    def _inherited(self, node: ast.Attribute) -> tuple[Any] | None:
        """Evaluate `Class.NAME` where a base of Class assigns it; a tuple of one, since the value may be None."""
        if not isinstance(node.value, ast.Name | ast.Attribute):
            return None
        owner = self.resolver.resolve(node.value, self.scope)
        attribute = class_attribute(self.resolver, owner, node.attr) if isinstance(owner, ClassRef) else None
        if attribute is None:
            return None
        expression, scope = attribute
        return (_Evaluator(self.resolver, scope).value(expression),)

    def value_of_target(self, target: Target, node: ast.expr) -> Any:
        if isinstance(target, ValueRef):
            owner = target.scope.frames[0] if target.scope.frames else None
            member = self._member(node, target) if owner is not None else None
            return member if member is not None else _Evaluator(self.resolver, target.scope).value(target.value)
        if isinstance(target, External):
            why = "depends on the environment" if target.dotted in _ENVIRONMENT else "can't be looked up"
            raise self.error(node, f"{why} ({target.dotted.removeprefix('builtins.')})")
        raise self.error(node, "is not a value")

    def _member(self, node: ast.expr, target: ValueRef) -> EnumMember | None:
        """`Class.NAME` where Class is an enum."""
        if not isinstance(node, ast.Attribute):
            return None
        owner = self.resolver.resolve(node.value, self.scope)
        if not isinstance(owner, ClassRef):
            return None
        members = enum_members(self.resolver, owner, evaluate)
        return next((m for m in members or () if m.name == node.attr), None)

    def _list(self, node: ast.List) -> list[Any]:
        return self._elements(node.elts)

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._elements(node.elts))

    def _set(self, node: ast.Set) -> set[Any]:
        return set(self._elements(node.elts))

    def _elements(self, nodes: list[ast.expr]) -> list[Any]:
        result: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                result.extend(self.value(node.value))
            else:
                result.append(self.value_or_unreadable(node))
        return result

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                result.update(self.value(value))
            else:
                result[self.value(key)] = self.value_or_unreadable(value)
        return result

    def _subscript(self, node: ast.Subscript) -> Any:
        return self.require_readable(self.value(node.value)[self.value(node.slice)], node)

    def _slice(self, node: ast.Slice) -> slice:
        return slice(*(None if part is None else self.value(part) for part in (node.lower, node.upper, node.step)))

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        if type(node.op) not in _UNARY:
            raise self.error(node)
        return _UNARY[type(node.op)](self.value(node.operand))

    def _binop(self, node: ast.BinOp) -> Any:
        if type(node.op) not in SIGNS:
            raise self.error(node)
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Mult) and not all(isinstance(v, int | float) for v in (left, right)):
            count, sequence = (left, right) if isinstance(left, int) else (right, left)
            if count * len(sequence) > _MAX_ELEMENTS:
                raise self.error(node, "is too large")
        return OPERATORS[SIGNS[type(node.op)]](left, right)

    def _boolop(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for part in node.values:
            value = self.value(part)
            if bool(value) is isinstance(node.op, ast.Or):
                break
        return value

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            if not OPERATORS[SIGNS[type(op)]](left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.value(node.test) else node.orelse)

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None or part.conversion != -1:
                    raise self.error(node)
                value = self.value(part.value)
                if isinstance(value, EnumMember):
                    raise self.error(node)
                parts.append(str(value))
            else:
                parts.append(self.value(part))
        return "".join(parts)

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Lambda):
            return self._invoke(node.func.args, node.func.body, node, self.scope)
        if isinstance(node.func, ast.Attribute):
            try:
                target = self.resolver.resolve(node.func, self.scope)
            except UnreadableSourceError:
                return self._method(node, node.func)
        else:
            target = self.resolver.resolve(node.func, self.scope)
        if isinstance(target, External):
            if target.dotted in _BUILTINS:
                arguments, keywords = self._arguments(node)
                return _BUILTINS[target.dotted](*arguments, **keywords)
            why = "depends on the environment" if target.dotted in _ENVIRONMENT else "is a call that isn't followed"
            raise self.error(node, why)
        if isinstance(target, FunctionRef):
            returned = _single_return(target)
            if returned is not None:
                return self._invoke(target.node.args, returned, node, target.scope)
        if isinstance(target, ValueRef) and isinstance(target.value, ast.Lambda):
            return self._invoke(target.value.args, target.value.body, node, target.scope)
        raise self.error(node, "is a call that isn't followed")

    def _invoke(self, parameters: ast.arguments, body: ast.expr, call: ast.Call, scope: Scope) -> Any:
        if call.args or call.keywords or parameters.args or parameters.kwonlyargs or parameters.posonlyargs:
            raise self.error(call, "is a call that isn't followed")
        return _Evaluator(self.resolver, scope).value(body)

    def _method(self, node: ast.Call, func: ast.Attribute) -> Any:
        owner = self.value(func.value)
        allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), set())
        if func.attr not in allowed:
            raise self.error(node, "is a call that isn't followed")
        arguments, keywords = self._arguments(node)
        return self.require_readable(getattr(owner, func.attr)(*arguments, **keywords), node)

    def _arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                keywords.update(self.value(keyword.value))
            else:
                keywords[keyword.arg] = self.value(keyword.value)
        return [self.require_readable(value, node) for value in self._elements(node.args)], keywords

    def require_readable(self, value: Any, node: ast.expr) -> Any:
        if value is UNREADABLE:
            raise self.error(node)
        return value


def _single_return(function: FunctionRef) -> ast.expr | None:
    body = function.node.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None


def _contains_unreadable(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_contains_unreadable(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(_contains_unreadable(part) for part in value)
    return value is UNREADABLE
