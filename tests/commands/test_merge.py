"""`launch merge` as far as it goes without a base: what it refuses. Real ones:
tests/integration/test_lora.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.execution.record.folder import RunFolder
from launch.execution.record.outcome import Outcome
from tests.check.machine.test_weights import shard
from tests.conftest import Launch
from tests.execution.record.records import write_run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The model of a finished run that trained all weights."""
    run = write_run(tmp_path / "runs" / "sft" / "mine", steps=1)
    RunFolder(run).finish(Outcome(0, 1.0, 1, 1.0))
    shard(run / "model" / "model.safetensors", a=[2, 2])
    return run / "model"


@pytest.fixture
def adapter(model: Path) -> Path:
    """An adapter in its place, whose base is not on this machine."""
    text = '{"peft_type": "LORA", "r": 4, "base_model_name_or_path": "owner/base"}'
    (model / "adapter_config.json").write_text(text, encoding="utf-8")
    shard(model / "adapter_model.safetensors", a=[2, 2])
    return model


def refused(launch: Launch, name: str) -> str:
    """Return the last line on stderr of a merge that ends with exit code 2."""
    done = launch("merge", name)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["mine", "sft/mine"])
def test_a_whole_model_is_not_merged(launch: Launch, model: Path, name: str) -> None:
    line = refused(launch, name)
    assert str(model) in line and line.endswith("[not_an_adapter]")


def test_a_folder_of_somebody_elses_is_not_replaced(launch: Launch, adapter: Path) -> None:
    taken = adapter.with_name("merged")
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    line = refused(launch, "mine")
    assert str(taken) in line and line.endswith("[merged_folder_taken]")
    assert (taken / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_merge_that_fails_leaves_nothing(launch: Launch, adapter: Path) -> None:
    pytest.importorskip("peft", reason="the `train` dependencies are not installed")
    before = sorted(adapter.parent.iterdir())
    line = refused(launch, "mine")
    assert str(adapter) in line and "owner/base" in line and line.endswith("[merge_failed]")
    assert sorted(adapter.parent.iterdir()) == before
