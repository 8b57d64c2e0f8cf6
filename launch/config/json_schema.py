"""Makes the JSON Schema of a stage file from the configuration's types, for editors and programs.

Descriptions are the comments beside the keys in launch/config. Bounds are those of the ranges in
launch/config/ranges.py.
"""

from __future__ import annotations

import enum
import inspect
import io
import re
import tokenize
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from launch.config.nodes import hints
from launch.config.ranges import Range, range_of
from launch.config.recipe_key import row_of
from launch.config.schema import RootConfig

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NOT_OF_STAGES = ("tuned", "model.trained_by")  # written by `tune`, set for the jobs of a pipeline
# ${oc.env:HOME}: its type is known when it is resolved
_INTERPOLATION = {"type": "string", "pattern": r"\$\{"}
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}
_DEFAULTS = {
    "type": "array",
    "description": "what the stage starts from: another stage, `override /model: NAME`, and last "
    "`_self_`",
    "items": {"type": ["string", "object"]},
}


def stage_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a stage file's content."""
    schema = _describe_node(RootConfig, "")
    schema["properties"] = {"defaults": _DEFAULTS, **schema["properties"]}
    return {"$schema": DRAFT, "title": "A stage of launch", **schema}


def comments(cls: type) -> dict[str, str]:
    """Return the comment of each field: at the end of its line, else on the lines right above.

    A recipe key has its text in its row.
    """
    rows = {key.name: row_of(key.metadata) for key in fields(cls)}
    helps = {name: row.help for name, row in rows.items() if row is not None}
    if helps:
        return helps
    source = inspect.cleandoc(inspect.getsource(cls))
    comment_of_line: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment_of_line[token.start[0]] = token.string.removeprefix("#").strip()
    lines = source.splitlines()
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        key = re.match(r"\s+(\w+): ", line)
        if key is None:
            continue
        first = number  # the first of the comment lines right above
        while lines[first - 2].lstrip().startswith("#"):
            first -= 1
        above = " ".join(comment_of_line[above_number] for above_number in range(first, number))
        text = comment_of_line.get(number) or above
        if text:
            texts[key[1]] = text
    return texts


def _describe_node(cls: Any, above: str) -> dict[str, Any]:
    """Return the schema of a node. `above` is its own key with a dot, "" for the root."""
    types_of_keys = hints(cls)
    texts = comments(cls)
    properties: dict[str, Any] = {}
    for key in fields(cls):
        whole_key = f"{above}{key.name}"
        if whole_key in NOT_OF_STAGES:
            continue
        description: dict[str, Any] = {}
        if key.name in texts:
            description["description"] = texts[key.name]
        value = _describe_type(types_of_keys[key.name], f"{whole_key}.", range_of(key.metadata))
        properties[key.name] = {**description, **value, **_default(key)}
    schema: dict[str, Any] = {}
    docstring = " ".join((inspect.getdoc(cls) or "").split())
    is_generated = docstring.startswith(f"{cls.__name__}(")  # by @dataclass
    if docstring and not is_generated:
        schema["description"] = docstring
    return {**schema, "type": "object", "properties": properties, "additionalProperties": False}


def _describe_type(hint: Any, above: str, allowed: Range | None) -> dict[str, Any]:
    """Return the schema of a value's type. `allowed` is the range of its numbers."""
    if is_dataclass(hint):
        return _describe_node(hint, above)
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        values = [option for option in arguments if option is not type(None)]
        options = [_describe_type(option, above, allowed) for option in values]
        return {"anyOf": [*options, {"type": "null"}]}
    if origin is list:
        return {"type": "array", "items": _describe_type(arguments[0], above, None)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _describe_type(arguments[1], above, None)}
    return _describe_scalar(hint, allowed)


def _describe_scalar(hint: Any, allowed: Range | None) -> dict[str, Any]:
    """Return the schema of a single value, which may also be an interpolation."""
    if hint is Any:
        return {}
    if hint is str:
        # Hydra turns an unquoted 1 or true into text
        return {"type": ["string", "number", "boolean"]}
    if issubclass(hint, enum.Enum):
        return {"anyOf": [{"enum": [member.value for member in hint]}, _INTERPOLATION]}
    number = {"type": _TYPES[hint]}
    bounds = allowed.json_schema() if allowed else {}
    return {"anyOf": [{**number, **bounds}, _INTERPOLATION]}


def _default(key: Field[Any]) -> dict[str, Any]:
    """Return the keyword `default` of a key that has one."""
    value = key.default
    if value is MISSING or value == "???" or is_dataclass(value):
        return {}
    return {"default": value.value if isinstance(value, enum.Enum) else value}
