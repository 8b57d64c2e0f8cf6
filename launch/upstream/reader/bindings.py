"""The names that a file binds: imports, assignments, functions and classes, and under which condition.

Parsing dominates the cost of reading a schema, and a schema needs only a few definitions of a module of 3000 lines:
top-level functions and classes are split off by their text and parsed on demand. Where the split might be wrong, or
the rest doesn't parse, the module is parsed as a whole.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from launch.upstream.reader.tree import UnreadableSourceError, parse_source

_LEXEMES = re.compile(
    r'#[^\n]*|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|\'\'\'[^\'\\]*(?:(?:\\.|\'(?!\'\'))[^\'\\]*)*\'\'\''
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|\'[^\'\\\n]*(?:\\.[^\'\\\n]*)*\'',
    re.DOTALL,
)
_STARTS = re.compile(r"^[^\s#)\]}][^\n]*", re.MULTILINE)
_DEFINITION = re.compile(r"(?:class|def|async\s+def)\s+(\w+)")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class LazyDefinition:
    """The text of a top-level function or class, parsed when `node` is first read."""

    name: str
    path: str
    line: int  # 1-based; of the first decorator, where there is one
    text: str

    @cached_property
    def node(self) -> Definition:
        """The parsed statement, with the file's line numbers. Raises UnreadableSourceError."""
        body = parse_source("\n" * (self.line - 1) + self.text, self.path).body
        if len(body) == 1 and isinstance(body[0], Definition):
            return body[0]
        raise UnreadableSourceError(f"the end of '{self.name}' can't be determined", f"{self.path}:{self.line}")


@dataclass(frozen=True)
class ImportBinding:
    """`import module` or `from module import name`."""

    module: str  # absolute
    name: str | None  # None for `import module`


@dataclass(frozen=True)
class AssignmentBinding:
    """`name = value`."""

    value: ast.expr | None  # None where a statement changes the name in a way that isn't followed (`+=`, `for`)
    line: int


Binding = Definition | LazyDefinition | ImportBinding | AssignmentBinding


@dataclass(frozen=True)
class NamedBinding:
    """One binding of a name and the condition under which it takes effect."""

    binding: Binding
    # always; branch: in one of several branches; fallback: in an `except`; typing: under TYPE_CHECKING, where packages
    # that load lazily declare their exports
    when: str = "always"


Bindings = dict[str, list[NamedBinding]]


@dataclass
class SourceModule:
    """One parsed file."""

    name: str  # dotted, absolute
    path: str  # relative to its tree's root
    is_package: bool
    body: list[ast.stmt]
    bindings: Bindings
    star_imports: list[str]
    lines: list[str] = field(default_factory=list, repr=False)

    def mentions(self, node: ast.stmt, substrings: tuple[str, ...]) -> bool:
        """Whether the statement's text contains one of the substrings; cheaper than walking it. Needs `lines`."""
        text = "\n".join(self.lines[node.lineno - 1 : node.end_lineno])
        return any(substring in text for substring in substrings)

    def where(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 0)}"


def parse_module(text: str, name: str, path: str, is_package: bool, whole: bool) -> SourceModule:
    """Parse one file. Raises UnreadableSourceError with the line of a syntax error (for this Python version).

    `whole` parses every statement now; otherwise top-level functions and classes are parsed on demand.
    """
    if not whole:
        lazy = _parse_lazily(text, name, path, is_package)
        if lazy is not None:
            return lazy
    body = parse_source(text, path).body
    module = SourceModule(name, path, is_package, body, {}, [], text.splitlines())
    collect_bindings(body, "always", module.bindings, module.star_imports, module)
    return module


def _parse_lazily(text: str, name: str, path: str, is_package: bool) -> SourceModule | None:
    parts = _split_definitions(text, path)
    if parts is None:
        return None
    definitions, rest = parts
    try:
        body = parse_source(rest, path).body
    except UnreadableSourceError:
        return None
    module = SourceModule(name, path, is_package, body, {}, [])
    collect_bindings(body, "always", module.bindings, module.star_imports, module)
    if any(definition.name in module.bindings for definition in definitions):
        return None  # the order of the bindings matters
    for definition in definitions:
        module.bindings.setdefault(definition.name, []).append(NamedBinding(definition))
    return module


def _split_definitions(text: str, path: str) -> tuple[list[LazyDefinition], str] | None:
    """Return the top-level definitions, and the text with them blanked out (line numbers kept); None if unsafe."""
    definitions: list[LazyDefinition] = []
    rest: list[str] = []
    strings = [(m.start(), m.end()) for m in _LEXEMES.finditer(text) if "\n" in m.group()]
    starts = [(m.start(), m.group()) for m in _find_top_level_lines(strings, text)]
    position, line = 0, 1
    index = 0
    while index < len(starts):
        begin, head = starts[index]
        index += 1
        while head.startswith("@") and index < len(starts):
            head = starts[index][1]
            index += 1
        definition = _DEFINITION.match(head)
        if definition is None:
            continue
        end = starts[index][0] if index < len(starts) else len(text)
        rest.append(text[position:begin])
        line += text.count("\n", position, begin)
        definitions.append(LazyDefinition(definition.group(1), path, line, text[begin:end]))
        height = text.count("\n", begin, end)
        rest.append("\n" * height)
        line += height
        position = end
    rest.append(text[position:])
    return (definitions, "".join(rest)) if definitions else None


def _find_top_level_lines(strings: list[tuple[int, int]], text: str) -> list[re.Match[str]]:
    """Return the lines that begin in the first column, outside multi-line strings."""
    lines: list[re.Match[str]] = []
    index = 0
    for match in _STARTS.finditer(text):
        while index < len(strings) and strings[index][1] <= match.start():
            index += 1
        if index == len(strings) or not strings[index][0] < match.start() < strings[index][1]:
            lines.append(match)
    return lines


def collect_bindings(
    body: list[ast.stmt], when: str, bindings: Bindings, stars: list[str], module: SourceModule
) -> None:
    """Add the bindings of the statements to `bindings`, and the modules of star imports to `stars`."""
    for statement in body:
        for name, binding in _bindings_of(statement, module, stars):
            bindings.setdefault(name, []).append(NamedBinding(binding, when))
        for block, condition in _nested_blocks(statement, when):
            collect_bindings(block, condition, bindings, stars, module)


def _bindings_of(  # noqa: PLR0912 - one branch per statement type
    statement: ast.stmt, module: SourceModule, stars: list[str]
) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name, statement
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            # `import a.b` binds `a`; attribute access then walks down to `a.b`.
            target = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or target, ImportBinding(target, None)
    elif isinstance(statement, ast.ImportFrom):
        source = _absolute_module_name(statement, module)
        for alias in statement.names:
            if alias.name == "*":
                stars.append(source)
            else:
                yield alias.asname or alias.name, ImportBinding(source, alias.name)
    elif isinstance(statement, ast.Assign):
        for target_node in statement.targets:
            is_name = isinstance(target_node, ast.Name)
            for name in _stored_names(target_node):
                yield name, AssignmentBinding(statement.value if is_name else None, statement.lineno)
    elif isinstance(statement, ast.AnnAssign):
        if isinstance(statement.target, ast.Name) and statement.value is not None:
            yield statement.target.id, AssignmentBinding(statement.value, statement.lineno)
    elif isinstance(statement, ast.AugAssign | ast.For | ast.AsyncFor):
        for name in _stored_names(statement.target):
            yield name, AssignmentBinding(None, statement.lineno)


def _nested_blocks(statement: ast.stmt, when: str) -> Iterator[tuple[list[ast.stmt], str]]:
    within = "branch" if when == "always" else when
    if isinstance(statement, ast.If):
        if "TYPE_CHECKING" in (getattr(statement.test, "id", None), getattr(statement.test, "attr", None)):
            yield statement.body, "typing"
            yield statement.orelse, when
        else:
            yield statement.body, within
            yield statement.orelse, within
    elif isinstance(statement, ast.Try):
        yield statement.body, when
        for handler in statement.handlers:
            yield handler.body, "fallback"
        yield statement.orelse, when
        yield statement.finalbody, when
    elif isinstance(statement, ast.With | ast.AsyncWith):
        yield statement.body, when
    elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
        yield statement.body, within
        yield statement.orelse, within


def _stored_names(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _absolute_module_name(statement: ast.ImportFrom, module: SourceModule) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    if not module.is_package:
        parts = parts[:-1]
    parts = parts[: len(parts) - (statement.level - 1)]
    return ".".join([*parts, statement.module] if statement.module else parts)


def read_lazy_exports(module: SourceModule) -> Mapping[str, str]:
    """Return {exported name: submodule} of a package that loads lazily through an `_import_structure` dict."""
    exports: dict[str, str] = {}
    for named in module.bindings.get("_import_structure", []):
        if not (isinstance(named.binding, AssignmentBinding) and isinstance(named.binding.value, ast.Dict)):
            continue
        for key, names in zip(named.binding.value.keys, named.binding.value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(names, ast.List | ast.Tuple):
                exports.update({str(n.value): str(key.value) for n in names.elts if isinstance(n, ast.Constant)})
    return exports
