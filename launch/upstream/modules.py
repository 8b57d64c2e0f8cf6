"""Python modules as text: finds them by name, parses them when needed, and follows names across them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from launch.upstream.sections import Definition, Section, parse_text, split
from launch.upstream.tree import CannotRead, Tree, blob_id, decode


@dataclass(frozen=True)
class Imported:
    """`import module` (name is None) or `from module import name`; `module` is absolute."""

    module: str
    name: str | None


@dataclass(frozen=True)
class Assigned:
    """`name = value`; value is None where a statement changes the name in a way that isn't followed (`+=`, `for`)."""

    value: ast.expr | None
    line: int


Binding = Definition | Section | Imported | Assigned


@dataclass(frozen=True)
class Bound:
    """One binding of a name, and when it happens: always, in one of several branches, only as the fallback of a
    `try`, or only for type checkers (which is where packages that load lazily say what they export)."""

    binding: Binding
    when: str = "always"


Bindings = dict[str, list[Bound]]


@dataclass
class Module:
    """One parsed file. `name` is dotted and absolute; `path` is relative to its tree's root."""

    name: str
    path: str
    is_package: bool
    body: list[ast.stmt]
    bindings: Bindings
    star_imports: list[str]
    lines: list[str] = field(default_factory=list, repr=False)

    def mentions(self, node: ast.stmt, words: tuple[str, ...]) -> bool:
        """Whether the statement's text has one of the words; cheaper than walking it. Needs `lines`."""
        text = "\n".join(self.lines[node.lineno - 1 : node.end_lineno])
        return any(word in text for word in words)

    def where(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 0)}"


@dataclass(frozen=True)
class Scope:
    """Where a name is looked up: the innermost bindings first (function or class body), then the module."""

    module: Module
    frames: tuple[Bindings, ...] = ()

    def inner(self, body: list[ast.stmt]) -> Scope:
        bindings: Bindings = {}
        _collect(body, "always", bindings, [], self.module)
        return Scope(self.module, (bindings, *self.frames))

    def where(self, node: ast.AST) -> str:
        return self.module.where(node)


@dataclass(frozen=True)
class ClassRef:
    """A class statement and the scope that it stands in."""

    scope: Scope = field(compare=False)
    node: ast.ClassDef = field(compare=False)
    module_name: str
    name: str

    @property
    def where(self) -> str:
        return self.scope.where(self.node)


@dataclass(frozen=True)
class FunctionRef:
    scope: Scope
    node: ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ModuleRef:
    module: Module


@dataclass(frozen=True)
class ValueRef:
    """A name bound to an expression that has still to be evaluated."""

    scope: Scope
    value: ast.expr


@dataclass(frozen=True)
class External:
    """A name of a module that no tree holds (the standard library, or a package that isn't on the search path)."""

    dotted: str


Target = ClassRef | FunctionRef | ModuleRef | ValueRef | External


_Loaded = tuple[Module | CannotRead | None, str, bool]


@dataclass
class Finder:
    """Finds modules in `tree`, then in `packages`; each file is read and parsed at most once.

    `touched` / `touched_packages` collect {path: git blob id} of every file that an answer depended on since `begin`.
    `memo` holds what other modules have worked out about classes since then.
    """

    tree: Tree
    packages: Tree | None = None
    touched: dict[str, str] = field(default_factory=dict)
    touched_packages: dict[str, str] = field(default_factory=dict)
    memo: dict[tuple[str, ClassRef], Any] = field(default_factory=dict)
    _modules: dict[str, _Loaded] = field(default_factory=dict)

    def begin(self) -> None:
        """Forgets which files were touched, so that the next answer names its own; parsed modules stay."""
        self.touched.clear()
        self.touched_packages.clear()
        self.memo.clear()

    def inside(self, ref: ClassRef) -> Scope:
        """The scope of the class's own body."""
        key = ("scope", ref)
        if key not in self.memo:
            self.memo[key] = ref.scope.inner(ref.node.body)
        scope: Scope = self.memo[key]
        return scope

    def module(self, name: str, whole: bool = False) -> Module | None:
        """The module, or None when no tree has it; raises CannotRead when it is there and can't be parsed."""
        path = name.replace(".", "/")
        return self._first(name, [(f"{path}.py", False), (f"{path}/__init__.py", True)], whole)

    def script(self, path: str) -> Module | None:
        """The module of a file given by path, as `python PATH` would run it."""
        pure = PurePosixPath(path)
        name = ".".join(pure.with_suffix("").parts)
        return self._first(name, [(str(pure), pure.name == "__init__.py")], whole=True)

    def _first(self, name: str, candidates: list[tuple[str, bool]], whole: bool) -> Module | None:
        key = name if not whole else f"{name} (whole)"
        if key not in self._modules:
            self._modules[key] = self._load(name, candidates, whole)
        found, blob, own = self._modules[key]
        if blob:
            path = found.path if isinstance(found, Module) else candidates[0][0]
            (self.touched if own else self.touched_packages)[path] = blob
        if isinstance(found, CannotRead):
            raise found
        return found

    def _load(self, name: str, candidates: list[tuple[str, bool]], whole: bool) -> _Loaded:
        trees = [(self.tree, True)] if self.packages is None else [(self.tree, True), (self.packages, False)]
        for tree, own in trees:
            for path, is_package in candidates:
                try:
                    content = tree.read_bytes(path)
                except CannotRead as error:
                    return error, "", own
                if content is None:
                    continue
                try:
                    return parse(decode(content, path), name, path, is_package, whole), blob_id(content), own
                except CannotRead as error:
                    return error, blob_id(content), own
        return None, "", True

    def resolve(self, node: ast.expr, scope: Scope) -> Target:
        """What a (dotted) name stands for; raises CannotRead where it can't be told."""
        if isinstance(node, ast.Name):
            return self.lookup(node.id, scope, scope.where(node))
        if isinstance(node, ast.Attribute):
            return self.member(self.resolve(node.value, scope), node.attr, scope.where(node))
        raise CannotRead(f"'{ast.unparse(node)[:80]}' isn't a plain name", scope.where(node))

    def lookup(self, name: str, scope: Scope, where: str) -> Target:
        for index, frame in enumerate(scope.frames):
            if name in frame:
                return self._bound(name, frame[name], Scope(scope.module, scope.frames[index:]), where)
        if name in scope.module.bindings:
            return self._bound(name, scope.module.bindings[name], Scope(scope.module), where)
        for star in scope.module.star_imports:
            module = self.module(star)
            if module is not None and not name.startswith("_"):
                try:
                    target = self.lookup(name, Scope(module), where)
                except CannotRead:
                    continue
                if not (isinstance(target, External) and target.dotted.startswith("builtins.")):
                    return target
        return External(f"builtins.{name}")

    def member(self, target: Target, name: str, where: str) -> Target:
        """The attribute `name` of a module, class or external name."""
        if isinstance(target, External):
            return External(f"{target.dotted}.{name}")
        if isinstance(target, ModuleRef):
            return self._exported(target.module, name, where)
        if isinstance(target, ClassRef):
            scope = self.inside(target)
            if name in scope.frames[0]:
                return self._bound(name, scope.frames[0][name], scope, where)
            raise CannotRead(f"class {target.name} has no '{name}' of its own", where)
        if isinstance(target, ValueRef) and isinstance(target.value, ast.Name | ast.Attribute):
            return self.member(self.resolve(target.value, target.scope), name, where)
        raise CannotRead(f"the attribute '{name}' can't be followed", where)

    def _bound(self, name: str, bounds: list[Bound], scope: Scope, where: str) -> Target:
        certain = _candidates(bounds)
        if len(certain) > 1:
            raise CannotRead(f"'{name}' is bound differently in several branches", where)
        problem: CannotRead | None = None
        for bound in [
            *certain,
            *(b for b in bounds if b.when == "fallback"),
            *(b for b in bounds if b.when == "typing"),
        ]:
            try:
                target = self._follow(name, bound.binding, scope, where)
            except CannotRead as error:
                problem = problem or error
                continue
            return target
        raise problem or CannotRead(f"'{name}' can't be followed", where)

    def _follow(self, name: str, binding: Binding, scope: Scope, where: str) -> Target:
        if isinstance(binding, Section):
            binding = binding.node
        if isinstance(binding, ast.ClassDef):
            return ClassRef(scope, binding, scope.module.name, binding.name)
        if isinstance(binding, ast.FunctionDef | ast.AsyncFunctionDef):
            return FunctionRef(scope, binding)
        if isinstance(binding, Assigned):
            if binding.value is None:
                raise CannotRead(f"'{name}' is changed in place", f"{scope.module.path}:{binding.line}")
            if isinstance(binding.value, ast.Name | ast.Attribute) and not _refers_to(binding.value, name):
                return self._alias(binding.value, scope)
            return ValueRef(scope, binding.value)
        if binding.name is None:
            return self._module_or_external(binding.module)
        module = self.module(binding.module)
        if module is None:
            return External(f"{binding.module}.{binding.name}")
        return self._exported(module, binding.name, where)

    def _alias(self, value: ast.expr, scope: Scope) -> Target:
        try:
            return self.resolve(value, scope)
        except CannotRead:
            return ValueRef(scope, value)

    def _module_or_external(self, name: str) -> Target:
        module = self.module(name)
        return External(name) if module is None else ModuleRef(module)

    def _exported(self, module: Module, name: str, where: str) -> Target:
        if name in module.bindings:
            return self._bound(name, module.bindings[name], Scope(module), where)
        if module.is_package:
            submodule = self.module(f"{module.name}.{name}")
            if submodule is not None:
                return ModuleRef(submodule)
            lazy = _lazy_exports(module).get(name)
            if lazy is not None:
                home = self.module(f"{module.name}.{lazy}")
                if home is not None:
                    return self._exported(home, name, where)
        if module.star_imports:
            target = self.lookup(name, Scope(module), where)
            if not (isinstance(target, External) and target.dotted.startswith("builtins.")):
                return target
        raise CannotRead(f"module {module.name} has no '{name}'", where)


def parse(text: str, name: str, path: str, is_package: bool, whole: bool) -> Module:
    """Parses one file; raises CannotRead with the line where it isn't Python (of this interpreter's version).

    `whole`: every statement now. Otherwise top-level functions and classes are parsed when they are asked for.
    """
    if not whole:
        lazy = _parse_lazily(text, name, path, is_package)
        if lazy is not None:
            return lazy
    body = parse_text(text, path).body
    module = Module(name, path, is_package, body, {}, [], text.splitlines())
    _collect(body, "always", module.bindings, module.star_imports, module)
    return module


def _parse_lazily(text: str, name: str, path: str, is_package: bool) -> Module | None:
    parts = split(text, path)
    if parts is None:
        return None
    sections, rest = parts
    try:
        body = parse_text(rest, path).body
    except CannotRead:
        return None
    module = Module(name, path, is_package, body, {}, [])
    _collect(body, "always", module.bindings, module.star_imports, module)
    if any(section.name in module.bindings for section in sections):
        return None  # which binding is the later one matters
    for section in sections:
        module.bindings.setdefault(section.name, []).append(Bound(section))
    return module


def _candidates(bounds: list[Bound]) -> list[Bound]:
    """The bindings that may hold in the end: the last unconditional one and the conditional ones after it."""
    result: list[Bound] = []
    for bound in bounds:
        if bound.when == "always":
            result = [bound]
        elif bound.when == "branch":
            result.append(bound)
    return result


def _collect(body: list[ast.stmt], when: str, bindings: Bindings, stars: list[str], module: Module) -> None:
    for statement in body:
        for name, binding in _bindings_of(statement, module, stars):
            bindings.setdefault(name, []).append(Bound(binding, when))
        for block, condition in _blocks(statement, when):
            _collect(block, condition, bindings, stars, module)


def _bindings_of(statement: ast.stmt, module: Module, stars: list[str]) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name, statement
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            # `import a.b` binds `a`; attribute access then walks down to `a.b`.
            target = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or target, Imported(target, None)
    elif isinstance(statement, ast.ImportFrom):
        source = _absolute(statement, module)
        for alias in statement.names:
            if alias.name == "*":
                stars.append(source)
            else:
                yield alias.asname or alias.name, Imported(source, alias.name)
    elif isinstance(statement, ast.Assign):
        for target_node in statement.targets:
            plain = isinstance(target_node, ast.Name)
            for name in _names(target_node):
                yield name, Assigned(statement.value if plain else None, statement.lineno)
    elif isinstance(statement, ast.AnnAssign):
        if isinstance(statement.target, ast.Name) and statement.value is not None:
            yield statement.target.id, Assigned(statement.value, statement.lineno)
    elif isinstance(statement, ast.AugAssign | ast.For | ast.AsyncFor):
        for name in _names(statement.target):
            yield name, Assigned(None, statement.lineno)


def _blocks(statement: ast.stmt, when: str) -> Iterator[tuple[list[ast.stmt], str]]:
    if isinstance(statement, ast.If):
        if _is_type_checking(statement.test):
            yield statement.body, "typing"
            yield statement.orelse, when
        else:
            yield statement.body, "branch" if when == "always" else when
            yield statement.orelse, "branch" if when == "always" else when
    elif isinstance(statement, ast.Try):
        yield statement.body, when
        for handler in statement.handlers:
            yield handler.body, "fallback"
        yield statement.orelse, when
        yield statement.finalbody, when
    elif isinstance(statement, ast.With | ast.AsyncWith):
        yield statement.body, when
    elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
        yield statement.body, "branch" if when == "always" else when
        yield statement.orelse, "branch" if when == "always" else when


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _names(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _absolute(statement: ast.ImportFrom, module: Module) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    if not module.is_package:
        parts = parts[:-1]
    parts = parts[: len(parts) - (statement.level - 1)]
    return ".".join([*parts, statement.module] if statement.module else parts)


def _refers_to(value: ast.expr, name: str) -> bool:
    root = value
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id == name


def _lazy_exports(module: Module) -> Mapping[str, str]:
    """{exported name: submodule} of a package that loads lazily through an `_import_structure` dict."""
    exports: dict[str, str] = {}
    for bound in module.bindings.get("_import_structure", []):
        if not (isinstance(bound.binding, Assigned) and isinstance(bound.binding.value, ast.Dict)):
            continue
        for key, names in zip(bound.binding.value.keys, bound.binding.value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(names, ast.List | ast.Tuple):
                exports.update({n.value: str(key.value) for n in names.elts if isinstance(n, ast.Constant)})
    return exports
