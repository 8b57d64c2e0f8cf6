"""Type annotations as HfArgumentParser sees them after `typing.get_type_hints`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from launch.upstream.reader.classes import enum_members
from launch.upstream.reader.constants import evaluate
from launch.upstream.reader.name_resolver import ClassRef, External, NameResolver, Scope, ValueRef
from launch.upstream.reader.tree import UnreadableSourceError, parse_source

_ATOMS = {
    f"builtins.{name}": name
    for name in ("str", "int", "float", "bool", "dict", "list", "tuple", "set", "bytes", "object")
}
_GENERIC = {name: name.lower() for name in ("List", "Dict", "Tuple", "Set")}
_TYPING = ("typing.", "typing_extensions.", "collections.abc.")


@dataclass(frozen=True)
class NamedType:
    """A type without arguments: a builtin, `NoneType`, `Any`, `Path`, or another class's name."""

    name: str


@dataclass(frozen=True)
class GenericType:
    """`list[str]`, `dict[str, Any]`, ..."""

    origin: str
    args: tuple[TypeNode, ...]


@dataclass(frozen=True)
class LiteralType:
    """`Literal["a", 1]`."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class EnumType:
    """An enum class, with its members' values."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class UnreadableType:
    """A type whose definition can't be read: it may be an enum, a class or an alias."""

    name: str
    reason: str


@dataclass(frozen=True)
class UnionType:
    """`X | Y`, `Optional[X]` or `Union[X, Y]`, flattened."""

    args: tuple[TypeNode, ...]


TypeNode = NamedType | GenericType | LiteralType | EnumType | UnreadableType | UnionType
NONE = NamedType("NoneType")


def read_type(resolver: NameResolver, node: ast.expr, scope: Scope) -> TypeNode:
    """Return the annotation's type; one that can't be followed becomes an `UnreadableType` with the reason."""
    try:
        return _resolve_type(resolver, node, scope)
    except UnreadableSourceError as error:
        return UnreadableType(ast.unparse(node)[:120], str(error))
    except RecursionError:
        return UnreadableType(ast.unparse(node)[:120], f"{scope.where(node)}: the type refers to itself")


def _resolve_type(resolver: NameResolver, node: ast.expr, scope: Scope) -> TypeNode:
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
        return NONE if node.value is None else _resolve_quoted(resolver, node, scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return make_union([_resolve_type(resolver, node.left, scope), _resolve_type(resolver, node.right, scope)])
    if isinstance(node, ast.Subscript):
        return _resolve_subscript(resolver, node, scope)
    if not isinstance(node, ast.Name | ast.Attribute):
        raise UnreadableSourceError(f"the type '{ast.unparse(node)[:80]}' can't be followed", scope.where(node))
    target = resolver.resolve(node, scope)
    if isinstance(target, ValueRef):  # an alias: `Mode = Literal["a", "b"]`
        return _resolve_type(resolver, target.value, target.scope)
    if isinstance(target, ClassRef):
        members = enum_members(resolver, target, evaluate)
        return NamedType(target.name) if members is None else EnumType(target.name, tuple(m.value for m in members))
    if isinstance(target, External):
        return _resolve_external(resolver, target.dotted, node, scope)
    raise UnreadableSourceError(f"'{ast.unparse(node)}' isn't a type", scope.where(node))


def _resolve_external(resolver: NameResolver, dotted: str, node: ast.expr, scope: Scope) -> TypeNode:
    if dotted in _ATOMS:
        return NamedType(_ATOMS[dotted])
    last = dotted.rpartition(".")[2]
    if dotted.startswith(_TYPING):
        return NamedType(_GENERIC.get(last, last))
    if dotted in ("pathlib.Path", "os.PathLike"):
        return NamedType("Path")
    raise UnreadableSourceError(resolver.explain_external(dotted), scope.where(node))


def _resolve_quoted(resolver: NameResolver, node: ast.Constant, scope: Scope) -> TypeNode:
    try:
        body = parse_source(str(node.value).strip(), scope.module.path).body
    except UnreadableSourceError:
        body = []
    inner = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    if inner is None:
        raise UnreadableSourceError(f"the annotation {node.value!r} doesn't parse", scope.where(node))
    for child in ast.walk(inner):
        ast.copy_location(child, node)
    return _resolve_type(resolver, inner, scope)


def _resolve_subscript(resolver: NameResolver, node: ast.Subscript, scope: Scope) -> TypeNode:
    target = resolver.resolve(node.value, scope)
    dotted = target.dotted if isinstance(target, External) else ""
    last = dotted.rpartition(".")[2]
    arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    typing = dotted.startswith(_TYPING)
    if typing and last == "Optional":
        return make_union([_resolve_type(resolver, node.slice, scope), NONE])
    if typing and last == "Union":
        return make_union([_resolve_type(resolver, argument, scope) for argument in arguments])
    if typing and last == "Literal":
        return LiteralType(_literal_values(resolver, arguments, scope))
    if typing and last in ("Annotated", "Required", "Final"):
        return _resolve_type(resolver, arguments[0], scope)
    if dotted in _ATOMS or typing:
        origin = _ATOMS.get(dotted) or _GENERIC.get(last, last)
        return GenericType(origin, tuple(read_type(resolver, argument, scope) for argument in arguments))
    if isinstance(target, ClassRef):
        return NamedType(target.name)
    raise UnreadableSourceError(f"the type '{ast.unparse(node)[:80]}' can't be followed", scope.where(node))


def _literal_values(resolver: NameResolver, arguments: list[ast.expr], scope: Scope) -> tuple[Any, ...]:
    values: list[Any] = []
    for argument in arguments:
        value = evaluate(resolver, argument, scope)
        if all(value != seen or type(value) is not type(seen) for seen in values):
            values.append(value)
    return tuple(values)


def make_union(args: list[TypeNode]) -> TypeNode:
    """Flatten nested unions and drop duplicates, in order, as `typing.Union` and `X | Y` do."""
    flat: list[TypeNode] = []
    for arg in args:
        for part in arg.args if isinstance(arg, UnionType) else (arg,):
            if part not in flat:
                flat.append(part)
    return flat[0] if len(flat) == 1 else UnionType(tuple(flat))
