"""The JSON Schema of a stage file, for editors and for programs that write one: read off the
configuration's types.

Descriptions are the comments beside the keys in launch/config; ranges are those of
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

from launch.config.ranges import Range, range_of
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
    """Return the comment of each field: at the end of its line, else on the lines right above."""
    source = inspect.cleandoc(inspect.getsource(cls))
    found = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = source.splitlines()
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        key = re.match(r"\s+(\w+): ", line)
        if key is None:
            continue
        above = number
        while lines[above - 2].lstrip().startswith("#"):
            above -= 1
        text = found.get(number) or " ".join(found[own] for own in range(above, number))
        if text:
            texts[key[1]] = text
    return texts


def _describe_node(cls: type[Any], above: str) -> dict[str, Any]:
    hints, texts = typing.get_type_hints(cls), comments(cls)
    properties: dict[str, Any] = {}
    for key in fields(cls):
        if f"{above}{key.name}" in NOT_OF_STAGES:
            continue
        value = _describe_type(hints[key.name], f"{above}{key.name}.", range_of(key.metadata))
        text = {"description": texts[key.name]} if key.name in texts else {}
        properties[key.name] = {**text, **value, **_default(key)}
    docstring = " ".join((inspect.getdoc(cls) or "").split())
    described = (
        {"description": docstring}
        if docstring and not docstring.startswith(f"{cls.__name__}(")
        else {}
    )
    return {**described, "type": "object", "properties": properties, "additionalProperties": False}


def _describe_type(hint: Any, above: str, allowed: Range | None) -> dict[str, Any]:
    if is_dataclass(hint):
        return _describe_node(typing.cast(type[Any], hint), above)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [
            _describe_type(option, above, allowed)
            for option in arguments
            if option is not type(None)
        ]
        return {"anyOf": [*options, {"type": "null"}]}
    if origin is list:
        return {"type": "array", "items": _describe_type(arguments[0], above, None)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _describe_type(arguments[1], above, None)}
    return _describe_scalar(hint, allowed)


def _describe_scalar(hint: Any, allowed: Range | None) -> dict[str, Any]:
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
    value = key.default
    if value is MISSING or value == "???" or is_dataclass(value):
        return {}
    return {"default": value.value if isinstance(value, enum.Enum) else value}
