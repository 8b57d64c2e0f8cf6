"""The captured options against the actions of the real parsers, trainer by trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from launch.upstream.rules.parser import ParserOption, list_options
from launch.upstream.schema import Schema
from launch.upstream.trainers import ENTRIES
from tests.upstream.real_parsers import RealParsers

# the real trainers' libraries take half a minute to import
TRAINERS = (
    "synthetic",
    *(pytest.param(trainer, marks=pytest.mark.slow) for trainer in ENTRIES),
)


def _as_argparse(option: ParserOption) -> dict[str, Any]:
    item = option.field
    takes_choices = item.choices is not None and item.kind != "enum" and not option.negates
    return {
        "strings": list(option.strings),
        "dest": item.name,
        "nargs": 0 if option.negates else option.nargs,
        "const": False if option.negates else item.const,
        "default": False if option.negates else item.default,
        "choices": list(item.choices or ()) if takes_choices else None,
        "required": option.required,
    }


@pytest.mark.parametrize("trainer", TRAINERS)
def test_options_equal_those_of_the_real_parser(
    trainer: str, schema_of: Callable[[str], Schema], real_parsers: RealParsers
) -> None:
    schema = schema_of(trainer)
    real = real_parsers.query(trainer=trainer, describe=True)
    assert not schema.unknown
    ours = [_as_argparse(option) for option in list_options(schema)]
    for option, theirs in zip(list_options(schema), real, strict=False):
        if "default" in option.field.unknown:
            # an unknown default is None, with the reason recorded
            assert option.field.default is None
            theirs["default"] = None
        if option.field.name == "place":
            theirs["default"] = option.field.default
    assert ours == real


def test_defaults_from_the_environment_are_unknown_not_absent(
    schema_of: Callable[[str], Schema],
) -> None:
    item = schema_of("grpo_fast").fields["code_api_url"]
    assert item.default is None
    assert "open_instruct/data_loader.py:468: 'os.environ.get(" in item.unknown["default"]


def test_owner_and_source_line(schema_of: Callable[[str], Schema]) -> None:
    schema = schema_of("synthetic")
    item = schema.fields["overridden"]
    assert (item.owner, item.group, item.default) == ("Everything", "Everything", 3)
    assert item.file == "synthetic.py"
    assert item.where.startswith("synthetic.py:")
    left = schema.fields["left"]
    assert (left.owner, left.group, left.file) == ("Left", "Everything", "helpers.py")
    hidden = schema.fields["hidden"]
    assert not hidden.settable
    assert hidden.unsettable_because == "the dataclass sets it itself (init=False)"
    for absent in ("counter", "not_annotated", "passed", "ignored"):
        assert absent not in schema.fields
