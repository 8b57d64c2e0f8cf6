"""Renews the locked lists of configuration keys from a library's source, which is not imported.

The keys of accelerate are the fields of its dataclass and the options of its parser. Those of DeepSpeed are partly
pydantic models, which `"model"` in `data/libraries/deepspeed.json` names, and partly kept by hand there: each with its
type, and the line of DeepSpeed's source that defines or reads it (`"source"`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launch.files import load_json
from launch.upstream.libraries.library_keys import installed_version, library_keys_file
from launch.upstream.reader.annotations import (
    NONE,
    EnumType,
    GenericType,
    LiteralType,
    NamedType,
    TypeNode,
    UnionType,
    read_type,
)
from launch.upstream.reader.classes import mro
from launch.upstream.reader.constants import evaluate
from launch.upstream.reader.dataclass_fields import dataclass_fields
from launch.upstream.reader.name_resolver import ClassRef, NameResolver, Scope, Target, ValueRef
from launch.upstream.reader.tree import PackageTree, UnreadableSourceError

# accelerate adds these prefixes to the map's keys that lack them (commands/launch.py:1238-1243).
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
_OLD_KEYS = ("dynamo_backend", "fp16")  # which accelerate converts (commands/config/config_args.py:104-108)
_MODEL = "BaseModel"
_JSON_TYPES = {"Path": "str", "tuple": "list", "dict": "map"}
_JSON_TYPES |= {name: name for name in ("bool", "int", "float", "str", "list")}


def renew_library_keys(library: str, site_packages: Sequence[Path]) -> dict[str, Any]:
    """Read the installed library's keys as the lock's JSON.

    Raises ValueError if it is not installed or a key that is kept by hand is gone; UnreadableSourceError.
    """
    version = installed_version(library, site_packages)
    if version is None:
        raise ValueError(f"{library} is not installed in {', '.join(map(str, site_packages))}")
    tree = PackageTree(site_packages)
    resolver = NameResolver(tree)
    if library == "accelerate":
        spec = {"keys": _read_accelerate_keys(resolver)}
    else:
        spec = _renew(load_json(library_keys_file(library))["spec"], resolver, tree)
    return {"schema_version": 2, "library": library, "version": version, "spec": spec}


def _renew(spec: dict[str, Any], resolver: NameResolver, tree: PackageTree, around: str = ":0") -> dict[str, Any]:
    """Return the spec of a map with the keys of its model as they are now, and the lines of those kept by hand."""
    keys: dict[str, Any] = {}
    if "model" in spec:
        keys = _read_model_keys(resolver, _find(resolver, spec["model"]))
    else:
        for name, key in spec.get("keys", {}).items():
            if "source" in key:
                source = _locate(name, key["source"], around, tree)
                keys[name] = {**_renew(key, resolver, tree, source), "source": source}
            elif "removed" not in key:
                keys[name] = _renew(key, resolver, tree, around)
    if "removed_keys" in spec:
        table = _find(resolver, spec["removed_keys"])
        assert isinstance(table, ValueRef)
        messages = evaluate(resolver, table.value, table.scope)
        keys |= {name: {"removed": message.strip()} for name, message in messages.items()}
    return {**spec, "keys": dict(sorted(keys.items()))} if keys else spec


def _locate(name: str, source: str, around: str, tree: PackageTree) -> str:
    """Return the `file:line` where the key is an operand or argument: the first after that of the map around it."""
    path, _, _ = source.rpartition(":")
    outer_path, _, outer_line = around.rpartition(":")
    operand = re.compile(rf"^[^#]*[=(\[,]\s*(['\"]){re.escape(name)}\1")
    lines = enumerate((tree.read(path) or "").splitlines(), 1)
    found = [number for number, line in lines if operand.search(line)]
    if not found:
        raise ValueError(f"'{name}' is no longer in {path}: remove it from the list, or correct its source")
    after = [number for number in found if path == outer_path and number >= int(outer_line)]
    return f"{path}:{(after or found)[0]}"


def _find(resolver: NameResolver, dotted: str) -> Target:
    module_name, _, name = dotted.rpartition(".")
    module = resolver.module(module_name)
    if module is None:
        raise ValueError(f"there is no module {module_name}")
    return resolver.lookup(name, Scope(module), dotted)


def _read_model_keys(resolver: NameResolver, ref: Target) -> dict[str, Any]:
    """Return {field name or alias: spec} of a pydantic model, including inherited fields."""
    assert isinstance(ref, ClassRef)
    keys: dict[str, Any] = {}
    for cls in reversed(mro(resolver, ref)[0]):
        if cls.name == _MODEL:
            continue
        scope = resolver.class_scope(cls)
        for statement in cls.node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            keys[statement.target.id] = _model_field_spec(resolver, statement.annotation, scope)
            if isinstance(statement.value, ast.Call):
                for keyword in statement.value.keywords:
                    if keyword.arg == "alias":
                        keys[evaluate(resolver, keyword.value, scope)] = keys[statement.target.id]
    return dict(sorted(keys.items()))


def _model_field_spec(resolver: NameResolver, annotation: ast.expr, scope: Scope) -> dict[str, Any]:
    is_optional = isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Optional"
    inner = annotation.slice if is_optional and isinstance(annotation, ast.Subscript) else annotation
    if isinstance(inner, ast.Name):
        target = resolver.resolve(inner, scope)
        if isinstance(target, ClassRef) and _is_model(resolver, target):
            return {"keys": _read_model_keys(resolver, target), "types": ["map"], "lenient": True}
    spec = _spec_of_type(read_type(resolver, annotation, scope))
    return {**spec, "lenient": True} if "types" in spec else spec


def _is_model(resolver: NameResolver, ref: ClassRef) -> bool:
    classes, external, _ = mro(resolver, ref)  # pydantic may be among the packages, or not
    return any(name.rpartition(".")[2] == _MODEL for name in (*external, *(cls.name for cls in classes)))


def _spec_of_type(node: TypeNode) -> dict[str, Any]:
    """Return what a field of that type accepts; anything if the type is none that JSON has."""
    parts = [part for part in (node.args if isinstance(node, UnionType) else (node,)) if part != NONE]
    if len(parts) == 1 and isinstance(parts[0], LiteralType | EnumType):
        return {"choices": list(parts[0].values)}
    types = [_JSON_TYPES.get(_type_name(part)) for part in parts]
    return {"types": types} if all(types) else {}


def _type_name(node: TypeNode) -> str:
    return node.name if isinstance(node, NamedType) else node.origin if isinstance(node, GenericType) else ""


def _read_accelerate_keys(resolver: NameResolver) -> dict[str, Any]:
    """Return the keys of an accelerate YAML.

    The maps are copied to the parser's namespace key by key, unchecked (commands/launch.py:1233-1244 in 1.15.0): a key
    that is not an option of the parser is set there and never read.
    """
    config = _find(resolver, "accelerate.commands.config.config_args.ClusterConfig")
    kinds = _find(resolver, "accelerate.utils.dataclasses.DistributedType")
    assert isinstance(config, ClassRef)
    assert isinstance(kinds, ClassRef)
    options = set(_option_names(resolver))
    keys: dict[str, Any] = {name: {} for name in _OLD_KEYS}
    for name, field in dataclass_fields(resolver, config)[0].items():
        spec = _spec_of_type(read_type(resolver, field.node.annotation, field.scope))
        if spec.get("types") == ["map"]:
            prefix = _PREFIXES.get(name, "")
            short = {option.removeprefix(prefix) for option in options if option.startswith(prefix)}
            spec["keys"] = {option: {} for option in sorted(options | short)}
        elif spec.get("types") == ["bool"]:
            spec["lenient"] = True  # accelerate's questionnaire writes it as a string ('no')
        keys[name] = spec
    type_of_kinds = read_type(resolver, ast.Name("DistributedType"), kinds.scope)
    if not isinstance(type_of_kinds, EnumType):
        raise UnreadableSourceError("accelerate's DistributedType is not an enum", kinds.where)
    keys["distributed_type"] = {"types": ["str"], "choices": list(type_of_kinds.values)}
    return dict(sorted(keys.items()))


def _option_names(resolver: NameResolver) -> Iterator[str]:
    """Yield the attribute that each option of `accelerate launch` sets."""
    module = resolver.module("accelerate.commands.launch", whole=True)
    for node in ast.walk(ast.Module(module.body if module else [], [])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            dest = [keyword.value for keyword in node.keywords if keyword.arg == "dest"]
            names = [str(name.value) for name in (*dest, *node.args) if isinstance(name, ast.Constant)]
            long_names = [name for name in names if not name.startswith("-") or name.startswith("--")]
            if long_names:
                yield long_names[0].lstrip("-").replace("-", "_")
