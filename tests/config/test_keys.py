"""docs/reference/keys.md: every key of the configuration, read off the dataclasses.
`--update-golden` writes it.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from launch import resources
from launch.config.json_schema import comments
from launch.config.recipe_keys import KEYS
from launch.config.schema import MixConfig, RootConfig

PAGE = resources.ROOT / "docs" / "reference" / "keys.md"
# a trainer's file explains its own keys, `tune` writes an overlay, and a pipeline sets the last for
# its jobs
LEFT_OUT = ("trainer", "tuned", "model.trained_by")
OF_ANY_TYPE = {
    "recipe.lora.targets": "text or list",
    "data.validation": "number or text",
    "recipe.verifier": "text or list",
}
PROOFS = """What shows a key in the running trainer, where its trainer has the key. The trainers that
`run` does not start (`grpo`, `grpo_fast`) show none:"""
HEAD = """# Every key

Each can be set on the command line as KEY=VALUE, and in a stage's YAML. `launch stage=NAME --cfg job` prints
their values for a stage. A key without a default here must be set by the stage. `null` means not set.
"""


def kind(hint: Any) -> str:
    """Name a type as in YAML."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " ".join(f"`{member.value}`" for member in hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return ", ".join(
            kind(option) for option in typing.get_args(hint) if option is not type(None)
        )
    names = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "`true` `false`",
        Any: "any value",
    }
    return names.get(hint) or {list: "list", dict: "map"}[typing.get_origin(hint)]


def default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default is not dataclasses.MISSING else None
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value == "???":
        return ""
    if isinstance(value, enum.Enum):
        return f"`{value.value}`"
    if isinstance(value, bool) or value is None:
        return f"`{str(value).lower().replace('none', 'null')}`"
    return f"`{value}`" if value != "" else ""


def nested(hint: Any) -> type | None:
    nodes = [node for node in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(node)]
    return nodes[0] if nodes and typing.get_origin(hint) is not list else None  # type: ignore[return-value]


def rows(cls: Any, above: str) -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, comment) of a node's own keys and those below it."""
    hints, explanations = typing.get_type_hints(cls), comments(cls)
    for field in dataclasses.fields(cls):
        key = f"{above}{field.name}"
        inner = nested(hints[field.name])
        if key in LEFT_OUT or (inner is not None and not above):
            continue
        if inner is not None:
            text = " ".join(sentence(inner))
            if text:
                yield key, "", "", text.strip()
            yield from rows(inner, f"{key}.")
        else:
            yield (
                key,
                OF_ANY_TYPE.get(key) or kind(hints[field.name]),
                default(field),
                explanations.get(field.name, ""),
            )


def table(keys: list[tuple[str, str, str, str]]) -> list[str]:
    lines = ["| key | is | default | |", "| --- | --- | --- | --- |"]
    return lines + [
        f"| `{key}` | {type_} | {value} | {text.replace('|', chr(92) + '|')} |"
        for key, type_, value, text in keys
    ]


def sentence(cls: Any) -> list[str]:
    """Return the dataclass's own docstring, if it has one."""
    text = " ".join((inspect.getdoc(cls) or "").split())
    return [text, ""] if text and not text.startswith(f"{cls.__name__}(") else []


def proofs() -> list[str]:
    """Return the table of what shows each recipe key in a running trainer."""
    lines = ["| key | evidence | what is read | not proven |", "| --- | --- | --- | --- |"]
    for key, row in KEYS.items():
        evidence = f"`{row.proof.evidence}`" if row.proof else "-"
        read = row.proof.read if row.proof else ""
        reasons = [
            reason if selector == "*" else f"`{selector}`: {reason}"
            for selector, reason in row.unproven_because.items()
        ]
        lines.append(f"| `recipe.{key}` | {evidence} | {read} | {'; '.join(reasons)} |")
    return lines


def page() -> str:
    hints = typing.get_type_hints(RootConfig)
    lines = [HEAD, "## What runs, where", "", *table(list(rows(RootConfig, "")))]
    for field in dataclasses.fields(RootConfig):
        inner = nested(hints[field.name])
        if inner is None or field.name in LEFT_OUT:
            continue
        lines += [
            "",
            f"## {field.name}",
            "",
            *sentence(inner),
            *table(list(rows(inner, f"{field.name}."))),
        ]
        if field.name == "recipe":
            lines += ["", PROOFS, "", *proofs()]
        if field.name == "data":
            entries = [(f"- {key}", *rest) for key, *rest in rows(MixConfig, "")]
            lines += ["", "An entry of `data.mix`:", "", *table(entries)]  # type: ignore[arg-type]
    return "\n".join(lines) + "\n"


def test_the_page_has_every_key(request: pytest.FixtureRequest) -> None:
    now = page()
    if request.config.getoption("--update-golden"):
        PAGE.write_text(now, encoding="utf-8")
    written = PAGE.read_text(encoding="utf-8")
    difference = "\n".join(
        difflib.unified_diff(written.splitlines(), now.splitlines(), PAGE.name, "now", lineterm="")
    )
    assert written == now, (
        f"{difference}\nif the change is meant: scripts/test --update-golden "
        "tests/config/test_keys.py"
    )


def test_every_key_of_the_root_and_the_recipe_is_explained() -> None:
    unexplained = [
        key
        for key, _, _, text in [
            *rows(RootConfig, ""),
            *rows(typing.get_type_hints(RootConfig)["recipe"], ""),
        ]
        if not text
    ]
    assert not unexplained
