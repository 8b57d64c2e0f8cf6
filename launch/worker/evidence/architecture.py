"""Checks that OLMo-core's model computes what the config.json of the model's folder says.

The trainers build it from a preset and from flags (olmo_core_utils.py:426-458), and export it with
that config.json (olmo_core_utils.py:583-609). Weights of another shape fail to load. What changes
no shape does not: heads, rotations, the epsilon of the norms and the windows of the layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..json_codec import without_none
from . import Evidence

ARCHITECTURE = "architecture"
CONFIG = "config.json"
_YARN = "yarn"
# transformers/modeling_rope_utils.py, `_compute_yarn_parameters`
_YARN_DEFAULTS = {"beta_fast": 32, "beta_slow": 1}
_FULL = "full_attention"  # of transformers' `layer_types`
# The values of scaled rotations that both sides have.
_SCALING = (
    "rope_type",
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
)


def check_architecture(built: Any, config: Any) -> Evidence:
    """Compare a model of OLMo-core with transformers' configuration, layer by layer.

    `built`: olmo_core.nn.transformer.Transformer, on any device; no weight is read. `config`:
    transformers.PretrainedConfig.
    """
    how = "the preset that was built, and the config.json that the saved model gets"
    layers = list(built.blocks.values())
    differences = []
    for name, trained, saved in (
        ("num_attention_heads", _heads(layers, "n_heads"), config.num_attention_heads),
        ("num_key_value_heads", _heads(layers, "n_kv_heads"), config.num_key_value_heads),
        ("rms_norm_eps", _epsilon(layers), getattr(config, "rms_norm_eps", None)),
    ):
        if trained is not None and saved is not None and trained != saved:
            differences.append(f"{name} {trained} for {saved}")
    differences += _compare_layers(layers, config)
    if not differences:
        return Evidence(ARCHITECTURE, CONFIG, how).judge(CONFIG, True)
    found = ", ".join(differences)
    return Evidence(ARCHITECTURE, found, how).judge(CONFIG, False)


def _heads(layers: list[Any], name: str) -> int | None:
    """Return a count of heads of the first layer that has attention."""
    for layer in layers:
        count = getattr(layer.attention, name, None)
        if count is not None:
            return int(count)
    return None


def _epsilon(layers: list[Any]) -> float | None:
    norm = getattr(layers[0], "feed_forward_norm", None)
    return None if norm is None else float(norm.eps)


def _compare_layers(layers: list[Any], config: Any) -> list[str]:
    """Return what the first layer that differs in a value has, for each of the values."""
    kinds = getattr(config, "layer_types", None) or [_FULL] * len(layers)
    differences: dict[str, str] = {}
    for number, (layer, kind) in enumerate(zip(layers, kinds, strict=False)):
        rope = getattr(layer.attention, "rope", None)
        if rope is None:  # a layer without rotations, which the shapes of its weights show
            continue
        saved = _saved_values(config, kind)
        for name, value in _trained_values(layer.attention).items():
            if value != saved[name]:
                sentence = f"{name} {_show(value)} for {_show(saved[name])} in layer {number}"
                differences.setdefault(name, sentence)
    return list(differences.values())


def _trained_values(attention: Any) -> dict[str, Any]:
    """Return the rotations and the window of a layer of OLMo-core."""
    window = getattr(attention.backend, "window_size", (-1, -1))[0]
    scaling = attention.rope.scaling
    return {
        "rope_theta": float(attention.rope.theta),
        "rope_scaling": None if scaling is None else _scaling_of(scaling.to_hf_config()),
        # flash attention counts the tokens before the present one (olmo_core/nn/hf/config.py)
        "sliding_window": None if window == -1 else window + 1,
    }


def _saved_values(config: Any, kind: str) -> dict[str, Any]:
    """Return the same of a layer of transformers, whose rotations may differ by the kind of layer."""
    rotations = config.rope_parameters
    rotations = rotations.get(kind, rotations)
    scaled = rotations.get("rope_type", "default") != "default"
    return {
        "rope_theta": float(rotations["rope_theta"]),
        "rope_scaling": _scaling_of(rotations) if scaled else None,
        "sliding_window": None if kind == _FULL else getattr(config, "sliding_window", None),
    }


def _scaling_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known values of scaled rotations; those that are null are left out."""
    known: dict[str, Any] = without_none({name: values.get(name) for name in _SCALING})
    if known["rope_type"] == _YARN:
        factor = 0.1 * math.log(known["factor"]) + 1.0
        known = {**_YARN_DEFAULTS, "attention_factor": factor, **known}
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in known.items()
    }


def _show(value: Any) -> str:
    """Return a value as it is read in a sentence."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return f"{value['rope_type']} x{value.get('factor', 1):g}"
    return f"{value:g}"
