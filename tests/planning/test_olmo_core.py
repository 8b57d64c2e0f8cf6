"""Models that OLMo-core's trainers have no preset for are refused in the plan, by upstream's own
table.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.upstream.pin.lock import load_lock
from tests.conftest import composed, fixed_machine
from tests.upstream.checkouts import checkout

SFT = ("stage=sft", "trainer=olmo_core_finetune", "recipe.packing=bins", "gpus=2")
DPO = ("stage=dpo", "trainer=dpo", "gpus=2")


@pytest.fixture
def open_instruct() -> Path:
    folder = checkout()
    if folder is None:
        pytest.skip("no open-instruct checkout: set OPEN_INSTRUCT_DIR or fetch the submodule")
    return folder


def planned(folder: Path | None, *overrides: str) -> Plan:
    machine = replace(fixed_machine(), registries=load_lock().names)
    return build_plan(
        composed(*overrides), replace(machine, upstream=replace(machine.upstream, checkout=folder))
    )


@pytest.mark.parametrize(
    ("width", "patches"),
    [
        (("gpus=1",), {"olmo_core_single_step"}),
        (("gpus=2",), set()),
        (
            ("device=cpu", "processes=1", "recipe.gradient_checkpointing=false"),
            {"olmo_core_on_cpu"},
        ),
    ],
)
def test_one_gpu_and_cpus_need_a_patch_each(width: tuple[str, ...], patches: set[str]) -> None:
    plan = planned(None, *SFT[:3], *width)
    ours = {"olmo_core_single_step", "olmo_core_on_cpu"}
    assert ours & set(plan.patches) == patches


@pytest.mark.parametrize("overrides", [SFT, DPO])
def test_llama_is_refused_and_what_there_is_said(
    overrides: tuple[str, ...], open_instruct: Path
) -> None:
    with pytest.raises(UserError, match=r"(meta-llama|allenai)/") as refused:
        planned(open_instruct, *overrides)
    assert [problem.id for problem in refused.value.problems] == ["no_olmo_preset"]
    planned(open_instruct, *overrides, "model=olmo2_1b")
    planned(open_instruct, *overrides, "flags.config_name=olmo2_1B_v2")


def test_a_hub_id_that_is_nearly_right(open_instruct: Path) -> None:
    with pytest.raises(UserError, match=r"'Qwen/Qwen3-8B'.*\[no_olmo_preset\]"):
        planned(open_instruct, *SFT, "model.path=Qwen/Qwen3-8b")


def test_without_upstreams_table_nothing_is_said(tmp_path: Path) -> None:
    planned(None, *SFT)
    machine = fixed_machine()
    here = replace(machine, upstream=replace(machine.upstream, checkout=tmp_path), registries={})
    build_plan(composed(*SFT), here)
