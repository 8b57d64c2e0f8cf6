"""A model, rows and the old sources that the comparisons share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.equivalence import runs
from tests.integration import tiny_stage
from tests.paths import ROOT


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The open-instruct checkout, with its history."""
    folder = Path(os.environ.get("OPEN_INSTRUCT_DIR") or ROOT / "external" / "open-instruct")
    if not (folder / "open_instruct" / "finetune.py").is_file():
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    return folder


@pytest.fixture(scope="session")
def before_1024(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last commit with `--reduce_loss`."""
    return runs.unpack(checkout, runs.BEFORE_1024, tmp_path_factory.mktemp("before-1024"))


@pytest.fixture(scope="session")
def release(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commit of Tulu 3's release."""
    return runs.unpack(checkout, runs.RELEASE, tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama whose mean loss has a gradient shorter than 1, as in real training: only the sum is clipped."""
    torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")
    pytest.importorskip("deepspeed", reason="the `open-instruct` dependencies are not installed")
    from transformers import AutoModelForCausalLM

    made = tiny_stage.make(tmp_path_factory.mktemp("equivalence"))
    network = AutoModelForCausalLM.from_pretrained(made.model)
    with torch.no_grad():
        network.model.norm.weight.mul_(0.2)
    network.save_pretrained(made.model)
    return made.model


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Chats and pairs of very different lengths."""
    return runs.write_rows(tmp_path_factory.mktemp("rows"))
