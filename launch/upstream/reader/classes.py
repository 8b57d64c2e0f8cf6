"""Base classes, method resolution order and the members of enum classes, from source."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launch.upstream.reader.name_resolver import ClassRef, External, NameResolver, Scope
from launch.upstream.reader.tree import UnreadableSourceError


def resolve_bases(
    resolver: NameResolver, ref: ClassRef
) -> tuple[list[ClassRef], list[str], list[UnreadableSourceError]]:
    """Return the base classes that can be read, the dotted names of external ones, and what can't be followed."""
    readable: list[ClassRef] = []
    external: list[str] = []
    problems: list[UnreadableSourceError] = []
    for base in ref.node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
        try:
            target = resolver.resolve(plain, ref.scope)
        except UnreadableSourceError as error:
            problems.append(error)
            continue
        if isinstance(target, ClassRef):
            readable.append(target)
        elif isinstance(target, External):
            external.append(target.dotted)
        else:
            problems.append(UnreadableSourceError(f"base '{ast.unparse(base)}' of {ref.name} isn't a class", ref.where))
    return readable, external, problems


def mro(resolver: NameResolver, ref: ClassRef) -> tuple[list[ClassRef], set[str], list[UnreadableSourceError]]:
    """Return the C3 linearisation of the readable classes, and the external bases and problems of all of them."""
    key = ("mro", ref)
    if key not in resolver.memo:
        resolver.memo[key] = _compute_mro(resolver, ref)
    result: tuple[list[ClassRef], set[str], list[UnreadableSourceError]] = resolver.memo[key]
    return result


def _compute_mro(resolver: NameResolver, ref: ClassRef) -> tuple[list[ClassRef], set[str], list[UnreadableSourceError]]:
    external: set[str] = set()
    problems: list[UnreadableSourceError] = []

    def linearise(cls: ClassRef, subclasses: tuple[ClassRef, ...]) -> list[ClassRef]:
        if cls in subclasses:
            raise UnreadableSourceError(f"class {cls.name} inherits from itself", cls.where)
        bases, external_names, base_problems = resolve_bases(resolver, cls)
        external.update(external_names)
        problems.extend(base_problems)
        return [cls, *_merge([linearise(base, (*subclasses, cls)) for base in bases] + [bases], cls)]

    return linearise(ref, ()), external, problems


def _merge(sequences: list[list[ClassRef]], cls: ClassRef) -> list[ClassRef]:
    result: list[ClassRef] = []
    pending = [list(sequence) for sequence in sequences if sequence]
    while pending:
        head = next((s[0] for s in pending if not any(s[0] in other[1:] for other in pending)), None)
        if head is None:
            raise UnreadableSourceError(f"class {cls.name} has no consistent method resolution order", cls.where)
        result.append(head)
        pending = [rest for s in pending if (rest := [c for c in s if c != head])]
    return result


def class_attribute(resolver: NameResolver, ref: ClassRef, name: str) -> tuple[ast.expr, Scope] | None:
    """Return the expression assigned to `name` in the class or the first base that has it, and its scope."""
    for cls in mro(resolver, ref)[0]:
        scope = resolver.class_scope(cls)
        for named in reversed(scope.frames[0].get(name, [])):
            value = getattr(named.binding, "value", None)
            return (value, scope) if isinstance(value, ast.expr) else None
    return None


def find_method(classes: list[ClassRef], name: str) -> tuple[ClassRef, ast.FunctionDef] | None:
    """Return the first definition of a method along a resolution order, and the class that has it."""
    for cls in classes:
        for statement in cls.node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return cls, statement
    return None


# Whether a member is itself a str, so that it equals its value.
_ENUMS = {"enum.Enum": False, "enum.StrEnum": True, "enum.IntEnum": False, "enum.Flag": False, "enum.IntFlag": False}


@dataclass(frozen=True)
class EnumMember:
    """A member of an enum class."""

    cls: str
    name: str
    value: Any
    is_str: bool  # the class mixes in `str`, so that the member equals its value


ValueOf = Callable[[NameResolver, ast.expr, Scope], Any]


def enum_members(resolver: NameResolver, ref: ClassRef, value_of: ValueOf) -> list[EnumMember] | None:
    """Return the members of an enum class in definition order, without aliases of an earlier value; None for others.

    `value_of` evaluates an expression. Raises UnreadableSourceError where a member's value can't be read.
    """
    order, external, _ = mro(resolver, ref)
    enum_bases = [base for base in _ENUMS if base in external]
    if not enum_bases:
        return None
    is_str = any(_ENUMS[base] for base in enum_bases) or "builtins.str" in external
    is_str_enum = "enum.StrEnum" in external
    members: list[EnumMember] = []
    computed = find_method([cls for cls in order if cls is not ref], "_generate_next_value_")
    if computed is not None:
        raise UnreadableSourceError(f"enum {ref.name} computes its values (_generate_next_value_)", computed[0].where)
    scope = resolver.class_scope(ref)
    for statement in ref.node.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name = statement.targets[0].id
        if name.startswith("_"):
            continue
        value = _auto_value(resolver, statement.value, scope, name.lower() if is_str_enum else len(members) + 1)
        if value is None:
            value = value_of(resolver, statement.value, scope)
        if all(member.value != value for member in members):
            members.append(EnumMember(ref.name, name, value, is_str))
    return members


def _auto_value(resolver: NameResolver, value: ast.expr, scope: Scope, automatic: str | int) -> str | int | None:
    if not isinstance(value, ast.Call):
        return None
    target = resolver.resolve(value.func, scope)
    if not (isinstance(target, External) and target.dotted == "enum.auto"):
        return None
    return automatic
