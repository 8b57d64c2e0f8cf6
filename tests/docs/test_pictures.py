"""The pictures of docs/assets: they show what the product prints."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.integration import warm
from tests.paths import ROOT

ASSETS = ROOT / "docs" / "assets"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    loader = SourceFileLoader("pictures", str(ROOT / "scripts" / "pictures"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def shape(line: str) -> str:
    """Return a line without what differs between two runs: spaces, numbers, digests, times."""
    packed = re.sub(r"\s", "", line)
    packed = re.sub(r"(\d+(h|min|s)(?![a-z]))+", "0s", packed)
    return re.sub(r"(?<=-)([0-9a-f]{16}|[0-9a-f]{8})|\d[\d.,:]*", "0", packed)


def recorded(theme: str) -> str:
    """Return the text of the recorded terminal, without its spaces."""
    drawn = (ASSETS / f"terminal-{theme}.svg").read_text(encoding="utf-8")
    cells = re.findall(r'<text class="launch-r\d+"[^>]*>(.*?)</text>', drawn, re.DOTALL)
    return re.sub(r"\s", "", html.unescape("".join(cells)))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_recorded_refusal_is_what_plan_prints(
    theme: str, pictures: ModuleType, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "launch", *pictures.REFUSED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.sub(r"\s", "", f"$ launch {' '.join(pictures.REFUSED)}{done.stderr}$") in recorded(
        theme
    )


def test_the_picture_of_the_front_page_has_a_caption() -> None:
    """It follows both versions, of which a reader sees one."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    _, _, after = text.partition("assets/terminal-dark.svg")
    _, caption, *_ = after.split("\n\n")
    assert "terminal-light.svg" not in after and re.fullmatch(r"\*[A-Z].{40,}\.\*\s*", caption)


def test_a_picture_asks_no_other_host(pictures: ModuleType) -> None:
    drawn = {path.name: path.read_text(encoding="utf-8") for path in ASSETS.glob("*.svg")}
    for theme, colours in pictures.THEMES.items():
        drawn[f"new {theme}"] = pictures.draw_terminal(["$ launch"], colours)
    assert len(drawn) == 4
    for name, text in drawn.items():
        assert set(re.findall(r"https?://[^\s\"')]+", text)) == {"http://www.w3.org/2000/svg"}, name
        assert "@import" not in text


@pytest.mark.thorough
@pytest.mark.slow
def test_the_recorded_demo_has_every_line_of_a_run(pictures: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    command = [warm.python(), "-m", "launch", *pictures.DEMO]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500
    )
    text = shape(recorded("light"))
    lines = [
        line
        for line in done.stdout.replace(f"{tmp_path}/", "").splitlines()
        if not line.startswith("step ")
    ]
    assert len(lines) > 15
    assert [line for line in lines if shape(line) not in text] == []
