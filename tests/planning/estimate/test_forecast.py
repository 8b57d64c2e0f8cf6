"""What a plan says of its memory: the setting behind it, the card, the data's lengths, and what is
not known.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.planning.estimate.cards import CardMemory, describe_unknown_card
from launch.planning.estimate.forecast import (
    MemoryFit,
    MemoryForecast,
    classify_fit,
    describe_forecast,
    forecast_memory,
)
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.out_of_memory import find_remedy
from launch.planning.estimate.planned_setting import UnknownMemoryError, planned_setting
from launch.planning.estimate.planned_shape import planned_shape
from launch.planning.estimate.setting import Attention, longest_micro_batch
from launch.planning.lengths import Histogram, Lengths
from launch.worker.json_codec import to_json
from tests.conftest import planned

CARD = CardMemory(139.8, "a card")
CHATS = Lengths(Kind.sft, Histogram.of([100] * 900 + [600] * 90 + [3000] * 10), None)
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
}


def forecast(
    *overrides: str, lengths: Lengths | None = None, card: CardMemory | None = CARD
) -> MemoryForecast:
    return forecast_memory(planned(*overrides), {}, card=card, lengths=lengths, flash=False)


def test_the_setting_of_a_plan_is_what_the_trainer_will_see() -> None:
    overrides = (
        "stage=sft",
        "gpus=8",
        "recipe.per_device_batch_size=4",
        "recipe.liger=true",
        "recipe.packing=flatten",
    )
    setting = planned_setting(planned(*overrides), {}, flash=False)
    assert (setting.mode, setting.ranks, setting.micro_batch, setting.accumulation) == (
        Mode.zero3,
        8,
        4,
        4,
    )
    assert setting.tokens == 4 * 4096 and setting.rows == 1 and setting.masked
    assert (
        setting.liger and setting.fused_loss and setting.checkpointing and setting.optimizer.fused
    )
    flash = planned_setting(
        planned(*overrides, "flags.gradient_checkpointing=false"), {}, flash=True
    )
    assert flash.attention == Attention.flash and not flash.masked and not flash.checkpointing


def test_dpo_runs_both_halves_of_a_pair_and_keeps_the_logits() -> None:
    overrides = ("stage=dpo", "gpus=8", "recipe.per_device_batch_size=2", "recipe.liger=true")
    setting = planned_setting(
        planned(*overrides, "recipe.gradient_checkpointing=true"), {}, flash=False
    )
    assert setting.rows == 4 and setting.tokens == 4 * 2048
    assert setting.liger and not setting.fused_loss and setting.checkpointing


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["stage=rm"], "trainer=reward_modeling"),
        (["stage=sft", "flags.use_lora=true"], "--use_lora"),
        (["stage=sft", "model.path=somebody/else"], "the shape of somebody/else"),
        (["stage=demo"], "GPUs only"),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(overrides: list[str], why: str) -> None:
    with pytest.raises(UnknownMemoryError, match=why):
        planned_setting(planned(*overrides), {}, flash=False)
    prediction = forecast(*overrides)
    assert prediction.worst is None and prediction.fit == MemoryFit.unknown
    assert (
        describe_forecast(prediction)[0].startswith("unknown: ")
        and why in describe_forecast(prediction)[0]
    )
    assert to_json(prediction)["fit"] == "unknown" and why in to_json(prediction)["why_unknown"]


def test_the_shape_is_read_from_the_model_that_is_here(tmp_path: Path) -> None:
    words = (f"model.path={tmp_path}", "allow=[incomplete_model]")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    shape = planned_shape(planned("stage=sft", *words), {})
    assert shape is not None and (shape.layers, shape.key_width, shape.tied) == (2, 32, True)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": "mixtral"}))
    assert planned_shape(planned("stage=sft", *words), {}) is None
    (tmp_path / "config.json").write_text("{")
    assert planned_shape(planned("stage=sft", *words), {}) is None


@pytest.mark.parametrize("model", ["llama3_1_8b", "qwen2_5_7b"])
@pytest.mark.parametrize(
    "line",
    [
        "stage=lora_sft",
        "stage=lora_dpo",
        "stage=lora_sft trainer=finetune",
        "stage=lora_dpo trainer=dpo_tune_cache",
    ],
)
def test_adapters_and_4_bit_weights_are_covered(line: str, model: str) -> None:
    words = (*line.split(), f"model={model}", "gpus=1")
    full, bf16, nf4 = (
        forecast(*words, override).worst
        for override in ("recipe.lora.rank=null", "recipe.lora.rank=16", "recipe.lora.quantize=nf4")
    )
    assert full and bf16 and nf4
    assert full.total > bf16.total > nf4.total
    plan = planned(*words)
    shape = planned_shape(plan, {})
    assert shape and plan.lora
    own, gib = 4 * plan.lora.count_parameters(shape), 2**30
    assert bf16.parameters == pytest.approx((2 * shape.parameters + own) / gib, rel=1e-6)
    assert (bf16.gradients, bf16.optimizer) == (
        pytest.approx(own / gib),
        pytest.approx(2 * own / gib),
    )
    matrices = shape.layers * shape.layer
    # bytes; upstream's QLoRA raises them to fp32
    other = 4 if "finetune" in line or "tune_cache" in line else 2
    packed = 0.516 * matrices + other * (shape.parameters - matrices)
    assert nf4.parameters == pytest.approx((packed + own) / gib, rel=0.01)


def test_an_adapter_is_divided_under_zero3_only() -> None:
    parameters = {
        mode: forecast("stage=lora_sft", "gpus=4", f"parallel={mode}").worst
        for mode in ("ddp", "zero2", "zero3")
    }
    assert all(parameters.values())
    ddp, zero2, zero3 = (
        estimate.parameters if estimate else 0.0 for estimate in parameters.values()
    )
    assert ddp == zero2 > 3 * zero3


def test_an_evaluation_is_a_moment_of_its_own() -> None:
    """Its batch and its logits count, without gradients; a small one is never the peak."""
    words = ("stage=sft", "trainer=trl_sft", "gpus=1", "recipe.per_device_batch_size=2")
    none, equal, default, large = (
        estimate_memory(planned_setting(planned(*words, *more), {}, flash=True))
        for more in (
            (),
            ("flags.eval_strategy=steps", "flags.per_device_eval_batch_size=2"),
            ("flags.eval_strategy=steps",),
            ("flags.eval_strategy=steps", "flags.per_device_eval_batch_size=2048"),
        )
    )
    assert "evaluation" not in none.moments
    assert equal.total == none.total and equal.moments["evaluation"] < equal.moments["loss"]
    state = default.parameters + default.optimizer
    of_batch = [estimate.moments["evaluation"] - state for estimate in (equal, default)]
    assert of_batch[1] > of_batch[0], "8 samples at once by default"
    assert large.moment == "evaluation" and large.gradients == 0 and large.total > none.total


def test_precomputed_reference_log_probs() -> None:
    """They save the second copy of the weights; a larger batch of their own may be the peak."""
    words = (
        "stage=dpo",
        "trainer=trl_dpo",
        "gpus=1",
        "recipe.precision=bf16",
        "flags.dtype=bfloat16",
    )
    live, cached, large = (
        estimate_memory(planned_setting(planned(*words, *more), {}, flash=True))
        for more in (
            (),
            ("flags.precompute_ref_log_probs=true",),
            ("flags.precompute_ref_log_probs=true", "flags.precompute_ref_batch_size=512"),
        )
    )
    assert live.parameters == pytest.approx(2 * cached.parameters)
    assert cached.moments["reference pass"] < cached.allocated and cached.moment == live.moment
    assert large.moment == "reference pass" and large.total > cached.total
    assert "reference pass" not in live.moments


def test_the_parts_add_up_to_the_peak_of_one_moment() -> None:
    estimate = estimate_memory(planned_setting(planned("stage=sft", "gpus=8"), {}, flash=False))
    assert sum(estimate.parts().values()) == pytest.approx(estimate.total)
    assert estimate.allocated == pytest.approx(max(estimate.moments.values()))
    assert to_json(estimate)["parts_gib"]["optimizer"] == pytest.approx(
        8.03e9 * 12 / 8 / 2**30, abs=0.01
    )


@pytest.mark.parametrize(
    ("gib", "fit"), [(200, MemoryFit.fits), (62, MemoryFit.tight), (40, MemoryFit.wont)]
)
def test_a_card_within_the_uncertainty_is_tight(gib: float, fit: MemoryFit) -> None:
    estimate = estimate_memory(
        planned_setting(planned("stage=sft", "recipe.liger=true"), {}, flash=False)
    )
    assert 60 < estimate.total < 65
    assert classify_fit(estimate, CardMemory(gib, "")) == fit
    assert classify_fit(estimate, None) == MemoryFit.unknown


def test_without_a_card_there_is_no_verdict_and_what_would_give_one() -> None:
    prediction = forecast("stage=sft", "gpus=8", card=None)
    assert prediction.fit == MemoryFit.unknown
    reason = describe_unknown_card(planned("stage=sft", "gpus=8").config.cluster)
    assert "cluster.gpu_memory=GIB" in reason and "cluster.gpu_type" in reason
    assert describe_forecast(replace(prediction, why_no_card=reason))[-1] == reason
    assert "cluster.gpu_memory" not in " ".join(describe_forecast(forecast("stage=sft", "gpus=8")))


def test_lengths_of_the_data_replace_the_limit() -> None:
    overrides = ("stage=sft", "gpus=8", "recipe.per_device_batch_size=16")
    padded = forecast(*overrides, lengths=CHATS)
    assert padded.longest_tokens == 16 * 3000  # the longest sample is in some micro batch
    packed = forecast(*overrides, "recipe.packing=flatten", lengths=CHATS)
    assert packed.longest_tokens is not None and 3000 < packed.longest_tokens < 16 * 3000
    assert packed.worst and packed.longest and packed.longest.total < packed.worst.total
    assert packed.expected == packed.longest
    lines = describe_forecast(packed)
    assert "the data's longest micro batch" in lines[0] and "16 samples of 4096 tokens" in lines[2]


def test_packed_micro_batches_are_no_longer_than_they_can_be() -> None:
    packed_setting = planned_setting(
        planned("stage=sft", "recipe.packing=flatten"), {}, flash=False
    )
    assert longest_micro_batch(CHATS, packed_setting) == 3000
    even = Lengths(Kind.sft, Histogram.of([500] * 50), None)
    assert longest_micro_batch(even, replace(packed_setting, micro_batch=8)) == 4000


def test_what_would_fit_is_named_and_keeps_the_global_batch() -> None:
    prediction = forecast("stage=sft", "gpus=8", "recipe.per_device_batch_size=16")
    assert prediction.fit != MemoryFit.fits and prediction.remedy is not None
    after = planned(
        "stage=sft", "gpus=8", "recipe.per_device_batch_size=16", *str(prediction.remedy).split()
    )
    assert after.batch.global_ == 128
    again = forecast_memory(after, {}, card=CARD, lengths=None, flash=False)
    assert again.fit == MemoryFit.fits and again.worst is not None
    assert again.worst.total == pytest.approx(prediction.remedy.gib)
    assert any("would fit: recipe.liger=true" in line for line in describe_forecast(prediction))


def test_less_is_tried_before_more_is_given_up() -> None:
    setting = planned_setting(
        planned("stage=sft", "gpus=8", "recipe.per_device_batch_size=16"), {}, flash=False
    )
    fewer = find_remedy(setting, 60, liger=False)
    assert fewer is not None and set(fewer.overrides) == {"recipe.per_device_batch_size"}
    samples = [each.micro_batch * each.accumulation for each in (setting, fewer.setting)]
    assert samples == [16, 16]  # of a rank in each step
    assert find_remedy(setting, 1) is None
    assert forecast("stage=sft", "gpus=1", "model=llama3_1_70b").remedy is None
    lines = describe_forecast(forecast("stage=sft", "gpus=1", "model=llama3_1_70b"))
    assert any("no setting with this global batch" in line for line in lines)


def test_one_rank_is_told_to_leave_deepspeed_out() -> None:
    """ZeRO-2 of 8b on one rank has fp32 copies of everything; nothing with DeepSpeed was said to fit."""
    card = CardMemory(74.5, "a card")
    for mode in ("zero1", "zero2", "zero3"):
        remedy = forecast("stage=sft", "gpus=1", f"parallel={mode}", card=card).remedy
        assert remedy is not None and remedy.overrides["parallel"] == "single"
        line = ("stage=sft", "gpus=1", *str(remedy).split())
        assert forecast(*line, card=card).fit == MemoryFit.fits


@pytest.mark.parametrize("word", ["recipe.lora.init=pissa", "recipe.lora.quantize=nf4"])
def test_weights_that_zero_3_cannot_divide_are_not_told_to_take_it(word: str) -> None:
    words = ("stage=lora_sft", "gpus=2", "recipe.max_seq_length=2048", "parallel=zero2", word)
    for gib in (12.0, 16.0, 20.0, 24.0, 28.0):
        remedy = forecast(*words, card=CardMemory(gib, "a card")).remedy
        if remedy is not None:
            assert remedy.overrides.get("parallel") in (None, "ddp")
            assert "parallel=zero3" not in str(remedy)
    least = {"recipe.lora.init=pissa": 24.0, "recipe.lora.quantize=nf4": 14.0}[word]
    remedy = forecast(*words, card=CardMemory(least, "a card")).remedy
    assert remedy is not None and remedy.overrides["parallel"] == "ddp"


def test_more_of_anything_never_takes_less() -> None:
    overrides = (
        "stage=sft",
        "gpus=8",
        "recipe.per_device_batch_size=4",
        "recipe.gradient_checkpointing=false",
    )
    base = planned_setting(planned(*overrides), {}, flash=False)
    total = estimate_memory(base).total
    assert estimate_memory(replace(base, tokens=2 * base.tokens)).total > total
    assert estimate_memory(replace(base, checkpointing=True)).total < total
    assert estimate_memory(replace(base, liger=True, fused_loss=True)).total < total
    assert estimate_memory(replace(base, ranks=16)).total < total
    by_mode = [
        estimate_memory(replace(base, mode=mode)).total
        for mode in (Mode.zero3, Mode.zero2, Mode.zero1)
    ]
    assert by_mode == sorted(by_mode)
