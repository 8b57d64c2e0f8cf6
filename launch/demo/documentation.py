"""Read the standard library's signatures and docstrings from its source, without importing it."""

from __future__ import annotations

import ast
import contextlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launch.upstream.reader.tree import UnreadableSourceError, parse_source

EntryKind = Literal["module", "class", "function", "method", "property"]

# Test suites, demos, third-party packages, and code that only builds or boots Python itself.
SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
    | {"ensurepip", "encodings", "pydoc_data", "distutils", "msilib", "__phello__"}
)
SKIPPED_FILES = frozenset({"this.py", "antigravity.py", "__main__.py", "ntpath.py", "pydoc.py"})

# The pure-Python twins of C modules carry the documentation of the public name; posixpath is what os.path is.
PUBLIC_NAMES = {"posixpath": "os.path", "_pydecimal": "decimal", "_pyio": "io", "_pydatetime": "datetime"}

MIN_DOCSTRING_LENGTH = 20  # characters; shorter ones teach nothing ("See above.")


@dataclass(frozen=True)
class DocEntry:
    """One documented public name."""

    name: str  # dotted
    kind: EntryKind
    signature: str | None  # None for a module
    text: str  # the cleaned docstring


def stdlib_folder() -> Path:
    """Return the folder of this interpreter's standard library (the base's, in a virtual environment)."""
    return Path(sysconfig.get_path("stdlib"))


def read_entries(folder: Path) -> list[DocEntry]:
    """Return every documented public module, class, function and method under `folder`, sorted by unique name.

    Files that do not parse are skipped: some distributions ship sources for another Python.
    """
    modules = dict(_parse_modules(folder))
    exported_as = _find_reexports(modules)
    entries: dict[str, DocEntry] = {}
    for module in sorted(modules):
        for entry in _module_entries(module, modules[module], exported_as):
            entries.setdefault(entry.name, entry)
    return [entries[name] for name in sorted(entries)]


def _parse_modules(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if path.name in SKIPPED_FILES or SKIPPED_FOLDERS.intersection(parts[:-1]):
            continue
        module = ".".join([*parts[:-1], path.stem]).removesuffix(".__init__")
        public = PUBLIC_NAMES.get(module, module)
        if any(part.startswith("_") or not part.isidentifier() for part in public.split(".")):
            continue
        with contextlib.suppress(UnreadableSourceError):
            yield module, parse_source(path.read_bytes(), path.name)


def _find_reexports(modules: dict[str, ast.Module]) -> dict[tuple[str, str], str]:
    """Map (module, name) to the shorter public name in its package: asyncio.tasks.gather -> asyncio.gather."""
    public_names: dict[tuple[str, str], str] = {}
    for package, tree in modules.items():
        for node in tree.body:
            if not isinstance(node, ast.ImportFrom) or node.level != 1 or node.module is None:
                continue
            source = f"{package}.{node.module}"
            if source not in modules:
                continue
            for alias in node.names:
                names = _exported_names(modules[source]) or set() if alias.name == "*" else {alias.name}
                for name in names:
                    public_names[source, name] = f"{package}.{alias.asname or name if alias.name != '*' else name}"
    return public_names


def _exported_names(tree: ast.Module) -> set[str] | None:
    """Return the names in a literal `__all__`, also if joined with `+`; None if there is none."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[*_, ast.Name(id="__all__")], value=value)
                | ast.AugAssign(target=ast.Name(id="__all__"), value=value)
            ):
                parts = (part.value for part in ast.walk(value) if isinstance(part, ast.Constant))
                names.update(part for part in parts if isinstance(part, str))
    return names or None


def _module_entries(module: str, tree: ast.Module, exported_as: dict[tuple[str, str], str]) -> Iterator[DocEntry]:
    public = PUBLIC_NAMES.get(module, module)
    yield from _documented(public, "module", None, tree)
    exported = _exported_names(tree)
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.name.startswith("_") or (exported is not None and node.name not in exported):
            continue
        name = exported_as.get((module, node.name), f"{public}.{node.name}")
        if isinstance(node, ast.ClassDef):
            yield from _class_entries(name, node)
        else:
            yield from _documented(name, "function", _call_signature(name, node), node)


def _class_entries(name: str, node: ast.ClassDef) -> Iterator[DocEntry]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield from _documented(name, "class", f"class {name}({bases})" if bases else f"class {name}", node)
    for member in node.body:
        if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and not member.name.startswith("_"):
            dotted = f"{name}.{member.name}"
            if any(
                isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in member.decorator_list
            ):
                yield from _documented(dotted, "property", dotted, member)
            else:
                yield from _documented(dotted, "method", _call_signature(dotted, member, drop_self=True), member)


def _call_signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef, drop_self: bool = False) -> str:
    arguments = ast.unparse(node.args)
    if drop_self:
        first, _, rest = arguments.partition(", ")
        arguments = rest if first in ("self", "cls") else arguments
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{prefix}{name}({arguments})"


def _documented(
    name: str,
    kind: EntryKind,
    signature: str | None,
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[DocEntry]:
    text = (ast.get_docstring(node) or "").strip()
    if len(text) >= MIN_DOCSTRING_LENGTH:
        yield DocEntry(name, kind, signature, text)
