"""Removes the keys that a Parquet or Arrow file pads the objects of a row with.

A key goes if the row can't have had it. Where it may have had it with a null, the key goes too, and
the data set is named: a template would write it into the prompt and into what is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launch.data.row_errors import parse_json
from launch.data.tables import KeyPath

_TOOLS = ("tools", "functions")
# keywords of a JSON schema whose value may be null
_NULLABLE = ("default", "const", "example")
_ARGUMENTS = "arguments"
_SHOWN = 3  # keys that a note names


@dataclass
class Padding:
    """Removes padded keys row by row, and remembers those that may have been the row's own."""

    doubtful: dict[str, str] = field(default_factory=dict)  # a key -> the first place
    # (function, path of an argument) with a value in some call, and with a null in some: its place
    _given: set[tuple[str, KeyPath]] = field(default_factory=set)
    _left_out: dict[tuple[str, KeyPath], str] = field(default_factory=dict)

    def remove(
        self, row: Mapping[str, object], padded: frozenset[KeyPath], place: str
    ) -> dict[str, object]:
        """Return a row without padded keys; `padded` are the paths that may be padding."""
        if not padded:
            return dict(row)
        columns = {path[0] for path in padded}
        functions = _read_functions(row)
        cleaned: dict[str, object] = {}
        remover = _Remover(self, padded, functions, place)
        for name, value in row.items():
            is_padded = name in columns
            cleaned[name] = remover.clean(value, (name,), None) if is_padded else value
        return cleaned

    def note(self) -> str | None:
        """Name the keys whose nulls may have been the rows' own; None without any."""
        doubtful = dict(self.doubtful)
        for key, place in self._left_out.items():
            if key in self._given:
                function, path = key
                doubtful.setdefault(f"{'.'.join(path)} of {function}", place)
        if not doubtful:
            return None
        names = ", ".join(list(doubtful)[:_SHOWN])
        if len(doubtful) > _SHOWN:
            names += f" and {len(doubtful) - _SHOWN} more"
        return (
            f"null keys are left out as the file's padding, and some may be the rows' own: {names}"
            f" (first: {next(iter(doubtful.values()))}; a .jsonl file has no padding)"
        )


@dataclass(frozen=True)
class _Function:
    """The arguments that a row's definition of a function lists."""

    properties: frozenset[str]
    required: frozenset[str]


@dataclass(frozen=True)
class _Remover:
    """Removes the padded keys of one row."""

    padding: Padding
    padded: frozenset[KeyPath]
    functions: Mapping[str, _Function]
    place: str

    def clean(self, value: Any, path: KeyPath, call: tuple[str, int] | None) -> Any:
        """Return a value without padded keys.

        `call` is the name of the function that is called, and the length of the path to its
        arguments; None outside a call's arguments.
        """
        if isinstance(value, list):
            return [self.clean(element, path, call) for element in value]
        if not isinstance(value, dict):
            return value
        cleaned: dict[str, Any] = {}
        for key, inner in value.items():
            key_path = (*path, key)
            inner_call = call
            if call is None and key == _ARGUMENTS and not set(_TOOLS) & set(path):
                inner_call = (str(value.get("name")), len(key_path))
            if inner is None and key_path in self.padded:
                if self._is_own(key_path, call):
                    cleaned[key] = None
                continue
            if call is not None:
                self.padding._given.add((call[0], key_path[call[1] :]))
            cleaned[key] = self.clean(inner, key_path, inner_call)
        return cleaned

    def _is_own(self, path: KeyPath, call: tuple[str, int] | None) -> bool:
        """Return whether the row itself has the null, and remember a null that may be its own."""
        key = path[-1]
        if call is None:
            # No other keyword of a schema may be null.
            if path[0] in _TOOLS and key in _NULLABLE and path[-2:-1] != ("properties",):
                self.padding.doubtful.setdefault(f"{key} in {path[0]}", self.place)
            elif path[0] == "ground_truth":
                self.padding.doubtful.setdefault(".".join(path), self.place)
            return False
        name, depth = call
        function = self.functions.get(name)
        argument = path[depth:]
        if function is not None and len(argument) == 1:
            if key in function.required:
                return True
            if key not in function.properties:
                return False
        self.padding._left_out.setdefault((name, argument), self.place)
        return False


def _read_functions(row: Mapping[str, object]) -> dict[str, _Function]:
    """Return the functions that a row defines, by name."""
    functions = {}
    for column in _TOOLS:
        value = row.get(column)
        tools = parse_json(value) if isinstance(value, str) else value
        for item in tools if isinstance(tools, list) else ():
            tool = parse_json(item) if isinstance(item, str) else item
            if not isinstance(tool, dict):
                continue
            definition = tool.get("function") if isinstance(tool.get("function"), dict) else tool
            assert isinstance(definition, dict)
            schema = definition.get("parameters")
            if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
                continue
            given = {key for key, value in schema["properties"].items() if value is not None}
            required = schema.get("required") or ()
            functions[str(definition.get("name"))] = _Function(
                frozenset(given), frozenset(required)
            )
    return functions
