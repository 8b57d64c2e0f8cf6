"""Checks typed values of a trainer's flags, from a YAML file or an override, and renders argv."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launch.errors import UserError, nearest
from launch.upstream.rules.conversion import EXPECTED_VALUES, convert_text, unsettable_error
from launch.upstream.schema import Field, Schema
from launch.worker.finding import Finding


def check_values(
    schema: Schema, values: Mapping[str, Any], complete: bool = False
) -> list[Finding]:
    """Return every problem of {field name: value}, `where` being the name; None means that the flag
    is not given.

    Ids: unknown_flag, bad_type, bad_choice, missing_value (an empty list), unsettable (no command
    line can set the field), missing_required.

    Stricter than the command line: a list must be a list (not one string), and a bool is neither a
    string nor a number. `complete`: also report required fields without a value.
    """
    problems: list[Finding] = []
    for name, value in values.items():
        field = flag_field(schema, name, value)
        if field is None:
            suggestions = nearest(name.replace("-", "_"), schema.fields)
            cure = f"did you mean {' or '.join(suggestions)}?" if suggestions else None
            message = f"{schema.entry.rpartition('/')[2]} has no flag '{name}'"
            problems.append(Finding.error("unknown_flag", message, name, cure))
        elif value is not None:
            problems.extend(_find_problems(field, value))
    if complete:
        for field in schema.fields.values():
            if field.required and field.in_parser and values.get(field.name) is None:
                message = f"{field.name} is required"
                cure = f"set {field.name}"
                problems.append(Finding.error("missing_required", message, field.name, cure))
    return problems


def flag_field(schema: Schema, name: str, value: Any) -> Field | None:
    """Return a flag's field; for a flag that only the trainer's own parser knows, a field that
    takes the value.
    """
    if name in schema.fields:
        return schema.fields[name]
    if not schema.is_unverified(name):
        return None
    any_field = next(iter(schema.fields.values()))
    return replace(
        any_field,
        name=name,
        kind="unknown",
        nargs="+" if isinstance(value, list) else None,
        choices=None,
        required=False,
        unsettable_because=None,
    )


def unverified_message(schema: Schema, name: str) -> str:
    """Explain why it is not known whether the trainer has a flag (`Schema.is_unverified`)."""
    script = schema.entry.rpartition("/")[2]
    if name in schema.fields:
        return (
            f"{script} may have dropped --{name}: its line is no longer in "
            f"{schema.fields[name].file} here"
        )
    return (
        f"{script} may have --{name}: the lock lacks it, but a file that differs from the lock "
        "has the word"
    )


def render_flag(field: Field, value: Any) -> list[str]:
    """Return the exact argv tokens that set the field to this value; an empty list for None.

    Bools are always `--x true` or `--x false`; a value that begins with `-` is `--x=value`.
    Raises ValueError for a value that `check_values` refuses.
    """
    if value is None:
        return []
    problem = next(_find_problems(field, value), None)
    if problem is not None:
        raise ValueError(problem.message)
    parts = value if field.nargs == "+" else [value]
    texts = [_to_argv_text(field, part) for part in parts]
    flag = f"--{field.name}"
    if len(texts) == 1 and texts[0].startswith("-"):
        return [f"{flag}={texts[0]}"]
    return [flag, *texts]


def _find_problems(field: Field, value: Any) -> Iterator[Finding]:
    if not field.settable:
        yield from unsettable_error(field, "unsettable").problems
    elif field.nargs == "+":
        yield from _find_list_problems(field, value)
    else:
        yield from _find_scalar_problems(field, value)


def _find_list_problems(field: Field, value: Any) -> Iterator[Finding]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        parts = value.replace(",", " ").split() if isinstance(value, str) else [str(value)]
        message = f"{field.name} must be a list, got {_describe_value(value)}"
        yield Finding.error("bad_type", message, field.name, f"write [{', '.join(parts)}]")
        return
    if not value:
        message = f"{field.name} must not be an empty list"
        yield Finding.error("missing_value", message, field.name, "leave it out, or add an element")
    for part in value:
        yield from _find_scalar_problems(field, part)
    has_dash = any(_to_argv_text(field, part).startswith("-") for part in value)
    if has_dash and len(value) > 1:
        message = f"{field.name}: an element that begins with '-' must be the only one"
        yield Finding.error("bad_type", message, field.name)


def _find_scalar_problems(field: Field, value: Any) -> Sequence[Finding]:
    if isinstance(value, Mapping) and field.kind == "str" and "dict" in field.type:
        return ()  # it is written as JSON
    cure = None
    is_allowed = isinstance(value, str | int | float)
    if isinstance(value, bool) and field.kind not in ("bool", "unknown", "object"):
        is_allowed = field.kind == "choice" and value in (field.choices or ())
        cure = "quote it to set a string" if field.kind == "str" else None
    if not is_allowed:
        message = f"{field.name} must be {_describe_expected(field)}, got {_describe_value(value)}"
        return (Finding.error("bad_type", message, field.name, cure),)
    try:
        convert_text(field, _to_argv_text(field, value))
    except UserError as error:
        return error.problems
    return ()


def _describe_expected(field: Field) -> str:
    """Describe the field's values: `an integer`, `true or false`, `one of a, b`, `a string`."""
    if field.choices is not None:
        return f"one of {', '.join(str(choice) for choice in field.choices)}"
    if field.kind == "str":
        return "a string"
    return EXPECTED_VALUES.get(field.kind, "a value")


def _describe_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    return f"the string {value!r}" if isinstance(value, str) else repr(value)


def _to_argv_text(field: Field, value: Any) -> str:
    if isinstance(value, bool) and field.kind != "choice":
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value)
    return str(value)
