"""A model, rows and the old sources that the comparisons share."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    """A two-layer Llama whose mean loss has a gradient shorter than 1, as in real training: only
    the sum is clipped.
    """
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
def kit(before_1024: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.Kit:
    """What both sides of a comparison start from."""
    chats, pairs = runs.write_rows(tmp_path_factory.mktemp("rows"))
    return runs.Kit(before_1024, model, chats, pairs)


@pytest.fixture
def measure(model: Path, record_property: Callable[[str, object], None]) -> runs.Measure:
    """Measure how far two models are apart, print it, and put it into the report of the test."""

    def apart(left: runs.Trained, right: runs.Trained, name: str = "distance") -> float:
        figure = runs.distance(left, right, model)
        record_property(name, figure)
        print(f"{name} {figure:.3g}")
        return figure

    return apart
