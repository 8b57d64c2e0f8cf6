"""Typed values: what `check_values` refuses, and that the parser reads back what `render_flag`
writes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.upstream.rules.argv import check_argv
from launch.upstream.rules.values import check_values, render_flag
from launch.upstream.schema import Field
from tests.messages import names as has_name
from tests.upstream.captured import synthetic_schema


@pytest.mark.parametrize(
    ("name", "value", "kind", "names"),
    [
        ("stesp", 1, "unknown_flag", ("steps", "switches")),
        ("columns", "a 1.0", "bad_type", ("[a, 1.0]",)),
        ("columns", "a, b", "bad_type", ("[a, b]",)),
        ("columns", {"a": 1.0}, "bad_type", ("[{'a': 1.0}]",)),
        ("columns", [], "missing_value", ()),
        ("columns", ["a", None], "bad_type", None),
        ("columns", ["a", "-b"], "bad_type", None),
        ("numbers", [1, "x"], "bad_type", None),
        ("steps", True, "bad_type", None),
        ("steps", 1e4, "bad_type", ("10000",)),
        ("steps", "1e4", "bad_type", ("10000",)),
        ("steps", [1], "bad_type", None),
        ("rate", "fast", "bad_type", None),
        ("on", "on", "bad_type", ("true", "false")),
        ("on", 2, "bad_type", ("true", "false")),
        ("name", True, "bad_type", ()),
        ("name", {"a": 1}, "bad_type", None),
        ("mode", "fats", "bad_choice", ("fast",)),
        ("picked", 4, "bad_choice", None),
        ("mapping", {"a": 1}, "unsettable", ()),
        ("either", {"a": 1}, "unsettable", ()),
        ("hidden", 2, "unsettable", ()),
    ],
)
def test_refused(name: str, value: Any, kind: str, names: tuple[str, ...] | None) -> None:
    """`names`: what the cure names; None where there is no cure."""
    (problem,) = check_values(synthetic_schema(), {name: value})
    assert (problem.id, problem.where, problem.cure is None) == (kind, name, names is None)
    assert all(has_name(str(problem.cure), value) for value in names or ())
    if name in synthetic_schema().fields:
        with pytest.raises(ValueError, match=name):
            render_flag(synthetic_schema().fields[name], value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("on", True, ["--on", "true"]),
        ("off", False, ["--off", "false"]),
        ("steps", -5, ["--steps=-5"]),
        ("rate", 5e-7, ["--rate", "5e-07"]),
        ("rate", "5e-7", ["--rate", "5e-7"]),
        ("rate", -1e-5, ["--rate=-1e-05"]),
        ("columns", ["data", 1.0], ["--columns", "data", "1.0"]),
        ("columns", ["-x"], ["--columns=-x"]),
        ("json_text", {"a": [1, True]}, ["--json_text", '{"a": [1, true]}']),
        ("level", 0, ["--level", "0"]),
        ("name", 7, ["--name", "7"]),
        ("name", "", ["--name", ""]),
        ("maybe_int", None, []),
    ],
)
def test_rendered(name: str, value: Any, expected: list[str]) -> None:
    assert check_values(synthetic_schema(), {name: value}) == []
    assert render_flag(synthetic_schema().fields[name], value) == expected


def test_required_values_are_only_checked_when_complete() -> None:
    assert check_values(synthetic_schema(), {"needed": None}) == []
    missing = [
        p.where
        for p in check_values(synthetic_schema(), {"needed": "a"}, complete=True)
        if p.id == "missing_required"
    ]
    assert missing == ["needed_choice", "factory_choice", "needed_list"]


def _values(item: Field) -> st.SearchStrategy[Any]:
    one = {
        "int": st.integers(),
        "float": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "truthy": st.sampled_from(["x", "true"]),
        "choice": st.sampled_from(item.choices or ("",)),
        "enum": st.sampled_from(item.choices or ("",)),
    }.get(item.kind, st.text(st.characters(codec="utf-8")))
    if item.kind == "str" and item.choices:
        one = st.sampled_from(item.choices)
    if item.kind == "int" and item.choices:
        one = st.sampled_from(item.choices)
    return st.lists(one, min_size=1, max_size=3) if item.nargs == "+" else one


def _settable() -> st.SearchStrategy[Field]:
    return st.sampled_from([item for item in synthetic_schema().fields.values() if item.settable])


@settings(deadline=None, max_examples=400)
@given(st.deferred(_settable).flatmap(lambda item: st.tuples(st.just(item), _values(item))))
def test_rendered_values_are_parsed_back(pair: tuple[Field, Any]) -> None:
    item, value = pair
    if check_values(synthetic_schema(), {item.name: value}):
        return
    report = check_argv(synthetic_schema(), render_flag(item, value))
    bad = [p for _, p in report.problems if p.id not in ("missing_required", "contradiction")]
    assert bad == []
    expected = [bool(v) for v in value] if item.kind == "truthy" else value
    assert report.values[item.name] == expected
    assert json.dumps(report.values[item.name]) is not None
