"""Finds the values that a trainer's `__post_init__` refuses together.

launch's own rules (`data/contradictions.json`) decide the lines of upstream for which they were
written, as long as the function's text has not changed. Every other line is interpreted, if this
machine has the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from launch.files import load_json
from launch.upstream.pin.lock import DATA
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.rules.post_init import check_rules, run_post_init
from launch.upstream.rules.post_init_state import Contradiction
from launch.upstream.rules.source import read_functions
from launch.upstream.rules.uncertain_values import Doubt, UncertainValue
from launch.upstream.schema import Field, Schema
from launch.worker.moves import path_at_pin

RULES_FILE = DATA / "contradictions.json"


def find_contradictions(
    schema: Schema, values: Mapping[str, Any], defaults_known: bool = True
) -> list[Contradiction]:
    """Return what the parser's dataclasses raise for these values, `UNKNOWN` ones included.

    values: {field name: converted value} of the given flags. defaults_known=False: the other fields
    are unknown too (they come from a file that has not been read).
    """
    contradictions = []
    for class_name, code in schema.post_init.items():
        fields = {}
        for field in schema.fields.values():
            if field.group == class_name:
                is_opaque = field.name in code["opaque"]
                fields[field.name] = _field_value(field, values, defaults_known, is_opaque)
        rules = _rules_about(code["functions"]) if schema.is_locked else {}
        contradictions += check_rules(rules, fields)
        functions = read_functions(code["functions"], schema.sources)
        if not functions:
            continue
        for contradiction in run_post_init(functions, code["names"], fields):
            if contradiction.where not in rules:
                message = f"the trainer's own error: {contradiction.message}"
                contradictions.append(replace(contradiction, message=message))
    return contradictions


def unchecked_code(schema: Schema) -> tuple[str, ...]:
    """Name each `__post_init__` whose text is not on this machine, so that only launch's own rules
    check it.
    """
    names = []
    for class_name, code in schema.post_init.items():
        if read_functions(code["functions"], schema.sources) is None:
            place = code["functions"][0]
            names.append(f"{class_name}.__post_init__ ({place['file']}:{place['lines'][0]})")
    return tuple(names)


def describe_unchecked(names: Iterable[str]) -> str:
    """Return a line that names the functions that could not be checked; '' for none."""
    listed = ", ".join(names)
    return f"unchecked without its source, beyond launch's own rules: {listed}" if listed else ""


def _rules_about(functions: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the rules about these functions by upstream's file:line.

    A function may have moved within its file; one whose text has changed has no rules.
    """
    rules: dict[str, Mapping[str, Any]] = {}
    for known in load_rules():
        for function in functions:
            if any(function[key] != known[key] for key in ("name", "digest")):
                continue
            if function["file"] != path_at_pin(known["file"]):
                continue
            offset = function["lines"][0] - known["lines"][0]
            for rule in known["rules"]:
                rules[f"{function['file']}:{rule['line'] + offset}"] = rule
    return rules


@cache
def load_rules() -> list[dict[str, Any]]:
    """Return launch's rules (`if`: a condition on fields, `message`, `line`) by the functions that
    they are about.
    """
    functions: list[dict[str, Any]] = load_json(RULES_FILE)["functions"]
    return functions


def _field_value(
    field: Field, values: Mapping[str, Any], defaults_known: bool, is_opaque: bool
) -> Any:
    """Return a field's value before `__post_init__` runs, or an `UncertainValue`."""
    if field.name in values:
        unknown = UncertainValue(Doubt.USER, is_set=not field.none_words)
        return unknown if is_opaque else _replace_unknown(values[field.name], unknown)
    if field.in_parser and (field.required or not defaults_known):
        return UncertainValue(Doubt.USER)
    if is_opaque or "default" in field.unknown:
        return UncertainValue()
    return field.default


def _replace_unknown(value: Any, unknown: UncertainValue) -> Any:
    """Return the value with `unknown` in the place of each UNKNOWN."""
    if isinstance(value, list):
        return [_replace_unknown(part, unknown) for part in value]
    return unknown if value is UNKNOWN else value
