"""Finds what a trainer's `__post_init__` raises for given values.

The lock's code is executed here; code of any other checkout or package only in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from launch.resources import ROOT
from launch.upstream.rules import post_init
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.rules.post_init import Contradiction, run_post_init
from launch.upstream.rules.unknown import Unknown, to_json
from launch.upstream.schema import Field, Schema

_SECONDS = 20.0


def find_contradictions(schema: Schema, values: Mapping[str, Any], defaults_known: bool = True) -> list[Contradiction]:
    """Return what the parser's dataclasses raise for these values, `UNKNOWN` ones included.

    values: {field name: converted value} of the given flags. defaults_known=False: the other fields are unknown too
    (they come from a file that has not been read).
    """
    fields = schema.fields.values()
    executed = [
        (code, {field.name: _value(field, values, defaults_known) for field in fields if field.group == name})
        for name, code in schema.post_init.items()
    ]
    if schema.is_locked:
        return [found for code, fields in executed for found in run_post_init(code, fields)]
    return _run_apart(schema, executed)


def _value(field: Field, values: Mapping[str, Any], defaults_known: bool) -> Any:
    if field.name in values:
        is_text = field.kind == "str" and field.choices is None
        return _known_parts(values[field.name], "user" if field.none_words else "text" if is_text else "value")
    if field.in_parser and (field.required or not defaults_known):
        return Unknown("user")
    return Unknown("machine") if "default" in field.unknown else field.default


def _known_parts(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return [_known_parts(part, kind) for part in value]
    return Unknown(kind) if value is UNKNOWN else value


def _run_apart(schema: Schema, executed: Sequence[Any]) -> list[Contradiction]:
    """Execute the code in a process of its own; undecided where it does not end."""
    if not executed:
        return []
    from launch.upstream.capture.process import run_isolated  # a plan by the lock starts nothing

    request = json.dumps(executed, default=to_json)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = run_isolated(sys.executable, post_init.__file__, [], _SECONDS, request, environ=environ)
    if "error" in result:
        return [Contradiction(f"its __post_init__ can't be executed: {result['error']}", schema.parser_at, (), None)]
    return [Contradiction(message, where, tuple(flags), sure) for message, where, flags, sure in result["raised"]]
