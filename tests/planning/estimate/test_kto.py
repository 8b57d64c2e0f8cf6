"""KTO's memory and time of a step, as they were planned, beside what one H200 measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launch.planning.estimate.cards import H200
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.planned_setting import planned_setting
from launch.planning.estimate.setting import MemorySetting
from launch.planning.estimate.speed import predict_step
from tests.conftest import planned
from tests.planning.estimate.grid import SHAPES, read_settings

ROWS = read_settings("h200_kto.json")


def setting_of(row: dict[str, Any]) -> MemorySetting:
    words = ("gpus=1", "recipe.global_batch_size=32", "recipe.attention=flash_2")
    plan = planned(*row["words"], *words)
    return replace(planned_setting(plan, {}, flash=True), shape=SHAPES[row["model"]])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['length']}")
def test_a_measured_run_is_within_a_tenth(row: dict[str, Any]) -> None:
    """Every row was cut at the limit."""
    setting = setting_of(row)
    assert setting.tokens == setting.micro_batch * row["length"]
    assert estimate_memory(setting).allocated == pytest.approx(row["memory_gib"], rel=0.1)
    setting = replace(setting, padding=False)  # no row was shorter than another
    seconds = predict_step(setting, (row["length"],), H200).seconds
    assert seconds == pytest.approx(row["step_seconds"], rel=0.1)
    assert row["refuted"] == 0
