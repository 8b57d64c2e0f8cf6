"""The attention of TRL's trainers where the recipe leaves it open, and what packing costs without
flash attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launch.planning.attention import packed_cost
from launch.planning.build import build_plan
from launch.planning.estimate.shape import ModelShape
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine

INSTALLED = {"torch": "2.11.0", "flash-attn": "2.8.3"}
LLAMA = ModelShape(8.03e9, 32, 4096, 14336, 32, 8, 128256)


def planned(
    *overrides: str, card: str | None = "NVIDIA H200", versions: dict[str, str] | None = None
) -> Plan:
    machine = replace(
        fixed_machine(), card=card, versions=INSTALLED if versions is None else versions
    )
    return build_plan(composed(*overrides), machine)


def implementation(plan: Plan) -> Any:
    flag = plan.flags.get("attn_implementation")
    return flag.value if flag else None


@pytest.mark.parametrize("stage", ["lora_sft", "lora_dpo", "sft trainer=trl_sft"])
def test_flash_attention_where_it_is_installed(stage: str) -> None:
    plan = planned(*f"stage={stage}".split())
    assert implementation(plan) == "flash_attention_2"
    assert str(plan.attention) == "flash_attention_2 (auto: flash-attn 2.8.3 is installed)"
    assert [warning.id for warning in plan.warnings] == []


@pytest.mark.parametrize(
    ("overrides", "card", "versions", "why"),
    [
        ([], "NVIDIA H200", {"torch": "2.11.0"}, "flash-attn is not installed"),
        ([], "Tesla V100-SXM2-32GB", INSTALLED, "no kernels for Tesla V100"),
        ([], "Tesla T4", INSTALLED, "no kernels for Tesla T4"),
        (["recipe.precision=fp32"], "NVIDIA H200", INSTALLED, "does not compute in fp32"),
        ([], None, {}, "not on this machine"),
    ],
)
def test_sdpa_otherwise(
    overrides: list[str], card: str | None, versions: dict[str, str], why: str
) -> None:
    plan = planned("stage=lora_sft", *overrides, card=card, versions=versions)
    assert implementation(plan) is None
    assert plan.attention is not None
    assert plan.attention.implementation == "sdpa"
    assert why in plan.attention.why


@pytest.mark.parametrize(
    "card", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L4", "NVIDIA RTX 4090", None]
)
def test_cards_that_have_kernels(card: str | None) -> None:
    assert implementation(planned("stage=lora_sft", card=card)) == "flash_attention_2"


def test_the_choice_does_not_change_the_identity() -> None:
    assert planned("stage=lora_sft").identity == planned("stage=lora_sft", versions={}).identity


def test_what_the_recipe_sets_holds() -> None:
    plan = planned("stage=lora_sft", "recipe.attention=sdpa", "recipe.packing=none")
    assert (implementation(plan), plan.warnings) == ("sdpa", ())


def test_open_instruct_chooses_by_itself() -> None:
    assert planned("stage=sft").attention is None


@pytest.mark.parametrize(("packing", "row"), [("flatten", "16,384"), ("bins", "4,096")])
def test_packing_without_flash_attention_warns_of_its_cost(packing: str, row: str) -> None:
    plan = planned("stage=lora_sft", "recipe.attention=sdpa", f"recipe.packing={packing}")
    warning = next(warning for warning in plan.warnings if warning.id == "packing_without_flash")
    assert row in warning.message and "GiB" in warning.message


@pytest.mark.parametrize(
    ("line", "row", "has_mask"),
    [
        ("stage=sft trainer=finetune recipe.per_device_batch_size=4", "16,384", True),
        ("stage=lora_sft trainer=finetune", "16,384", True),
        ("stage=dpo recipe.per_device_batch_size=2", "8,192", False),
        ("stage=dpo recipe.per_device_batch_size=2 recipe.attention=sdpa", "8,192", False),
    ],
)
def test_so_does_open_instructs(line: str, row: str, has_mask: bool) -> None:
    words = (*line.split(), "recipe.packing=flatten")
    warnings = planned(*words, versions={"torch": "2.11.0"}).warnings
    [warning] = [problem for problem in warnings if problem.id == "packing_without_flash"]
    assert row in warning.message
    assert ("GiB" in warning.message) == has_mask
    if "sdpa" not in line:
        for versions in (INSTALLED, {}):
            assert "packing_without_flash" not in [
                problem.id for problem in planned(*words, versions=versions).warnings
            ]


def test_the_cost_of_a_packed_row() -> None:
    """At 8 x 4,096 tokens the square of an 8B model costs about as much as its matrices."""
    assert packed_cost(LLAMA, 8 * 4096, 4096) == pytest.approx(2.0, abs=0.1)
    assert packed_cost(LLAMA, 4096, 4096) == pytest.approx(1.07, abs=0.02)
    assert packed_cost(LLAMA, 8 * 4096, 4096, masked=False) == pytest.approx(1.5, abs=0.05)
