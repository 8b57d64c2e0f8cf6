"""Which models are not loaded: those whose weights are not all there, finite and the model's own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.worker.generating import Generator
from launch.worker.model_loading import ModelRequest, load_model
from tests.integration import tiny_stage

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")

Weights = dict[str, Any]
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_stage.make(tmp_path_factory.mktemp("loading")).model


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "model")


def change_weights(folder: Path, change: Callable[[Weights], object]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_layers(folder: Path, layers: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))


def set_number(weights: Weights, number: float) -> None:
    weights[DOWN].view(-1)[3] = number


CHANGES: dict[str, Callable[[Path], object]] = {
    f"NaN or an infinity in {DOWN}": lambda folder: change_weights(
        folder, lambda weights: set_number(weights, float("nan"))
    ),
    "NaN or an infinity in model.layers.0": lambda folder: change_weights(
        folder, lambda weights: set_number(weights, float("-inf"))
    ),
    f"lacks 1 of the model's weights, the first is {DOWN}": lambda folder: change_weights(
        folder, lambda weights: weights.pop(DOWN)
    ),
    "of the model's weights, the first is model.layers.2": lambda folder: change_layers(folder, 3),
    "its config.json 1 layers": lambda folder: change_layers(folder, 1),
}


@pytest.mark.parametrize("found", CHANGES)
def test_a_model_whose_weights_are_not_its_own_is_not_loaded(model: Path, found: str) -> None:
    load_model(model)
    CHANGES[found](model)
    with pytest.raises(ValueError, match=found):
        load_model(model)


def save_adapter(model: Path, folder: Path) -> Path:
    peft = pytest.importorskip("peft")
    loaded, _ = load_model(model)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    peft.get_peft_model(loaded, config).save_pretrained(folder)
    for file in model.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def rename(old: str, new: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        for name in [name for name in weights if old in name]:
            weights[name.replace(old, new)] = weights.pop(name)

    return change


def drop(part: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        for name in [name for name in weights if part in name]:
            del weights[name]

    return change


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (drop("layers.1."), "lacks .*layers.1"),
        (rename("layers.1.", "layers.7."), "(lacks|has) .*layers"),
        (rename("q_proj", "k_proj"), "(lacks|has) .*(k|q)_proj"),
        (lambda weights: [each.fill_(float("nan")) for each in weights.values()], "NaN"),
    ],
)
def test_an_adapter_whose_matrices_are_not_those_of_its_base_is_not_loaded(
    model: Path, tmp_path: Path, change: Callable[[Weights], object], found: str
) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_adapter(model, tmp_path / "adapter")
    load_model(folder)
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=found):
        load_model(folder)


def test_a_token_that_the_model_has_not_is_named(model: Path) -> None:
    conversation = [{"role": "user", "content": "What is 1 plus 2?"}]
    sampling = {"seed": 0, "temperature": 0.0, "top_p": 1.0, "max_tokens": 2}
    generator = Generator(ModelRequest(str(model), False))
    assert generator.answer(conversation, **sampling)["tokens"] > 0
    loaded, _ = load_model(model)
    loaded.resize_token_embeddings(10)
    loaded.save_pretrained(model)
    with pytest.raises(ValueError, match=r"its tokenizer gives token .* its weights have 10"):
        Generator(ModelRequest(str(model), False)).answer(conversation, **sampling)
