"""Finds Python modules by name in source trees, and resolves names across them."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from launch.upstream.reader.bindings import (
    AssignmentBinding,
    Binding,
    Bindings,
    LazyDefinition,
    NamedBinding,
    SourceModule,
    collect_bindings,
    parse_module,
    read_lazy_exports,
)
from launch.upstream.reader.tree import Tree, UnreadableSourceError, blob_id, decode


@dataclass(frozen=True)
class Scope:
    """Where a name is looked up: the innermost frame first (function or class body), then the module."""

    module: SourceModule
    frames: tuple[Bindings, ...] = ()  # innermost first

    def inner(self, body: list[ast.stmt]) -> Scope:
        bindings: Bindings = {}
        collect_bindings(body, "always", bindings, [], self.module)
        return Scope(self.module, (bindings, *self.frames))

    def where(self, node: ast.AST) -> str:
        return self.module.where(node)


@dataclass(frozen=True)
class ClassRef:
    """A class statement and the scope around it."""

    scope: Scope = field(compare=False)
    node: ast.ClassDef = field(compare=False)
    module_name: str
    name: str

    @property
    def where(self) -> str:
        return self.scope.where(self.node)


@dataclass(frozen=True)
class FunctionRef:
    """A function statement and the scope around it."""

    scope: Scope
    node: ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ModuleRef:
    """An imported module."""

    module: SourceModule


@dataclass(frozen=True)
class ValueRef:
    """A name bound to an expression that is not evaluated yet."""

    scope: Scope
    value: ast.expr


@dataclass(frozen=True)
class External:
    """A name of a module that no tree has (the standard library, or a package outside the search path)."""

    dotted: str


Target = ClassRef | FunctionRef | ModuleRef | ValueRef | External


# The module or why it can't be read, the file's blob id, and whether it is from the tree (not from the packages).
_LoadedModule = tuple[SourceModule | UnreadableSourceError | None, str, bool]


@dataclass
class NameResolver:
    """Resolves names in `tree`, then in `packages`; reads and parses each file at most once."""

    tree: Tree
    packages: Tree | None = None
    # {path: git blob id} of every file that a result has depended on since `reset`
    files_read: dict[str, str] = field(default_factory=dict)
    package_files_read: dict[str, str] = field(default_factory=dict)
    memo: dict[tuple[str, ClassRef], Any] = field(default_factory=dict)  # results about classes since `reset`
    _modules: dict[str, _LoadedModule] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget which files were read, so that the next result lists its own; parsed modules are kept."""
        self.files_read.clear()
        self.package_files_read.clear()
        self.memo.clear()

    def class_scope(self, ref: ClassRef) -> Scope:
        """Return the scope of the class's own body."""
        key = ("scope", ref)
        if key not in self.memo:
            self.memo[key] = ref.scope.inner(ref.node.body)
        scope: Scope = self.memo[key]
        return scope

    def module(self, name: str, whole: bool = False) -> SourceModule | None:
        """Return the module, None if no tree has it. Raises UnreadableSourceError if it exists and can't be parsed."""
        path = name.replace(".", "/")
        return self._find_module(name, [(f"{path}.py", False), (f"{path}/__init__.py", True)], whole)

    def explain_external(self, dotted: str) -> str:
        """Explain why a name is External: undefined, in a missing module, or in a package outside the search path."""
        package, _, rest = dotted.partition(".")
        if package == "builtins":
            return f"'{rest}' isn't defined"
        if package in sys.stdlib_module_names:
            return f"{dotted} belongs to the standard library and isn't followed"
        if self._has_package(package):
            return f"{dotted} can't be read: there is no such module in '{package}'"
        return f"{dotted} can't be read: '{package}' isn't on the package search path"

    def _has_package(self, package: str) -> bool:
        try:
            return self.module(package) is not None
        except UnreadableSourceError:
            return True

    def load_script(self, path: str) -> SourceModule | None:
        """Return the module of a file by its path, as `python PATH` would run it."""
        pure = PurePosixPath(path)
        name = ".".join(pure.with_suffix("").parts)
        return self._find_module(name, [(str(pure), pure.name == "__init__.py")], whole=True)

    def _find_module(self, name: str, candidates: list[tuple[str, bool]], whole: bool) -> SourceModule | None:
        key = name if not whole else f"{name} (whole)"
        if key not in self._modules:
            self._modules[key] = self._load(name, candidates, whole)
        module, blob, from_tree = self._modules[key]
        if blob:
            path = module.path if isinstance(module, SourceModule) else candidates[0][0]
            (self.files_read if from_tree else self.package_files_read)[path] = blob
        if isinstance(module, UnreadableSourceError):
            raise module
        return module

    def _load(self, name: str, candidates: list[tuple[str, bool]], whole: bool) -> _LoadedModule:
        trees = [(self.tree, True)] if self.packages is None else [(self.tree, True), (self.packages, False)]
        for tree, from_tree in trees:
            for path, is_package in candidates:
                try:
                    content = tree.read_bytes(path)
                except UnreadableSourceError as error:
                    return error, "", from_tree
                if content is None:
                    continue
                try:
                    module = parse_module(decode(content, path), name, path, is_package, whole)
                except UnreadableSourceError as error:
                    return error, blob_id(content), from_tree
                return module, blob_id(content), from_tree
        return None, "", True

    def resolve(self, node: ast.expr, scope: Scope) -> Target:
        """Resolve a (dotted) name. Raises UnreadableSourceError where it is undecidable."""
        if isinstance(node, ast.Name):
            return self.lookup(node.id, scope, scope.where(node))
        if isinstance(node, ast.Attribute):
            return self.member(self.resolve(node.value, scope), node.attr, scope.where(node))
        raise UnreadableSourceError(f"'{ast.unparse(node)[:80]}' isn't a plain name", scope.where(node))

    def try_resolve(self, node: ast.expr, scope: Scope) -> Target | None:
        """Resolve a (dotted) name; None for any other expression, and where it is undecidable."""
        try:
            return self.resolve(node, scope)
        except UnreadableSourceError:
            return None

    def lookup(self, name: str, scope: Scope, where: str) -> Target:
        """Resolve a plain name: the scope's frames, its module, the module's star imports, then the builtins."""
        for index, frame in enumerate(scope.frames):
            if name in frame:
                return self._resolve_bindings(name, frame[name], Scope(scope.module, scope.frames[index:]), where)
        if name in scope.module.bindings:
            return self._resolve_bindings(name, scope.module.bindings[name], Scope(scope.module), where)
        for star in scope.module.star_imports:
            module = self.module(star)
            if module is not None and not name.startswith("_"):
                try:
                    target = self.lookup(name, Scope(module), where)
                except UnreadableSourceError:
                    continue
                if not (isinstance(target, External) and target.dotted.startswith("builtins.")):
                    return target
        return External(f"builtins.{name}")

    def member(self, target: Target, name: str, where: str) -> Target:
        """Resolve the attribute `name` of a module, class or external name."""
        if isinstance(target, External):
            return External(f"{target.dotted}.{name}")
        if isinstance(target, ModuleRef):
            return self._resolve_export(target.module, name, where)
        if isinstance(target, ClassRef):
            scope = self.class_scope(target)
            if name in scope.frames[0]:
                return self._resolve_bindings(name, scope.frames[0][name], scope, where)
            raise UnreadableSourceError(f"class {target.name} has no '{name}' of its own", where)
        if isinstance(target, ValueRef) and isinstance(target.value, ast.Name | ast.Attribute):
            return self.member(self.resolve(target.value, target.scope), name, where)
        raise UnreadableSourceError(f"the attribute '{name}' can't be followed", where)

    def _resolve_bindings(self, name: str, bindings: list[NamedBinding], scope: Scope, where: str) -> Target:
        effective = _effective_bindings(bindings)
        if len(effective) > 1:
            raise UnreadableSourceError(f"'{name}' is bound differently in several branches", where)
        problem: UnreadableSourceError | None = None
        for candidate in [
            *effective,
            *(binding for binding in bindings if binding.when == "fallback"),
            *(binding for binding in bindings if binding.when == "typing"),
        ]:
            try:
                target = self._resolve_binding(name, candidate.binding, scope, where)
            except UnreadableSourceError as error:
                problem = problem or error
                continue
            return target
        raise problem or UnreadableSourceError(f"'{name}' can't be followed", where)

    def _resolve_binding(  # noqa: PLR0911 - one return per kind of binding
        self, name: str, binding: Binding, scope: Scope, where: str
    ) -> Target:
        if isinstance(binding, LazyDefinition):
            binding = binding.node
        if isinstance(binding, ast.ClassDef):
            return ClassRef(scope, binding, scope.module.name, binding.name)
        if isinstance(binding, ast.FunctionDef | ast.AsyncFunctionDef):
            return FunctionRef(scope, binding)
        if isinstance(binding, AssignmentBinding):
            if binding.value is None:
                raise UnreadableSourceError(f"'{name}' is changed in place", f"{scope.module.path}:{binding.line}")
            if isinstance(binding.value, ast.Name | ast.Attribute) and not _refers_to(binding.value, name):
                return self.try_resolve(binding.value, scope) or ValueRef(scope, binding.value)
            return ValueRef(scope, binding.value)
        if binding.name is None:
            imported = self.module(binding.module)
            return External(binding.module) if imported is None else ModuleRef(imported)
        module = self.module(binding.module)
        if module is None:
            return External(f"{binding.module}.{binding.name}")
        return self._resolve_export(module, binding.name, where)

    def _resolve_export(self, module: SourceModule, name: str, where: str) -> Target:
        if name in module.bindings:
            return self._resolve_bindings(name, module.bindings[name], Scope(module), where)
        if module.is_package:
            submodule = self.module(f"{module.name}.{name}")
            if submodule is not None:
                return ModuleRef(submodule)
            lazy = read_lazy_exports(module).get(name)
            if lazy is not None:
                defining_module = self.module(f"{module.name}.{lazy}")
                if defining_module is not None:
                    return self._resolve_export(defining_module, name, where)
        if module.star_imports:
            target = self.lookup(name, Scope(module), where)
            if not (isinstance(target, External) and target.dotted.startswith("builtins.")):
                return target
        raise UnreadableSourceError(f"module {module.name} has no '{name}'", where)


def _effective_bindings(bindings: list[NamedBinding]) -> list[NamedBinding]:
    """Return the bindings that may hold in the end: the last unconditional one and the conditional ones after it."""
    result: list[NamedBinding] = []
    for binding in bindings:
        if binding.when == "always":
            result = [binding]
        elif binding.when == "branch":
            result.append(binding)
    return result


def _refers_to(value: ast.expr, name: str) -> bool:
    root = value
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id == name
