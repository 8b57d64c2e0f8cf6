"""An open-instruct checkout where verifiers look for its functions."""

from __future__ import annotations

import pytest

from tests.upstream.checkouts import checkout


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    if (root := checkout()) is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR, or fetch the submodule")
    monkeypatch.setenv("PYTHONPATH", str(root))
