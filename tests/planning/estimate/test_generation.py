"""Memory and time of RL steps against one H200: 1b and 8b shapes, adapters and all weights, both
ways to generate.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from launch import resources
from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.planning.estimate.cards import CardMemory, rates_for_card
from launch.planning.estimate.forecast import forecast_memory
from launch.planning.estimate.generation import cache_bytes, generation_seconds
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.memory_estimate import GENERATION
from launch.planning.estimate.setting import AdapterSetting, Attention, Generation, MemorySetting
from launch.planning.estimate.shape import ModelShape, with_parameters
from tests.conftest import planned

SHAPES = {
    "1b": with_parameters(ModelShape(0, 16, 2048, 8192, 32, 8, 128256, tied=True)),
    "8b": with_parameters(ModelShape(0, 32, 4096, 14336, 32, 8, 128256)),
}
CARD = 139.8
BOUND = 0.15


def runs() -> list[dict[str, Any]]:
    folder = resources.ROOT / "benchmarks"
    grid = json.loads((folder / "h200_rlvr_grid.json").read_text())["settings"]
    older = json.loads((folder / "h200_rlvr_1b.json").read_text())["settings"]
    common = {
        "model": "1b",
        "prompts": 8,
        "samples": 8,
        "per_device": 64,
        "response": 256,
        "continuous": False,
    }
    common |= {"bf16_weights": False, "checkpointing": False, "kl_beta": 0.01}
    return [run for run in grid if run["steps"]] + [
        {**common, "lora": run["setting"] != "all weights", **run} for run in older
    ]


def setting_of(run: dict[str, Any]) -> MemorySetting:
    shape, rows, lora = SHAPES[run["model"]], run["prompts"] * run["samples"], run["lora"]
    prompt = round(max(step["tokens"] for step in run["steps"])) // rows - run["response"]
    adapter = None
    if lora:
        parameters = shape.layers * 16 * sum(map(sum, shape.matrices.values()))
        adapter = AdapterSetting(parameters, 16, tuple(shape.matrices), fp32=True)
    return MemorySetting(
        shape,
        Kind.rlvr,
        Mode.single,
        ranks=1,
        micro_batch=run["per_device"],
        tokens=run["per_device"] * (prompt + run["response"]),
        accumulation=rows // run["per_device"],
        checkpointing=run["checkpointing"],
        attention=Attention.flash,
        autocast=not lora and not run["bf16_weights"],
        chunked_head=True,
        reference=run["kl_beta"] > 0 and not lora,
        adapter=adapter,
        expandable_segments=True,
        generation=Generation(rows, prompt, run["response"], CARD if run["continuous"] else None),
    )


def name_of(run: dict[str, Any]) -> str:
    return f"{run['model']}-{'lora' if run['lora'] else 'all'}-{'continuous' if run['continuous'] else 'transformers'}"


def test_the_runs_are_of_both_shapes_with_and_without_adapters_and_of_both_ways() -> None:
    names = {name_of(run) for run in runs()}
    assert names == {
        f"{model}-{trained}-{way}"
        for model in SHAPES
        for trained in ("all", "lora")
        for way in ("transformers", "continuous")
    }


@pytest.mark.parametrize("run", runs(), ids=name_of)
def test_the_predicted_peak_is_that_of_the_card(run: dict[str, Any]) -> None:
    estimate = estimate_memory(setting_of(run))
    measured = max(step["memory_gib"] for step in run["steps"])
    assert estimate.allocated == pytest.approx(measured, rel=BOUND)
    generates = run["continuous"] or (run["lora"] and run["model"] == "8b")
    assert (estimate.moment == GENERATION) == generates


@pytest.mark.parametrize("run", runs(), ids=name_of)
def test_generation_takes_the_time_of_the_fastest_steps(run: dict[str, Any]) -> None:
    setting = setting_of(run)
    assert setting.generation
    predicted = generation_seconds(
        setting, setting.generation, rates_for_card("NVIDIA H200").rates.memory
    )
    assert predicted == pytest.approx(
        min(step["generation_seconds"] for step in run["steps"]), rel=BOUND
    )


def test_the_widths_of_a_rollout_are_predicted() -> None:
    """All weights of the 1b shape, alone and with ZeRO-3 over two cards."""
    record = json.loads((resources.ROOT / "benchmarks" / "h200x2_rollout_rlvr_1b.json").read_text())
    alone, sharded = (width["measured"] for width in record["rollout"]["runs"])
    run = {
        "model": "1b",
        "prompts": 16,
        "samples": 8,
        "per_device": 32,
        "response": 128,
        "kl_beta": 0.01,
    }
    run |= dict.fromkeys(("lora", "continuous", "bf16_weights", "checkpointing"), False)
    setting = setting_of(
        {**run, "steps": [{"tokens": alone["per_second"] * alone["step_seconds"]}]}
    )
    assert setting.generation
    assert estimate_memory(setting).allocated == pytest.approx(alone["memory_gib"], rel=BOUND)
    half = replace(setting.generation, rows=setting.generation.rows // 2)
    both = replace(
        setting, mode=Mode.zero3, ranks=2, accumulation=2, autocast=False, generation=half
    )
    assert estimate_memory(both).allocated == pytest.approx(sharded["memory_gib"], rel=BOUND)


def test_a_token_of_an_8b_model_takes_128_kib() -> None:
    setting = setting_of(next(run for run in runs() if run["model"] == "8b"))
    assert cache_bytes(setting, 1, 1) == 128 * 1024


def test_the_whole_step_is_sampled_at_once_so_that_one_card_cannot_hold_tulu_s() -> None:
    plans = [planned("stage=rlvr", f"gpus={gpus}") for gpus in (1, 8)]
    card = CardMemory(CARD, "H200")
    one, eight = (forecast_memory(plan, {}, card=card, lengths=None, flash=True) for plan in plans)
    assert one.fit == "won't fit" and eight.fit == "fits"
    assert one.worst and one.worst.moment == GENERATION
    assert one.setting and one.setting.generation == Generation(768, 2048, 2048)
    assert one.setting.reference
    without = planned("stage=rlvr", "gpus=1", "recipe.kl_beta=0")
    free = forecast_memory(without, {}, card=card, lengths=None, flash=True).setting
    assert free and free == replace(one.setting, reference=False)


def test_continuous_batching_takes_half_of_what_is_free() -> None:
    overrides = ("stage=lora_rlvr", "recipe.generation=continuous", "allow=[bf16_sampling]")
    plan = planned(*overrides, f"cluster.gpu_memory={CARD}")
    forecast = forecast_memory(plan, {}, card=None, lengths=None, flash=True)
    assert (
        forecast.setting
        and forecast.setting.generation
        and forecast.setting.generation.card_gib == CARD
    )
    unknown = forecast_memory(planned(*overrides), {}, card=None, lengths=None, flash=True)
    assert unknown.why == "continuous batching takes a share of the GPU: set cluster.gpu_memory=GIB"
