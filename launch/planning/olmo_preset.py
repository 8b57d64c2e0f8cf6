"""The presets of OLMo-core, by the shape of the model that each builds.

OLMo-core builds a model by the name of a preset. open-instruct has the names of a few hub ids
(olmo_core_utils.py:367-385); for any other model, and each one in a folder, `--config_name` gives it.
"""

from __future__ import annotations

from collections.abc import Collection

from launch.config.schema import TrainerConfig
from launch.planning.estimate.shape import ModelShape
from launch.planning.input_source import InputSource

# The registry of the hub ids that open-instruct has a preset for.
LISTED = "olmo_presets"
# (transformers' model type, hidden size, layers) -> the name of the preset
# (olmo_core/nn/transformer/config.py)
PRESETS = {
    ("olmo2", 128, 4): "olmo2_14M",
    ("olmo2", 2048, 16): "olmo2_1B_v2",
    ("olmo2", 4096, 32): "olmo2_7B",
    ("olmo2", 5120, 40): "olmo2_13B",
    ("olmo2", 5120, 64): "olmo2_32B",
    ("olmo3", 128, 4): "olmo3_14M",
    ("olmo3", 4096, 32): "olmo3_7B",
    ("olmo3", 5120, 64): "olmo3_32B",
    ("olmoe", 2048, 16): "olmoe_1B_7B",
    ("qwen3", 1024, 28): "qwen3_0_6B",
    ("qwen3", 2048, 28): "qwen3_1_7B",
    ("qwen3", 2560, 36): "qwen3_4B",
    ("qwen3", 4096, 36): "qwen3_8B",
    ("qwen3", 5120, 64): "qwen3_32B",
}


def needed_preset(
    trainer: TrainerConfig,
    model: InputSource,
    shape: ModelShape | None,
    listed: Collection[str],
) -> str | None:
    """Return the preset of a model that open-instruct has none for; None where it has one, where
    the trainer takes none, and for a shape that no preset has.

    `listed`: the hub ids that the checkout has a preset for, () where they are unknown.
    """
    if trainer.model_presets is None or shape is None:
        return None
    is_listed = model.local is None and (not listed or model.reference in listed)
    if is_listed:
        return None
    return PRESETS.get((shape.model_type, shape.hidden, shape.layers))
