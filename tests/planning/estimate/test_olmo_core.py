"""The memory of OLMo-core's trainers, compiled, against the settings that were measured on an
H200.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launch.config.kinds import Kind
from launch.config.schema import Mode
from launch.planning.build import build_plan
from launch.planning.estimate import activations
from launch.planning.estimate.memory import estimate_memory
from launch.planning.estimate.memory_estimate import GIB
from launch.planning.estimate.planned_setting import UnknownMemoryError, planned_setting
from launch.planning.estimate.setting import Attention, MemorySetting, longest_micro_batch
from launch.planning.estimate.shape import ModelShape, with_parameters
from launch.planning.lengths import Histogram, Lengths
from tests.conftest import composed, fixed_machine
from tests.planning.estimate.grid import read_settings

# preset olmo2_1B_v2
SHAPE = with_parameters(ModelShape(0, 16, 2048, 8192, 16, 16, 100352, model_type="olmo2"))
ROWS = read_settings("h200_memory_olmo.json")


def name(row: dict[str, Any]) -> str:
    marks = "checkpointed" * row["checkpointing"]
    return f"{row['trainer']} {row['packing']} {row['per_device']}x{row['length']} {marks}".strip()


def setting(row: dict[str, Any]) -> MemorySetting:
    """Every sample is longer than the limit. dpo.py's packed step is one row of each half; see
    planning/batches.py.
    """
    is_dpo, packed = row["trainer"] == "dpo", row["packing"] == "bins"
    micro_batch = 1 if is_dpo and packed else row["per_device"]
    return MemorySetting(
        SHAPE,
        Kind.dpo if is_dpo else Kind.sft,
        Mode.fsdp,
        1,
        micro_batch,
        micro_batch * (2 if is_dpo else 1) * row["length"],
        accumulation=1 if is_dpo and packed else 2,
        packing=packed,
        padding=False,
        checkpointing=row["checkpointing"],
        attention=Attention.flash,
        compiled=True,
    )


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_the_allocated_peak_is_within_a_twentieth(row: dict[str, Any]) -> None:
    assert estimate_memory(setting(row)).allocated == pytest.approx(row["memory_gib"], rel=0.05)


@pytest.mark.parametrize("left_out", [row for row in ROWS if row["trainer"] == "dpo"], ids=name)
def test_a_setting_is_predicted_by_what_the_others_fix(
    left_out: dict[str, Any], monkeypatch: Any
) -> None:
    """The bytes of a logit are the only fitted numbers; one setting alone fixes those of SFT: only
    DPO is asked.
    """
    others = [row for row in ROWS if row is not left_out and row["trainer"] == "dpo"]

    def error(count: int) -> float:
        monkeypatch.setattr(activations, "_COMPILED_LOGITS", {Kind.dpo: count})
        return sum(
            (estimate_memory(setting(row)).allocated / row["memory_gib"] - 1) ** 2 for row in others
        )

    best = min(range(2, 15, 2), key=error)
    monkeypatch.setattr(activations, "_COMPILED_LOGITS", {Kind.dpo: best})
    assert estimate_memory(setting(left_out)).allocated == pytest.approx(
        left_out["memory_gib"], rel=0.10
    )


def test_the_optimizer_of_sft_holds_three_more_copies_and_dpos_one_weight() -> None:
    sft = estimate_memory(
        setting(next(row for row in ROWS if row["trainer"] == "olmo_core_finetune"))
    )
    assert sft.moment == "step" and sft.allocated == pytest.approx(7 * 4 * SHAPE.parameters / GIB)
    dpo = estimate_memory(
        setting(next(row for row in ROWS if row["trainer"] == "dpo" and row["length"] == 1024))
    )
    assert dpo.moment == "step"
    assert dpo.allocated == pytest.approx((4 * 4 * SHAPE.parameters + 4 * SHAPE.embedding) / GIB)


def planned(*words: str) -> MemorySetting:
    line = (
        *words,
        "model=olmo2_1b",
        "gpus=1",
        "recipe.max_seq_length=1024",
        "recipe.global_batch_size=8",
    )
    return planned_setting(build_plan(composed(*line), fixed_machine()), {}, flash=True)


@pytest.mark.parametrize(
    "row",
    read_settings("h200_memory_olmo3.json"),
    ids=lambda row: f"{row['length']} {'checkpointed' * row['checkpointing']}".strip(),
)
def test_olmo_3_on_one_card_is_within_a_twentieth(row: dict[str, Any]) -> None:
    """Predicted before it was measured, on one GPU with the patch olmo_core_single_step."""
    words = [
        "stage=olmo3_7b_one_node",
        "gpus=1",
        f"recipe.max_seq_length={row['length']}",
        f"recipe.global_batch_tokens={2 * row['length']}",
    ]
    if not row["checkpointing"]:
        words += ["recipe.gradient_checkpointing=false", "~flags.activation_checkpointing_mode"]
    found = planned_setting(build_plan(composed(*words), fixed_machine()), {}, flash=True)
    assert estimate_memory(found).allocated == pytest.approx(row["memory_gib"], rel=0.05)


def test_a_plan_has_the_setting_that_its_trainer_runs() -> None:
    sft = planned(
        "stage=sft",
        "trainer=olmo_core_finetune",
        "recipe.packing=bins",
        "recipe.per_device_batch_size=2",
    )
    assert (sft.tokens, sft.accumulation, sft.compiled, sft.packing) == (2048, 4, True, True)
    lengths = Lengths(Kind.sft, Histogram.of([10, 20]), None)
    assert longest_micro_batch(lengths, sft) == 2048  # its rows are full, whatever the data
    packed = planned(
        "stage=dpo", "trainer=dpo", "recipe.packing=bins", "recipe.per_device_batch_size=2"
    )
    assert (packed.tokens, packed.micro_batch, packed.accumulation) == (2048, 1, 1)
    padded = planned(
        "stage=dpo", "trainer=dpo", "recipe.packing=none", "recipe.per_device_batch_size=2"
    )
    assert (padded.tokens, padded.micro_batch, padded.accumulation) == (4096, 2, 4)
    pairs = replace(lengths, kind=Kind.dpo, longer=lengths.tokens)
    assert longest_micro_batch(pairs, padded) == 4 * 20


EAGER = ("recipe.packing=bins", "recipe.gradient_checkpointing=false", "flags.compile_model=false")


def test_what_is_not_compiled_is_not_covered() -> None:
    with pytest.raises(UnknownMemoryError, match="with torch"):
        planned("stage=sft", "trainer=olmo_core_finetune", *EAGER)


@pytest.mark.parametrize(("gpus", "copies"), [(1, 0), (8, 3)])
def test_on_one_gpu_weights_are_updated_one_by_one(gpus: int, copies: int) -> None:
    """The state of 7B is 16 bytes of each weight; a step of all at once adds 12 of each shard."""
    line = ("stage=olmo3_7b_one_node", f"gpus={gpus}", "recipe.max_seq_length=1024")
    plan = build_plan(composed(*line), fixed_machine())
    assert ("olmo_core_single_step" in plan.patches) == (copies == 0)
    requested = planned_setting(plan, {}, flash=True)
    estimate = estimate_memory(requested)
    shape = requested.shape
    step = 4 * (4 + copies) * shape.parameters / gpus
    if not copies:
        step += 3 * 4 * shape.embedding
    assert estimate.moments["step"] == pytest.approx(step / GIB)


def test_machines_hold_copies_of_each_others_shards() -> None:
    """olmo_core_finetune.py:211-218 shards over the GPUs of one machine."""
    one, four = (
        estimate_memory(
            planned_setting(build_plan(composed(*line), fixed_machine()), {}, flash=True)
        )
        for line in (
            ("stage=olmo3_7b_instruct_sft", "gpus=8"),
            ("stage=olmo3_7b_instruct_sft", "gpus=8", "nodes=4"),
        )
    )
    assert (one.parameters, one.optimizer) == (four.parameters, four.optimizer)


def test_parts_that_are_checkpointed_keep_four_states_of_a_layer() -> None:
    line = ("stage=olmo3_7b_one_node", "gpus=8")
    parts, layers = (
        planned_setting(build_plan(composed(*line, *more), fixed_machine()), {}, flash=True)
        for more in ((), ("flags.activation_checkpointing_mode=budget",))
    )
    assert parts.checkpointing and layers.checkpointing
    added = activations.layers_bytes(parts) - activations.layers_bytes(layers)
    assert added == 3 * 32 * 2 * 4096 * 32768
