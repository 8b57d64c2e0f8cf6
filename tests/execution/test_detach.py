"""A run that is to survive its terminal, where the system cannot do that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.messages import outlines

LINE = ("run", "stage=demo", "trainer=trl_sft", "device=cpu", "python=/no/python")


def test_a_system_without_fork_starts_nothing(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fork")
    refused = launch(*LINE, "detach=true")
    assert refused.returncode == 2
    assert outlines(refused.stderr.splitlines()) == ["no_detach at detach"]
    assert not (tmp_path / "runs").exists()
    attached = launch(*LINE)  # the cure leads on to the next problem of this line
    assert attached.returncode == 2 and "[no_interpreter]" in attached.stderr
