"""Finds a script's parser call, such as `ArgumentParserPlus((A, B))`, and how the script uses the parser."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launch.upstream.reader.bindings import ImportBinding, SourceModule
from launch.upstream.reader.classes import mro
from launch.upstream.reader.name_resolver import ClassRef, External, NameResolver, Scope, ValueRef
from launch.upstream.reader.tree import UnreadableSourceError
from launch.upstream.schema import Unknown

_HF_PARSER = "HfArgumentParser"
_PARSER_NAMES = {_HF_PARSER, "ArgumentParserPlus", "TrlParser"}  # recognised even where their module can't be read
_PARSE_METHODS = ("parse", "parse_args_into_dataclasses", "parse_args_and_config")
# A statement without any of these can neither create nor use the parser ("Parser" alone would miss `import ... as P`).
_SUBSTRINGS = ("Parser", "parse", "set_defaults", "add_argument", "add_subparsers")
_HARMLESS_KEYWORDS = {"prog", "description", "usage", "epilog", "formatter_class", "add_help"}


@dataclass(frozen=True)
class ParserCall:
    """The parser call and how the script uses the parser."""

    name: str  # of the parser class
    lineage: tuple[str, ...]  # the names of the parser class and its bases
    definition: ClassRef | None  # of the parser class, where it can be read
    where: str  # file:line
    classes: tuple[ClassRef, ...]  # the dataclasses, in the order of the call
    defaults: dict[str, tuple[ast.expr, Scope]]  # from `set_defaults`
    parse_method: str | None
    abbreviations: bool
    keeps_unknown_arguments: bool
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True)
class _Candidate:
    call: ast.Call
    scope: Scope
    function: str | None
    in_main: bool
    target: ClassRef | External


def find_parser_call(resolver: NameResolver, module: SourceModule) -> ParserCall:
    """Find the script's parser call. Raises UnreadableSourceError if there is none, several, or an unreadable one."""
    calls = list(_find_calls(module.body, Scope(module), None, False))
    candidates = [candidate for call in calls if (candidate := _as_candidate(resolver, call)) is not None]
    if not candidates:
        raise UnreadableSourceError("no HfArgumentParser call was found in the script", module.path)
    chosen = _choose_candidate(candidates, module)
    parser_names = _find_parser_variables(module, chosen)
    unknown: list[Unknown] = []
    defaults: dict[str, tuple[ast.expr, Scope]] = {}
    parse_method, keeps = None, False
    for call, scope, _, _ in calls:
        method = _called_method(call, parser_names)
        if method == "set_defaults":
            for keyword in call.keywords:
                if keyword.arg is None:
                    unknown.append(Unknown("defaults", "set_defaults(**...) isn't followed", scope.where(call)))
                else:
                    defaults[keyword.arg] = (keyword.value, scope)
        elif method in ("add_argument", "add_argument_group", "add_subparsers"):
            unknown.append(Unknown("options", f"{method}() adds options that are not read", scope.where(call)))
        elif method in _PARSE_METHODS:
            parse_method = parse_method or method
            keeps = keeps or any(k.arg == "return_remaining_strings" and _is_true(k.value) for k in call.keywords)
    abbreviations = True
    for keyword in chosen.call.keywords:
        if keyword.arg == "allow_abbrev":
            abbreviations = not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
        elif keyword.arg not in _HARMLESS_KEYWORDS | {"dataclass_types"}:
            reason = f"the parser is built with {keyword.arg or '**keywords'}, whose effect is unknown"
            unknown.append(Unknown("options", reason, chosen.scope.where(chosen.call)))
    lineage = _class_lineage(resolver, chosen.target)
    return ParserCall(
        name=lineage[0],
        lineage=lineage,
        definition=chosen.target if isinstance(chosen.target, ClassRef) else None,
        where=chosen.scope.where(chosen.call),
        classes=_read_dataclasses(resolver, chosen),
        defaults=defaults,
        parse_method=parse_method,
        abbreviations=abbreviations,
        keeps_unknown_arguments=keeps,
        unknown=tuple(unknown),
    )


# A call, its scope, the function around it, and whether it is under `if __name__ == "__main__"`.
_Call = tuple[ast.Call, Scope, str | None, bool]


def _find_calls(body: list[ast.stmt], scope: Scope, function: str | None, in_main: bool) -> Iterator[_Call]:
    for statement in body:
        if not scope.module.mentions(statement, _SUBSTRINGS):
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _find_calls(statement.body, scope.inner(statement.body), statement.name, in_main)
        elif isinstance(statement, ast.ClassDef):
            continue
        elif isinstance(statement, ast.If):
            yield from _find_calls_in([statement.test], scope, function, in_main)
            yield from _find_calls(statement.body, scope, function, in_main or _is_main_guard(statement.test))
            yield from _find_calls(statement.orelse, scope, function, in_main)
        elif isinstance(statement, ast.With | ast.AsyncWith | ast.For | ast.AsyncFor | ast.While | ast.Try):
            expressions = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
            yield from _find_calls_in(expressions, scope, function, in_main)
            for handler in getattr(statement, "handlers", []):
                yield from _find_calls(handler.body, scope, function, in_main)
            for block in ("body", "orelse", "finalbody"):
                yield from _find_calls(getattr(statement, block, []), scope, function, in_main)
        else:
            yield from _find_calls_in([statement], scope, function, in_main)


def _find_calls_in(nodes: Sequence[ast.AST], scope: Scope, function: str | None, main: bool) -> Iterator[_Call]:
    for node in nodes:
        for child in ast.walk(node):
            if isinstance(child, ast.Call):
                yield child, scope, function, main


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _is_true(node: ast.expr) -> bool:
    return not (isinstance(node, ast.Constant) and not node.value)


def _as_candidate(resolver: NameResolver, call_in_context: _Call) -> _Candidate | None:
    call, scope, function, in_main = call_in_context
    if not isinstance(call.func, ast.Name | ast.Attribute) or "Parser" not in _imported_name(call.func, scope):
        return None
    try:
        target = resolver.resolve(call.func, scope)
    except UnreadableSourceError:
        if _imported_name(call.func, scope) not in _PARSER_NAMES:
            return None
        raise
    if isinstance(target, ClassRef | External) and _PARSER_NAMES & set(_class_lineage(resolver, target)):
        return _Candidate(call, scope, function, in_main, target)
    return None


def _imported_name(func: ast.Name | ast.Attribute, scope: Scope) -> str:
    """Return the last part of the called name, or the original name behind `from x import Parser as P`."""
    if isinstance(func, ast.Attribute):
        return func.attr
    for frame in (*scope.frames, scope.module.bindings):
        for named in frame.get(func.id, []):
            if isinstance(named.binding, ImportBinding) and named.binding.name:
                return named.binding.name
    return func.id


def _class_lineage(resolver: NameResolver, target: ClassRef | External) -> tuple[str, ...]:
    """Return the names of the parser class and its bases, as far as they can be read."""
    if isinstance(target, External):
        return (target.dotted.rpartition(".")[2],)
    order, external, _ = mro(resolver, target)
    return (*(cls.name for cls in order), *sorted(name.rpartition(".")[2] for name in external))


def _choose_candidate(candidates: list[_Candidate], module: SourceModule) -> _Candidate:
    for preferred in (
        [c for c in candidates if c.in_main],
        [c for c in candidates if c.function in ("main", "make_parser", "get_parser", "parse_args")],
        candidates,
    ):
        distinct = {ast.dump(c.call) for c in preferred}
        if len(distinct) == 1:
            return preferred[0]
        if distinct:
            lines = ", ".join(str(c.call.lineno) for c in preferred)
            reason = f"several parser calls (lines {lines}): it is unclear which is used"
            raise UnreadableSourceError(reason, module.path)
    raise UnreadableSourceError("no HfArgumentParser call was found in the script", module.path)


def _find_parser_variables(module: SourceModule, chosen: _Candidate) -> set[str]:
    """Return the names that hold the parser: assigned from the call, or from the function that returns it."""
    names: set[str] = set()
    substrings = ("Parser", *([chosen.function] if chosen.function else []), _called_name(chosen.call))
    statements = [statement for statement in module.body if module.mentions(statement, substrings)]
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            func = node.value.func
            calls_factory = chosen.function is not None and isinstance(func, ast.Name) and func.id == chosen.function
            if node.value is chosen.call or calls_factory:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(t.id for t in targets if isinstance(t, ast.Name))
    return names


def _called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _called_method(call: ast.Call, parser_names: set[str]) -> str | None:
    func = call.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in parser_names:
        return func.attr
    # `HfArgumentParser(Args).parse_args_into_dataclasses()` in one expression
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call) and func.attr in _PARSE_METHODS:
        return func.attr
    return None


def _read_dataclasses(resolver: NameResolver, chosen: _Candidate) -> tuple[ClassRef, ...]:
    named = [*chosen.call.args[:1], *(k.value for k in chosen.call.keywords if k.arg == "dataclass_types")]
    classes = tuple(_class_refs(resolver, named[0], chosen.scope)) if named else ()
    if not classes:
        raise UnreadableSourceError("the parser call names no dataclasses", chosen.scope.where(chosen.call))
    return classes


def _class_refs(resolver: NameResolver, node: ast.expr, scope: Scope) -> Iterator[ClassRef]:
    if isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from _class_refs(resolver, element.value if isinstance(element, ast.Starred) else element, scope)
        return
    if isinstance(node, ast.Call) and len(node.args) == 2:  # typing.cast(T, value)
        target = resolver.resolve(node.func, scope) if isinstance(node.func, ast.Name | ast.Attribute) else None
        if isinstance(target, External) and target.dotted == "typing.cast":
            yield from _class_refs(resolver, node.args[1], scope)
            return
    target = resolver.resolve(node, scope)
    if isinstance(target, ClassRef):
        yield target
    elif isinstance(target, ValueRef):
        yield from _class_refs(resolver, target.value, target.scope)
    elif isinstance(target, External):
        raise UnreadableSourceError(f"class {resolver.explain_external(target.dotted)}", scope.where(node))
    else:
        raise UnreadableSourceError(f"'{ast.unparse(node)}' in the parser call isn't a class", scope.where(node))
