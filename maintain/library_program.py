"""Runs in an interpreter with accelerate or DeepSpeed and writes the configuration keys that the
library reads.

    python program.py RESULT LIBRARY < SPEC    # SPEC: the locked keys as JSON, of which DeepSpeed's are renewed

The keys of accelerate are the fields of its dataclass and the options of its parser. Those of
DeepSpeed are partly pydantic models, which `"model"` names, and partly kept by hand: each with the
line of DeepSpeed's source that defines or reads it (`"source"`).
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import importlib.metadata
import json
import pathlib
import re
import sys
import types
import typing
from typing import Any

# accelerate adds these prefixes to the map's keys that lack them (commands/launch.py:1238-1243).
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
# which accelerate converts (commands/config/config_args.py:104-108)
_OLD_KEYS = ("dynamo_backend", "fp16")
_JSON_TYPES: dict[Any, str] = {pathlib.Path: "str", tuple: "list", dict: "map"}
_JSON_TYPES |= {cls: cls.__name__ for cls in (bool, int, float, str, list)}
_Spec = dict[str, Any]


def _read_accelerate_keys() -> _Spec:
    """Return the keys of an accelerate YAML.

    The maps are copied to the parser's namespace key by key, unchecked
    (commands/launch.py:1233-1244 in 1.15.0): a key that is not an option of the parser is set there
    and never read.
    """
    config = _load("accelerate.commands.config.config_args.ClusterConfig")
    parser = _load("accelerate.commands.launch.launch_command_parser")()
    options = {action.dest for action in parser._actions}
    hints = typing.get_type_hints(config)
    keys: _Spec = {name: {} for name in _OLD_KEYS}
    for field in dataclasses.fields(config):
        spec = _spec_of_type(hints[field.name])
        if spec.get("types") == ["map"]:
            prefix = _PREFIXES.get(field.name, "")
            short = {option.removeprefix(prefix) for option in options if option.startswith(prefix)}
            spec["keys"] = {option: {} for option in sorted(options | short)}
        elif spec.get("types") == ["bool"]:
            spec["lenient"] = True  # accelerate's questionnaire writes it as a string ('no')
        keys[field.name] = spec
    kinds = [kind.value for kind in _load("accelerate.utils.dataclasses.DistributedType")]
    keys["distributed_type"] = {"types": ["str"], "choices": kinds}
    return dict(sorted(keys.items()))


def _renew(spec: _Spec, around: str = ":0", path: str = "") -> _Spec:
    """Return the spec of a map with the keys of its model as they are now, and the lines of those
    kept by hand.
    """
    keys: _Spec = {}
    if "model" in spec:
        keys = _read_model_keys(_load(spec["model"]))
    for name, key in spec.get("keys", {}).items():
        if "model" in key:
            keys[name] = _renew(key, path=f"{path}{name}.")
        elif "source" in key:
            source = _locate(name, key["source"], around)
            keys[name] = {**_renew(key, source, f"{path}{name}."), "source": source}
    if "removed_keys" in spec:
        keys |= _read_removed_keys(spec["removed_keys"], path)
    return {**spec, "keys": dict(sorted(keys.items()))} if keys else spec


def _read_removed_keys(table: str, path: str) -> _Spec:
    """Return where the library's table of removed keys has each one, with the issue and the keys
    that its text names.

    The text itself stays in the library.
    """
    module, _, name = table.rpartition(".")
    source = pathlib.Path(importlib.import_module(module).__file__ or "").read_text(
        encoding="utf-8"
    )
    (mapping,) = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Dict)
        and ast.unparse(node.targets[0]) == name
    ]
    lines = {key.value: key.lineno for key in mapping.keys if isinstance(key, ast.Constant)}
    keys: _Spec = {}
    for key, text in _load(table).items():
        place = [
            f"{module.replace('.', '/')}.py:{lines[key]}",
            *re.findall(r"https://[\w./-]*\w", text),
        ]
        named = dict.fromkeys(
            re.findall(r"(?<=')[\w.]+(?=')|\b[a-z]+(?:_[a-z]+)+\b", re.sub(r"https:\S+", "", text))
        )
        keys[key] = {"removed": ", ".join(place)}
        if instead := [word for word in named if word not in (key, path + key)]:
            keys[key]["instead"] = instead
    return keys


def _locate(name: str, source: str, around: str) -> str:
    """Return the `file:line` where the key is an operand or argument: the first after that of the
    map around it.
    """
    path, _, _ = source.rpartition(":")
    outer_path, _, outer_line = around.rpartition(":")
    operand = re.compile(rf"^[^#]*[=(\[,]\s*(['\"]){re.escape(name)}\1")
    package = importlib.import_module(path.partition("/")[0]).__path__[0]
    lines = (pathlib.Path(package).parent / path).read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if operand.search(line)]
    if not found:
        raise ValueError(
            f"'{name}' is no longer in {path}: remove it from the list, or correct its source"
        )
    after = [number for number in found if path == outer_path and number >= int(outer_line)]
    return f"{path}:{(after or found)[0]}"


def _read_model_keys(model: Any) -> _Spec:
    """Return {field name or alias: spec} of a pydantic model, including inherited fields."""
    keys: _Spec = {}
    for name, field in model.model_fields.items():
        spec = _spec_of_type(field.annotation)
        keys[name] = {**spec, "lenient": True} if "types" in spec else spec
        if field.alias:
            keys[field.alias] = keys[name]
    return dict(sorted(keys.items()))


def _spec_of_type(annotation: Any) -> _Spec:
    """Return what a field of that type accepts; anything if the type is none that JSON has."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = [
        part
        for part in (typing.get_args(annotation) if is_union else [annotation])
        if part is not type(None)
    ]
    part = parts[0] if len(parts) == 1 else None
    if hasattr(part, "model_fields"):
        return {"keys": _read_model_keys(part), "types": ["map"]}
    if typing.get_origin(part) is typing.Literal:
        return {"choices": list(typing.get_args(part))}
    if isinstance(part, type) and issubclass(part, enum.Enum):
        return {"choices": [member.value for member in part]}
    found = [_JSON_TYPES.get(typing.get_origin(part) or part) for part in parts]
    return {"types": found} if all(found) else {}


def _load(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def main(result: str, library: str) -> None:
    sys.path.pop(0)  # this program's own folder
    spec = json.load(sys.stdin)
    spec = {"keys": _read_accelerate_keys()} if library == "accelerate" else _renew(spec)
    version = importlib.metadata.version(library)
    content = {"schema_version": 2, "library": library, "version": version, "spec": spec}
    pathlib.Path(result).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
