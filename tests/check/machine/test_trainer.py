"""Locks of extensions that are built when DeepSpeed is first used."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from launch.check.machine.rule import Host
from launch.check.machine.rules import preflight
from tests.check.machine.driver import find
from tests.check.machine.test_machine import planned

ZERO2 = ("stage=demo", "trainer=trl_sft", "gpus=2", "device=cuda", "parallel=zero2")


def make_old(lock: Path) -> None:
    before = time.time() - 3600
    os.utime(lock, (before, before))


@pytest.mark.parametrize("variable", ["TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"])
def test_a_build_that_was_killed(tmp_path: Path, variable: str) -> None:
    folder = (
        tmp_path
        if variable == "TORCH_EXTENSIONS_DIR"
        else tmp_path / "torch_extensions" / "py311_cu130"
    )
    lock = folder / "fused_adam" / "lock"
    host = Host({variable: str(tmp_path)})
    plan = planned(tmp_path, *ZERO2)
    nothing = find("stale_build_lock", plan, host)
    assert nothing.severity == "pass"

    lock.parent.mkdir(parents=True)
    opened = os.open(lock, os.O_CREAT | os.O_EXCL)  # as torch's FileBaton makes it
    under_way = find("stale_build_lock", plan, host)
    assert under_way.severity == "pass" and under_way.message != nothing.message
    os.close(opened)
    finding = find("stale_build_lock", plan, host)
    assert finding.severity == "warn" and str(lock) in finding.message
    make_old(lock)
    assert find("stale_build_lock", plan, host).severity == "fail"
    alone = planned(tmp_path, "stage=demo", "trainer=trl_sft")
    assert find("stale_build_lock", alone, host).severity == "skipped"


def test_it_stops_a_run_and_can_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    make_old(lock)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert "stale_build_lock" in {problem.id for problem in preflight(planned(tmp_path, *ZERO2))[0]}
    allowed = planned(tmp_path, *ZERO2, "allow=[stale_build_lock]")
    assert "stale_build_lock" in {problem.id for problem in preflight(allowed)[1]}
