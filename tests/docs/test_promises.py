"""Each promise of the page on trust names a test that there is."""

from __future__ import annotations

import ast
import re

from tests.paths import ROOT

PAGE = ROOT / "docs" / "explanation" / "trust.md"


def test_each_promise_names_a_test() -> None:
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| promise | test |")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", table)
    assert len(named) == len(table.strip().splitlines()) - 1 > 10
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in defined, f"{path}::{name}"
