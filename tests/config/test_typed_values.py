"""Values with a unit, as the key of launch has them."""

from __future__ import annotations

import pytest

from launch.config.compose import compose_once
from launch.config.line import CommandLine
from launch.config.typed_values import write_value
from launch.slurm.slurm_cli import parse_duration


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("cluster.time", "3d", "3-00:00:00"),
        ("cluster.time", "1d6h", "1-06:00:00"),
        ("cluster.time", "1500m", "1-01:00:00"),
        ("cluster.time", "45min", "00:45:00"),
        ("cluster.time", "04:00:00", "04:00:00"),
        ("cluster.gpu_memory", "48GiB", "48"),
        ("cluster.gpu_memory", "0.5T", "512"),
        ("cluster.memory", "512gb", "512G"),
        ("cluster.memory", "0", "0"),
        ("recipe.max_seq_length", "16K", "16384"),
        ("recipe.checkpoint_steps", "2k", "2000"),
        ("recipe.epochs", "None", "None"),
        ("recipe.max_steps", "unlimited", "null"),
        ("recipe.lora.modules_to_save", "lm_head", "[lm_head]"),
        ("recipe.lora.modules_to_save", "[lm_head]", "[lm_head]"),
        ("model.path", "org/4k", "org/4k"),
    ],
)
def test_a_value_is_written_as_its_key_has_it(key: str, text: str, value: str) -> None:
    assert write_value(key, text) == value
    if value not in ("None", text) and key != "cluster.time":
        compose_once(CommandLine("plan", False, ("stage=demo", f"{key}={value}")))
    if key == "cluster.time":
        assert parse_duration(value) is not None
