"""Converts dataclasses to JSON and back: for files, for what `--json` prints, and between two
interpreters.

A key is the field's name, without the underscore that ends a Python keyword's; a dataclass whose
JSON has other names or computed values returns them from `json_fields`, which nothing but this
module and a subclass calls: the values are converted here, and a file adds its version number
(`versioned`). A NaN or an infinity becomes null, and `NAME_text` keeps which it was. The trainer's
interpreter imports this module too.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

# The number of the format of a run folder and of a trial's record, written into each of their JSON
# files as `schema_version`. A change that a reader of the number would misread raises it; a folder
# with another number is named, and never trained over (launch/execution/record/format.py).
SCHEMA_VERSION = 1
T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Return a value as strict JSON.

    >>> to_json({"loss": float("nan"), "path": Path("a"), "sizes": (1, 2)})
    {'loss': None, 'loss_text': 'nan', 'path': 'a', 'sizes': [1, 2]}
    """
    if is_dataclass(value):
        value = _fields_of(value)
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for name, item in value.items():
            out[name] = to_json(item)
            if _is_not_finite(item):
                out[f"{name}_text"] = str(item)
        return out
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    return None if _is_not_finite(value) else value


def _fields_of(value: Any) -> Any:
    """Return the fields of a dataclass by key, or what its `json_fields` returns."""
    json_fields = getattr(value, "json_fields", None)
    if json_fields is not None:
        return json_fields()
    return {_key(item.name): getattr(value, item.name) for item in fields(value)}


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None, by their keys."""
    return {key: value for key, value in values.items() if value is not None}


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def versioned(value: Any, version: int = SCHEMA_VERSION) -> dict[str, Any]:
    """Return an object as JSON that a file holds alone: its version, then the fields."""
    return {"schema_version": version, **to_json(value)}


def encode(value: Any, indent: int | None = None) -> str:
    """Return the text of a file that holds one object."""
    return json.dumps(versioned(value), indent=indent, ensure_ascii=False)


def decode(cls: type[T], text: str | bytes) -> T:
    """Return the object in the text of a file. Raises ValueError for any other text."""
    try:
        return from_json(cls, json.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def from_json(cls: type[T], value: Any) -> T:
    """Return the dataclass that a JSON object holds.

    A key that is not a field's is skipped: another version may have written it. Raises ValueError
    for a value of another type, and for a missing one that has no default.
    """
    result: T = _parse(cls, value, cls.__name__)
    return result


def _key(name: str) -> str:
    return name.removesuffix("_")


class _Field(NamedTuple):
    """A field of a dataclass."""

    name: str
    key: str  # the key in JSON
    type: Any
    is_required: bool  # it has no default


@cache
def _fields(cls: type) -> list[_Field]:
    types_by_name = get_type_hints(cls)
    described = []
    for item in fields(cls):
        is_required = item.default is MISSING and item.default_factory is MISSING
        described.append(_Field(item.name, _key(item.name), types_by_name[item.name], is_required))
    return described


def _parse(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as the annotated type `kind`."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin in (Union, types.UnionType):
        return _parse_union(arguments, value, where)
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    if isinstance(value, Mapping) and (is_dataclass(kind) or is_mapping):
        return _parse_object(kind, arguments, value, where)
    if isinstance(value, (list, tuple)) and origin in (list, tuple, Sequence):
        has_type_of_each = origin is tuple and arguments[-1] is not ...
        item_types = arguments if has_type_of_each else arguments[:1] * len(value)
        if len(item_types) == len(value):
            items = map(_parse, item_types, value, [where] * len(value))
            return list(items) if origin is list else tuple(items)
    elif kind is Any or type(value) is kind or (origin is Literal and value in arguments):
        return value
    elif kind is float and type(value) is int:
        return float(value)
    elif isinstance(kind, type) and issubclass(kind, (Path, Enum)) and type(value) is str:
        return kind(value)
    raise ValueError(f"{where} is not a {getattr(kind, '__name__', kind)}: {value!r:.80}")


def _parse_union(kinds: Sequence[Any], value: Any, where: str) -> Any:
    reasons = []
    for kind in kinds:
        try:
            return _parse(kind, value, where)
        except ValueError as error:  # noqa: PERF203
            reasons.append(error)
    raise reasons[0]


def _parse_object(kind: Any, arguments: Sequence[Any], value: Mapping[str, Any], where: str) -> Any:
    """Return an object as a mapping, whose types are `arguments`, or as the dataclass `kind`."""
    if arguments:
        return {name: _parse(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    given = {}
    for field in _fields(kind):
        place = f"{where}.{field.name}"
        if field.key in value:
            given[field.name] = _parse(field.type, _read(value, field.key), place)
        elif field.is_required:
            raise ValueError(f"{place} is missing")
    return kind(**given)


def _read(value: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key; a number that is not finite has its text under another key."""
    text = value.get(f"{key}_text")
    return float(text) if value[key] is None and text is not None else value[key]
