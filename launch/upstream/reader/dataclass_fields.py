"""Collects dataclass fields from source, as the `dataclass` decorator would."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from launch.upstream.reader.classes import mro
from launch.upstream.reader.name_resolver import ClassRef, External, FunctionRef, NameResolver, Scope
from launch.upstream.reader.tree import UnreadableSourceError

# Bases of the standard library without dataclass fields.
_FIELDLESS = {"builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol"}


@dataclass(frozen=True)
class RawField:
    """A dataclass field before the command-line rules: its annotation and its default as expressions."""

    name: str
    owner: ClassRef
    node: ast.AnnAssign
    scope: Scope  # where the names of the annotation are looked up
    default: ast.expr | None
    factory: ast.expr | None  # the `default_factory`
    default_scope: Scope  # differs from `scope` where a subclass re-annotates a field and inherits its default
    metadata: ast.expr | None
    extra_metadata: tuple[ast.keyword, ...]
    init: bool
    docstring: str | None
    problem: UnreadableSourceError | None = None

    @property
    def where(self) -> str:
        return self.scope.where(self.node)


def is_dataclass(resolver: NameResolver, ref: ClassRef) -> bool:
    """Whether the class itself has the decorator (a subclass without it adds no fields)."""
    functions = (node.func if isinstance(node, ast.Call) else node for node in ref.node.decorator_list)
    targets = (resolver.try_resolve(function, ref.scope) for function in functions)
    return any(isinstance(target, External) and target.dotted == "dataclasses.dataclass" for target in targets)


def dataclass_fields(resolver: NameResolver, ref: ClassRef) -> tuple[dict[str, RawField], list[UnreadableSourceError]]:
    """Return `dataclasses.fields()` of the class, in order, and what may hide more fields (unreadable bases)."""
    order, external, problems = mro(resolver, ref)
    for name in sorted(external - _FIELDLESS):
        reason = f"a base class of {ref.name}: {resolver.explain_external(name)}"
        problems = [*problems, UnreadableSourceError(reason, ref.where)]
    decorated = {cls: is_dataclass(resolver, cls) for cls in order}
    if not any(decorated.values()):
        raise UnreadableSourceError(f"{ref.name} isn't a dataclass", ref.where)
    fields_by_class: dict[ClassRef, dict[str, RawField]] = {}

    def collected_fields(cls: ClassRef) -> dict[str, RawField]:
        """Return `cls.__dataclass_fields__`: its own if decorated, else that of the next class that is."""
        if cls in fields_by_class:
            return fields_by_class[cls]
        class_mro = mro(resolver, cls)[0]
        if not decorated[cls]:
            result = next((collected_fields(base) for base in class_mro[1:] if decorated[base]), {})
        else:
            result = {}
            for base in reversed(class_mro[1:]):
                result.update(collected_fields(base))
            result.update(_own_fields(resolver, cls, class_mro, decorated))
        fields_by_class[cls] = result
        return result

    return collected_fields(ref), problems


def _own_fields(
    resolver: NameResolver, cls: ClassRef, class_mro: list[ClassRef], decorated: dict[ClassRef, bool]
) -> dict[str, RawField]:
    scope = resolver.class_scope(cls)
    fields: dict[str, RawField] = {}
    for node, docstring, conditional in _annotated_statements(cls.node.body):
        assert isinstance(node.target, ast.Name)
        name = node.target.id
        if _is_pseudo_field(resolver, node.annotation, scope):
            continue
        value, value_scope = _class_attribute(resolver, name, class_mro, decorated)
        if value_scope is None or value_scope is cls.scope:
            value_scope = scope
        call = None if value is None else _as_field_call(resolver, value, value_scope)
        keywords = {"default": value} if call is None else {keyword.arg: keyword.value for keyword in call.keywords}
        problem = None
        if conditional:
            problem = UnreadableSourceError(f"'{name}' is declared conditionally", scope.where(node))
        elif call is not None and (None in keywords or call.args):
            problem = UnreadableSourceError(f"the field() call of '{name}' can't be followed", value_scope.where(call))
        init = keywords.get("init")
        fields[name] = RawField(
            name,
            cls,
            node,
            scope,
            default=keywords.get("default"),
            factory=keywords.get("default_factory"),
            default_scope=value_scope,
            metadata=keywords.get("metadata"),
            extra_metadata=tuple(k for k in (call.keywords if call else ()) if k.arg in ("help", "aliases")),
            init=not (isinstance(init, ast.Constant) and init.value is False),
            docstring=docstring,
            problem=problem,
        )
    return fields


def _annotated_statements(
    body: list[ast.stmt], conditional: bool = False
) -> Iterator[tuple[ast.AnnAssign, str | None, bool]]:
    for index, statement in enumerate(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            following = body[index + 1] if index + 1 < len(body) else None
            yield statement, _docstring_of(following), conditional
        elif isinstance(statement, ast.If):
            yield from _annotated_statements([*statement.body, *statement.orelse], True)


def _docstring_of(statement: ast.stmt | None) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value if isinstance(statement.value.value, str) else None
    return None


def _is_pseudo_field(resolver: NameResolver, annotation: ast.expr, scope: Scope) -> bool:
    """Whether the annotation is ClassVar, InitVar or KW_ONLY, which make no field (dataclasses.py, `_get_field`)."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        head = annotation.value.partition("[")[0].strip().rpartition(".")[2]
        return head in ("ClassVar", "InitVar", "KW_ONLY")
    generic = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    target = resolver.try_resolve(generic, scope)
    return isinstance(target, External) and target.dotted.rpartition(".")[2] in ("ClassVar", "InitVar", "KW_ONLY")


def _class_attribute(
    resolver: NameResolver, name: str, class_mro: list[ClassRef], decorated: dict[ClassRef, bool]
) -> tuple[ast.expr | None, Scope | None]:
    """Return the expression behind `getattr(cls, name)`: a subclass that re-annotates a field inherits its default."""
    for cls in class_mro:
        bindings = resolver.class_scope(cls).frames[0].get(name)
        if not bindings:
            continue
        binding = bindings[-1].binding
        value = getattr(binding, "value", None)
        if not isinstance(value, ast.expr):
            return None, None
        if cls is class_mro[0]:
            return value, cls.scope
        call = _as_field_call(resolver, value, cls.scope)
        if call is None:
            return value, resolver.class_scope(cls)
        default = next((k.value for k in call.keywords if k.arg == "default"), None)
        if default is not None and decorated[cls]:
            return default, resolver.class_scope(cls)
        # The decorator deletes `field(default_factory=...)` from its class.
    return None, None


def _as_field_call(resolver: NameResolver, value: ast.expr, scope: Scope) -> ast.Call | None:
    """Return the call if it is `field(...)` or transformers' `HfArg(...)`, which takes the same keywords."""
    target = resolver.try_resolve(value.func, scope) if isinstance(value, ast.Call) else None
    if isinstance(target, External):
        is_field = target.dotted == "dataclasses.field" or target.dotted.endswith(".HfArg")
    else:
        is_field = isinstance(target, ClassRef | FunctionRef) and target.node.name == "HfArg"
    return value if is_field and isinstance(value, ast.Call) else None
