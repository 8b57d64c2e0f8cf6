"""Finds what a trainer's `__post_init__` refuses: by launch's own rules, and by its text where that
is here.

The rules are `data/contradictions.json`, each with upstream's line, and hold for the text that they
were written about. A line that has a rule is decided by the rule alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from launch.files import load_json
from launch.upstream.pin.lock import DATA
from launch.upstream.rules.conversion import UNKNOWN
from launch.upstream.rules.post_init import (
    Contradiction,
    Doubt,
    UncertainValue,
    check_rules,
    run_post_init,
)
from launch.upstream.rules.source import read_functions
from launch.upstream.schema import Field, Schema

RULES_FILE = DATA / "contradictions.json"


def find_contradictions(
    schema: Schema, values: Mapping[str, Any], defaults_known: bool = True
) -> list[Contradiction]:
    """Return what the parser's dataclasses raise for these values, `UNKNOWN` ones included.

    values: {field name: converted value} of the given flags. defaults_known=False: the other fields
    are unknown too (they come from a file that has not been read).
    """
    contradictions = []
    for name, code in schema.post_init.items():
        fields = {
            field.name: _value(
                field, values, defaults_known, is_opaque=field.name in code["opaque"]
            )
            for field in schema.fields.values()
            if field.group == name
        }
        functions = read_functions(code["functions"], schema.sources)
        rules = _rules_about(code["functions"]) if schema.is_locked else {}
        contradictions += check_rules(rules, fields)
        for found in run_post_init(functions, code["names"], fields) if functions else ():
            if found.where not in rules:
                contradictions.append(
                    replace(found, message=f"the trainer's own error: {found.message}")
                )
    return contradictions


def unchecked_code(schema: Schema) -> tuple[str, ...]:
    """Name each `__post_init__` whose text is not here, so that only what launch's rules know of it
    is checked.
    """
    return tuple(
        f"{name}.__post_init__ ({code['functions'][0]['file']}:{code['functions'][0]['lines'][0]})"
        for name, code in schema.post_init.items()
        if read_functions(code["functions"], schema.sources) is None
    )


def describe_unchecked(names: Iterable[str]) -> str:
    """Say in one line what is not checked without the text of these functions; '' for none."""
    listed = ", ".join(names)
    return f"unchecked without its source, beyond launch's own rules: {listed}" if listed else ""


def _rules_about(functions: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the rules about these functions by upstream's file:line; none about a function that
    has changed since.
    """
    rules: dict[str, Mapping[str, Any]] = {}
    for known in load_rules():
        for function in functions:
            if all(function[key] == known[key] for key in ("file", "name", "digest")):
                moved = function["lines"][0] - known["lines"][0]
                rules |= {
                    f"{known['file']}:{rule['line'] + moved}": rule for rule in known["rules"]
                }
    return rules


@cache
def load_rules() -> list[dict[str, Any]]:
    """Return launch's rules (`if`: a condition on fields, `message`, `line`) by the functions that
    they are about.
    """
    functions: list[dict[str, Any]] = load_json(RULES_FILE)["functions"]
    return functions


def _value(
    field: Field, values: Mapping[str, Any], defaults_known: bool, *, is_opaque: bool
) -> Any:
    if field.name in values:
        given = UncertainValue(Doubt.USER, is_set=not field.none_words)
        return given if is_opaque else _known_parts(values[field.name], given)
    if field.in_parser and (field.required or not defaults_known):
        return UncertainValue(Doubt.USER)
    return UncertainValue() if is_opaque or "default" in field.unknown else field.default


def _known_parts(value: Any, unknown: UncertainValue) -> Any:
    if isinstance(value, list):
        return [_known_parts(part, unknown) for part in value]
    return unknown if value is UNKNOWN else value
