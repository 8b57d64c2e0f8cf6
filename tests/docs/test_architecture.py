"""docs/architecture.md: its files exist, and its list of layers is that of the import contract."""

from __future__ import annotations

import re
import tomllib

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
_PATH = re.compile(r"`((?:[\w.]+/)*[\w.]+(?:/|\.py))`")


def test_every_path_exists() -> None:
    paths = set(_PATH.findall(PAGE))
    assert len(paths) > 80
    missing = [
        path
        for path in paths
        if not (ROOT / "launch" / path).exists() and not (ROOT / path).exists()
    ]
    assert not missing


def test_the_page_has_the_layers_in_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    layers = next(
        contract["layers"] for contract in contracts if contract.get("containers") == ["launch"]
    )
    drawing = PAGE.split("```text\n")[1].split("```")[0]
    lines = [line for line in drawing.splitlines() if not line.startswith(" ")]
    assert len(lines) == len(layers)
    for layer, line in zip(layers, lines, strict=True):
        assert all(name in line for name in re.split(r" [|:] ", layer)), layer


def test_every_step_of_a_run_names_functions_that_exist() -> None:
    steps = re.findall(r"^\| \d+ \|.*\| (.*) \|$", PAGE, re.MULTILINE)
    assert len(steps) > 15
    for step in steps:
        places = re.findall(r"((?:`\w+`(?: and )?)+) in `([\w/.]+)`", step)
        assert places, step
        for names, path in places:
            text = (ROOT / "launch" / path).read_text(encoding="utf-8")
            for name in re.findall(r"`(\w+)`", names):
                assert re.search(rf"^ *(def|class) {name}\b", text, re.MULTILINE), (name, path)
