"""Writes the configuration keys that accelerate or DeepSpeed reads.

It runs in an interpreter that has the library.

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
# old keys, which accelerate still converts (commands/config/config_args.py:104-108)
_OLD_KEYS = ("dynamo_backend", "fp16")
_JSON_TYPES: dict[Any, str] = {pathlib.Path: "str", tuple: "list", dict: "map"}
_JSON_TYPES |= {cls: cls.__name__ for cls in (bool, int, float, str, list)}
_ADDRESS = re.compile(r"https://[\w./-]*\w")
# a key that a sentence names, in quotes or with underscores
_KEY_IN_TEXT = re.compile(r"(?<=')[\w.]+(?=')|\b[a-z]+(?:_[a-z]+)+\b")
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


def _read_accelerate_options() -> dict[str, bool]:
    """Return each option of `accelerate launch`, and whether it takes a value."""
    parser = _load("accelerate.commands.launch.launch_command_parser")()
    return {
        text: action.nargs != 0
        for action in parser._actions
        for text in action.option_strings
        if text.startswith("--")
    }


def _renew(spec: _Spec, around: str = ":0", path: str = "") -> _Spec:
    """Return the spec of a map with the keys of its model, and the lines of its other keys, as they
    are in the installed version.

    around: `file:line` of the map that contains this one. path: the keys of the maps around it.
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
    if not keys:
        return spec
    return {**spec, "keys": dict(sorted(keys.items()))}


def _read_removed_keys(table: str, path: str) -> _Spec:
    """Return the keys of the library's table of removed keys.

    Each has its line in the table, and the issue and the other keys that its text names. The text
    itself is not copied.
    """
    module, _, name = table.rpartition(".")
    lines = _lines_of_keys(module, name)
    keys: _Spec = {}
    for key, text in _load(table).items():
        line = f"{module.replace('.', '/')}.py:{lines[key]}"
        issues = _ADDRESS.findall(text)
        keys[key] = {"removed": ", ".join([line, *issues])}
        named_keys = dict.fromkeys(_KEY_IN_TEXT.findall(_ADDRESS.sub("", text)))
        instead = [name for name in named_keys if name not in (key, path + key)]
        if instead:
            keys[key]["instead"] = instead
    return keys


def _lines_of_keys(module: str, name: str) -> dict[Any, int]:
    """Return the line of each key of a dictionary that a module defines under this name."""
    file = pathlib.Path(importlib.import_module(module).__file__ or "")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if ast.unparse(node.targets[0]) == name:
            keys = [key for key in node.value.keys if isinstance(key, ast.Constant)]
            return {key.value: key.lineno for key in keys}
    raise ValueError(f"{module} does not define {name}")


def _locate(name: str, source: str, around: str) -> str:
    """Return the `file:line` where the key is an operand or argument.

    It is the first line after `around`, the place of the map around it, if both are in one file.
    """
    path, _, _ = source.rpartition(":")
    outer_path, _, outer_line = around.rpartition(":")
    operand = re.compile(rf"^[^#]*[=(\[,]\s*(['\"]){re.escape(name)}\1")
    package = importlib.import_module(path.partition("/")[0]).__path__[0]
    lines = (pathlib.Path(package).parent / path).read_text(encoding="utf-8").splitlines()
    matches = [number for number, line in enumerate(lines, 1) if operand.search(line)]
    if not matches:
        raise ValueError(
            f"'{name}' is no longer in {path}: remove it from the list, or correct its source"
        )
    if path == outer_path:
        later_matches = [number for number in matches if number >= int(outer_line)]
        matches = later_matches or matches
    return f"{path}:{matches[0]}"


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
    """Return what a field of that type accepts; anything if JSON does not have the type."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else [annotation]
    parts = [member for member in members if member is not type(None)]
    part = parts[0] if len(parts) == 1 else None
    if hasattr(part, "model_fields"):
        return {"keys": _read_model_keys(part), "types": ["map"]}
    if typing.get_origin(part) is typing.Literal:
        return {"choices": list(typing.get_args(part))}
    if isinstance(part, type) and issubclass(part, enum.Enum):
        return {"choices": [member.value for member in part]}
    json_types = [_JSON_TYPES.get(typing.get_origin(part) or part) for part in parts]
    return {"types": json_types} if all(json_types) else {}


def _load(dotted: str) -> Any:
    """Return the object of that dotted name."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def main(result: str, library: str) -> None:
    sys.path.pop(0)  # this program's own folder
    spec = json.load(sys.stdin)
    spec = {"keys": _read_accelerate_keys()} if library == "accelerate" else _renew(spec)
    version = importlib.metadata.version(library)
    content = {"schema_version": 2, "library": library, "version": version, "spec": spec}
    if library == "accelerate":
        content["options"] = _read_accelerate_options()
    pathlib.Path(result).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
