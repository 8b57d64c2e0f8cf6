"""The memory of OLMo-core's trainers, compiled, against the settings that were measured on an
H200.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launch.config.schema import Kind, Mode
from launch.planning.build import build_plan
from launch.planning.estimate import activations
from launch.planning.estimate.forecast import UnknownMemoryError, planned_setting
from launch.planning.estimate.memory import GIB, estimate_memory
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
