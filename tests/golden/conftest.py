"""Shared by the golden files: a terminal with files and stages of a user in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden.lines import FILES, OWN_STAGES
from tests.golden.recorder import Terminal


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    place = Terminal(tmp_path, monkeypatch)
    for name, text in FILES.items():
        path = place.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    stages = Path(os.environ["XDG_CONFIG_HOME"]) / "launch" / "stage"
    stages.mkdir(parents=True)
    for name, text in OWN_STAGES.items():
        (stages / f"{name}.yaml").write_text(text, encoding="utf-8")
    return place
