"""The time model at measured points, and what must hold of it whatever the numbers."""

from __future__ import annotations

import math
import random
import statistics
import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from launch import resources
from launch.api.planning import PlannedRun
from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.planning.batches import SimulatedLoad
from launch.planning.estimate.cards import CPU, H200, rates_for_card
from launch.planning.estimate.setting import Attention, MemorySetting
from launch.planning.estimate.shape import ModelShape, with_parameters
from launch.planning.estimate.speed import (
    _optimizer_seconds,
    doubt_setting,
    forecast_time,
    predict_step,
)
from tests.conftest import fixed_machine, planned
from tests.planning.test_plan_costs import lines_of

SHAPE = with_parameters(ModelShape(0, 32, 4096, 14336, 32, 8, 128256))
PAGE = resources.ROOT / "docs" / "how-to" / "tune.md"
BEGIN, END = "<!-- speed: written by tests/planning/estimate/test_speed.py -->", "<!-- end -->"
CHANCE = random.Random(3)
LENGTHS = tuple(int(min(4096, max(10, CHANCE.lognormvariate(6.1, 1.0)))) for _ in range(1000))


def fit_speed() -> ModuleType:
    path = resources.ROOT / "benchmarks" / "fit_speed.py"
    loader = SourceFileLoader("fit_speed", str(path))
    module = ModuleType("fit_speed")
    sys.modules["fit_speed"] = module  # its dataclasses look their module up
    module.__file__ = str(path)
    loader.exec_module(module)
    return module


def setting(mode: Mode = Mode.zero3, per_device: int = 4, **other: object) -> MemorySetting:
    base = MemorySetting(
        SHAPE, Kind.sft, mode, 8, per_device, 1, 16 // per_device, liger=True, fused_loss=True
    )
    return replace(base, **other)  # type: ignore[arg-type]


def load_of(
    setting: MemorySetting, lengths: tuple[int, ...] = LENGTHS, *, balanced: bool = False
) -> SimulatedLoad:
    return predict_step(setting, lengths, H200, balanced=balanced).load


@pytest.mark.parametrize(
    ("mode", "bytes_per_parameter", "rate", "fixed"),
    [
        (Mode.single, 10 * 2, "memory", "step"),
        (Mode.ddp, 10 * 2, "memory", "step"),
        (Mode.zero2, 36 / 8, "memory", "sharded_step"),  # of this rank's eighth
        (Mode.zero3, 36 / 8, "memory", "sharded_step"),
        (Mode.zero3_offload, 16 / 8, "offload", "sharded_step"),
    ],
)
def test_the_optimizers_step_reads_its_own_shard(
    mode: Mode, bytes_per_parameter: float, rate: str, fixed: str
) -> None:
    rates = H200
    expected = bytes_per_parameter * SHAPE.parameters / getattr(rates, rate)
    expected += getattr(rates, fixed)
    assert _optimizer_seconds(setting(mode), rates) == pytest.approx(expected)


@pytest.fixture(scope="module")
def fit() -> Any:
    script = fit_speed()
    return script.Fit(script.read_points(), H200)


def test_a_measured_step_is_predicted_by_rates_that_the_others_give(fit: Any) -> None:
    errors = sorted(abs(math.exp(-error) - 1) for error in fit.left_out_errors())
    assert len(errors) >= 60
    assert statistics.median(errors) < 0.08
    assert errors[-2] < 0.20 and errors[-1] < 0.30  # the last is an adapter's DPO with SDPA


def point_named(fit: Any, name: str) -> Any:
    [point] = [point for point in fit.points if point.name == name]
    return point


DORA, PLAIN = ("trl_sft recipe.lora.dora=true, 1x4", "trl_sft stage=lora_sft, 1x4")
NF4 = "trl_sft 1x32 nf4 flash_2"


def test_each_measured_step_is_within_the_stated_uncertainty(fit: Any) -> None:
    """Twice its standard deviation for each, and once for the kinds of adapters and single rows."""
    single = [point for point in fit.points if point.setting.micro_batch == 1]
    kinds = {DORA, PLAIN, NF4}
    assert kinds < {point.name for point in single} and len(single) >= 8
    for point in fit.points:
        doubt = doubt_setting(point.setting)
        own = 0.0 if doubt is None else doubt.deviation
        deviation = math.hypot(H200.bias, H200.spread, own)
        allowed = deviation if point in single else 2 * deviation
        assert abs(point.error(H200)) < allowed, point.name


def test_dora_is_predicted_as_much_slower_as_it_was(fit: Any) -> None:
    """The seconds of both are in benchmarks/h200_optimizers_8b.json: 4.557 and 2.314."""
    dora, plain = point_named(fit, DORA), point_named(fit, PLAIN)
    assert dora.seconds / plain.seconds == pytest.approx(1.97, abs=0.01)
    predicted = [
        predict_step(point.setting, point.lengths, H200).seconds for point in (dora, plain)
    ]
    assert predicted[0] / predicted[1] == pytest.approx(dora.seconds / plain.seconds, rel=0.1)


def test_what_an_adapter_costs_has_causes(fit: Any) -> None:
    """Each of them is a term of its own, which the others do not hold."""
    plain = point_named(fit, PLAIN).setting
    dora = point_named(fit, DORA).setting
    assert plain.adapter is not None and dora.adapter is not None

    def arithmetic(setting: MemorySetting) -> float:
        return predict_step(setting, (4096,), H200).parts["arithmetic"]

    def with_adapter(setting: MemorySetting, **other: object) -> MemorySetting:
        return replace(setting, adapter=replace(setting.adapter, **other))  # type: ignore[arg-type]

    one, four = (replace(dora, accumulation=times) for times in (1, 4))
    assert arithmetic(four) == pytest.approx(4 * arithmetic(one))
    # the length of W + B @ A does not depend on the tokens
    few = predict_step(dora, (64,), H200).parts["arithmetic"]
    assert few > 0.1 * arithmetic(dora) > predict_step(plain, (64,), H200).parts["arithmetic"]
    # a second product through the frozen weights, forward twice and backward
    dropped = arithmetic(with_adapter(dora, drops_inputs=True)) - arithmetic(dora)
    weights = SHAPE.layers * SHAPE.layer
    assert dropped == pytest.approx(4 * 4096 * 2 * 3 * weights / H200.matrix)
    assert arithmetic(with_adapter(plain, drops_inputs=True)) == arithmetic(plain)
    # each forward pass dequantizes, and backward once
    nf4 = with_adapter(plain, quantized=True)
    once = 2.5 * weights / H200.streamed
    assert arithmetic(nf4) - arithmetic(plain) == pytest.approx(4 * 3 * once)
    unchecked = [replace(setting, checkpointing=False) for setting in (nf4, plain)]
    assert arithmetic(unchecked[0]) - arithmetic(unchecked[1]) == pytest.approx(4 * 2 * once)
    # frozen weights have no gradients
    full = replace(plain, adapter=None)
    spared = predict_step(full, (4096,), H200).parts["optimizer"]
    assert spared > 1.5 * predict_step(plain, (4096,), H200).parts["optimizer"]


def test_a_single_short_row_waits_for_the_host(fit: Any) -> None:
    nf4 = point_named(fit, NF4)
    step = predict_step(nf4.setting, nf4.lengths, H200)
    assert step.parts["host"] > 3 * step.parts["arithmetic"]
    rows = replace(nf4.setting, micro_batch=16, accumulation=2)
    together = predict_step(rows, nf4.lengths, H200)
    assert together.tokens_per_second > 3 * step.tokens_per_second


@pytest.mark.parametrize(
    ("overrides", "doubt"),
    [
        (("recipe.lora.dora=true",), "one run alone"),
        (("stage=lora_dpo", "recipe.attention=sdpa"), "DPO with SDPA"),
        (("recipe.lora.quantize=nf4",), "one run alone"),
        (("recipe.lora.dora=true", "recipe.lora.quantize=nf4"), "DoRA over 4-bit"),
        (("recipe.lora.dora=true", "recipe.lora.dropout=0.1"), "DoRA and dropout"),
        (("gpus=2", "parallel=ddp"), "on several GPUs"),
        (("gpus=2", "parallel=ddp", "recipe.lora.dora=true"), "with DoRA on several GPUs"),
        (
            ("recipe.lora.targets=[q_proj]", "recipe.lora.target_parameters=[up_proj.weight]"),
            "target_parameters",
        ),
    ],
)
def test_a_plan_names_what_was_hardly_measured(overrides: tuple[str, ...], doubt: str) -> None:
    width = () if "gpus=2" in overrides else ("gpus=1",)
    stage = () if "stage=lora_dpo" in overrides else ("stage=lora_sft",)
    line = (*stage, *width, "cluster.gpu_type=h200", *overrides)
    last = lines_of("time", *line)[-1]
    assert doubt in last and "to 1." in last and "times as long" in last
    plain = "\n".join(lines_of("time", "stage=lora_sft", "gpus=1", "cluster.gpu_type=h200"))
    assert "times as long" not in plain


@pytest.mark.parametrize(
    "words", [("stage=lora_sft",), ("stage=lora_sft", "recipe.lora.dora=true")]
)
def test_the_plan_of_a_measured_line_has_its_seconds(
    fit: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Of the line that benchmarks/h200_optimizers_8b.json has."""
    (tmp_path / "flash_attn").mkdir()
    plan = planned(
        *words,
        "gpus=1",
        "cluster.gpu_type=h200",
        "recipe.max_seq_length=4096",
        "recipe.packing=none",
        "recipe.per_device_batch_size=1",
        "recipe.global_batch_size=4",
        "recipe.gradient_checkpointing=true",
        machine=replace(fixed_machine(), packages=(tmp_path,)),
    )
    memory = PlannedRun(plan).memory
    assert memory is not None
    found = forecast_time(plan, memory)
    measured = point_named(fit, f"trl_sft {words[-1]}, 1x4").seconds
    assert found.step == pytest.approx(measured, rel=0.1)


def test_the_rates_are_those_that_the_script_fits(fit: Any) -> None:
    assert max(abs(fit.step())) < 0.03  # of the logarithm: one more step changes hardly a rate
    spread = math.sqrt(sum(error**2 for error in fit.errors) / len(fit.errors))
    assert spread == pytest.approx(H200.spread, abs=0.03)


def test_the_hand_written_recipe_is_the_slowest_and_the_fastest_settings_are_predicted_so(
    fit: Any,
) -> None:
    """The order is what a search needs."""
    chats = [
        point for point in fit.points if point.setting.ranks == 4 and point.setting.kind == Kind.sft
    ]
    chats = [point for point in chats if point.setting.attention == Attention.flash]
    measured = sorted(chats, key=lambda point: point.tokens)
    predicted = sorted(chats, key=_predicted_rate)
    assert measured[0] is predicted[0] and measured[0].setting.checkpointing
    assert {point.setting.micro_batch for point in predicted[-5:]} == {16}


def test_the_page_has_the_errors(fit: Any, request: pytest.FixtureRequest) -> None:
    errors = [abs(math.exp(-error) - 1) for error in fit.left_out_errors()]
    line = (
        f"{len(errors)} measured settings, each predicted by rates that were fitted to the "
        "others: an error of "
    )
    line += f"{statistics.median(errors):.1%} in the median, {max(errors):.1%} at most."
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after
    page = before + BEGIN + "\n".join(["", line, ""]) + END + after
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page


def _predicted_rate(point: Any) -> float:
    return float(point.tokens * math.exp(point.error(H200)))


def test_a_checkpointed_step_is_slower() -> None:
    fast, slow = (predict_step(setting(checkpointing=on), LENGTHS, H200) for on in (False, True))
    assert 1.2 < slow.parts["arithmetic"] / fast.parts["arithmetic"] < 1.4


def test_padding_is_paid_for_and_packing_has_none() -> None:
    padded, packed = (predict_step(setting(packing=on), LENGTHS, H200) for on in (False, True))
    assert padded.load.padding > 0.3 and packed.load.padding == 0
    assert padded.load.tokens == packed.load.tokens
    assert packed.tokens_per_second > padded.tokens_per_second


def test_a_packed_row_pays_for_its_mask_and_flash_attention_does_not() -> None:
    masked = predict_step(setting(per_device=16, packing=True), LENGTHS, H200)
    flash = predict_step(
        setting(per_device=16, packing=True, attention=Attention.flash), LENGTHS, H200
    )
    assert flash.parts["arithmetic"] < 0.7 * masked.parts["arithmetic"]


def test_zero_3_sends_in_every_micro_batch_and_zero_1_once() -> None:
    often, once = (
        predict_step(setting(mode, packing=True), LENGTHS, H200)
        for mode in (Mode.zero3, Mode.zero1)
    )
    assert often.parts["communication"] == pytest.approx(4 * once.parts["communication"], rel=1e-6)
    alone = predict_step(setting(Mode.single, ranks=1), LENGTHS, H200)
    assert alone.parts["communication"] == 0


@pytest.mark.parametrize("mode", [Mode.zero1, Mode.zero3])
@pytest.mark.parametrize("per_device", [1, 2, 8, 16])
def test_dealing_by_length_never_waits_longer(mode: Mode, per_device: int) -> None:
    base = setting(mode, per_device, packing=True)
    as_they_come, by_length = load_of(base), load_of(base, balanced=True)
    assert by_length.imbalance <= as_they_come.imbalance + 1e-9
    assert by_length.tokens == as_they_come.tokens


def test_ranks_that_meet_once_a_step_wait_less() -> None:
    once, often = (
        load_of(setting(mode, 2, packing=True)).imbalance for mode in (Mode.zero1, Mode.zero3)
    )
    assert 1 < once < often


def test_fewer_samples_than_a_global_batch_are_dealt_again() -> None:
    assert load_of(setting(), (100,)).tokens == 12800
    with pytest.raises(ValueError, match="no lengths"):
        load_of(setting(), ())


def test_pairs_pad_both_halves() -> None:
    pairs = setting(kind=Kind.dpo, per_device=2, accumulation=8)
    assert load_of(pairs, (200,)).padded_tokens == pytest.approx(8 * 2 * 8 * 200)


def test_cards_are_known_scaled_or_taken_for_another() -> None:
    assert rates_for_card("NVIDIA H200").measured and rates_for_card("NVIDIA H200").rates == H200
    other = rates_for_card("NVIDIA A100-SXM4-80GB")
    assert not other.measured and other.rates.matrix == pytest.approx(H200.matrix * 312 / 989)
    assert other.rates.bias > H200.bias and "A100" in other.why
    unknown = rates_for_card("Frobnicator 9000")
    assert unknown.rates.bias > other.rates.bias and "Frobnicator 9000" in unknown.why
    assert rates_for_card(None).rates == CPU
