"""OLMo-core's preset is found by the shape of a model, and another stage starts from the model that
was exported beside OLMo-core's checkpoints.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.planning.olmo_preset import PRESETS
from tests.conftest import planned

STAGE = ("stage=sft", "trainer=olmo_core_finetune", "recipe.packing=bins", "gpus=1")


def write_config(folder: Path, **changes: object) -> Path:
    """Write the configuration of an Olmo 3 7B."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "olmo3",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "vocab_size": 100278,
    }
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "preset"),
    [
        ({}, "olmo3_7B"),
        ({"model_type": "olmo2"}, "olmo2_7B"),
        ({"hidden_size": 5120, "num_hidden_layers": 64}, "olmo3_32B"),
        ({"model_type": "qwen3", "num_hidden_layers": 36}, "qwen3_8B"),
    ],
)
def test_a_folder_gets_the_preset_of_its_shape(
    tmp_path: Path, changes: dict[str, object], preset: str
) -> None:
    model = write_config(tmp_path / "model", **changes)
    plan = planned(*STAGE, f"model.path={model}")
    assert plan.flags["config_name"].value == preset
    own = planned(*STAGE, f"model.path={model}", "flags.config_name=olmo3_7B")
    assert own.flags["config_name"].value == "olmo3_7B"


def test_a_listed_hub_id_needs_none() -> None:
    plan = planned(*STAGE, "model=olmo2_1b")
    assert "config_name" not in plan.flags
    assert "olmo_core_export" in plan.patches  # another stage starts from what it leaves


def test_a_shape_without_a_preset_gets_none(tmp_path: Path) -> None:
    model = write_config(tmp_path / "model", num_hidden_layers=7)
    plan = planned(*STAGE, f"model.path={model}", "flags.config_name=olmo3_7B")
    assert plan.flags["config_name"].value == "olmo3_7B"
    assert ("olmo3", 4096, 7) not in PRESETS


def test_every_preset_is_olmo_cores() -> None:
    transformer = pytest.importorskip(
        "olmo_core.nn.transformer", reason="the `open-instruct` dependencies are not installed"
    )
    for (_, hidden, layers), name in PRESETS.items():
        config = getattr(transformer.TransformerConfig, name)(vocab_size=128)
        assert (config.d_model, config.n_layers) == (hidden, layers), name


def test_a_stage_starts_from_the_exported_model(tmp_path: Path) -> None:
    output = tmp_path / "model"
    (output / "step8").mkdir(parents=True)
    exported = write_config(output / "hf_model")
    plan = planned(*STAGE, f"model.path={output}")
    assert plan.inputs.model.local == exported
    assert plan.flags["model_name_or_path"].value == str(exported)
    assert plan.saved_model == plan.model_dir / "hf_model"
