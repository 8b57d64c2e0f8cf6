"""The lines of keys in YAML and JSON texts."""

from __future__ import annotations

import json

import pytest

from launch.config.yaml_nodes import NotYamlError, yaml_positions
from tests.paths import ROOT


def test_keys_items_aliases_and_repeated_keys() -> None:
    text = "a: &anchor\n  b: 1\n  c:\n  - x\n  - d: 2\nother: *anchor\n<<: *anchor\n"
    text += "'q': >\n  folded\n  text\nlast: 3\na: 4\n"
    positions = yaml_positions(text)
    assert {
        ".".join(path): line
        for path, line in positions.lines.items()
        if path[0] in ("a", "q", "last")
    } == {
        "a": 12,
        "a.b": 2,
        "a.c": 3,
        "a.c.0": 4,
        "a.c.1": 5,
        "a.c.1.d": 5,
        "q": 8,
        "last": 11,
    }
    assert (
        positions.of(("other",)),
        positions.of(("other", "c", "1", "d")),
        positions.of(("none",)),
    ) == (6, 5, None)
    assert positions.repeated == (("a",),)


@pytest.mark.parametrize("indent", [1, "\t"])
def test_the_lines_of_a_json_text(indent: int | str) -> None:
    text = json.dumps({"a": [{"b": 1}, [2, {"c/é": {}}]], "d": {"e": None}}, indent=indent).replace(
        "/", "\\/"
    )
    lines = {".".join(path): line for path, line in yaml_positions(text).lines.items()}
    assert {key: lines[key] for key in ("a", "a.0.b", "a.1.1.c/é", "d", "d.e")} == {
        "a": 2,
        "a.0.b": 4,
        "a.1.1.c/é": 9,
        "d": 13,
        "d.e": 14,
    }
    assert yaml_positions('{"a": 1,\n"b": {"c": 1, "c": 2}}').repeated == (("b", "c"),)


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: [", 2), ("a: *b", 1), ("a: \n  " + "- " * 100 + "x", 2)]
)
def test_a_text_without_positions_is_an_error_with_its_line(text: str, line: int) -> None:
    with pytest.raises(NotYamlError) as error:
        yaml_positions(text)
    assert error.value.line == line


def test_only_one_module_reads_positions_from_the_yaml_parser() -> None:
    modules = [
        path
        for path in (ROOT / "launch").rglob("*.py")
        if ".start_mark" in path.read_text(encoding="utf-8")
    ]
    assert [path.relative_to(ROOT).as_posix() for path in modules] == [
        "launch/config/yaml_nodes.py"
    ]
