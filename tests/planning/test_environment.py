"""The allocator settings of a run: where they are set, what wins over them, and that they train the
same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.planning.build import build_plan
from launch.planning.environment import ALLOCATOR_VARIABLES, has_expandable_segments
from launch.planning.estimate.planned_setting import planned_setting
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine
from tests.messages import values_of


def planned(*overrides: str, **environ: str) -> Plan:
    return build_plan(composed(*overrides), replace(fixed_machine(), environ=environ))


def allocator_settings(plan: Plan) -> dict[str, str]:
    return {name: value for name, value in plan.env.items() if name in ALLOCATOR_VARIABLES}


@pytest.mark.parametrize(
    "overrides",
    [("stage=sft", "gpus=4"), ("stage=dpo", "gpus=1"), ("stage=sft", "trainer=trl_sft")],
    ids=["sft", "dpo", "trl"],
)
def test_gpu_runs_use_expandable_segments(overrides: tuple[str, ...]) -> None:
    plan = planned(*overrides)
    # of newer and of older versions of torch
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    assert allocator_settings(plan) == dict.fromkeys(names, "expandable_segments:True")


def test_a_key_turns_them_off_and_a_cpu_has_none() -> None:
    assert not allocator_settings(planned("stage=sft", "expandable_segments=false"))
    assert not allocator_settings(planned("stage=demo"))


@pytest.mark.parametrize("name", ALLOCATOR_VARIABLES)
def test_the_user_s_own_setting_wins(name: str) -> None:
    plan = planned("stage=sft", **{name: "max_split_size_mb:512"})
    assert not allocator_settings(plan)
    assert not planned_setting(
        plan, {name: "max_split_size_mb:512"}, flash=False
    ).expandable_segments


def test_the_memory_estimate_follows_the_variables() -> None:
    assert planned_setting(planned("stage=sft"), {}, flash=False).expandable_segments
    plan = planned("stage=sft", "expandable_segments=false")
    assert not planned_setting(plan, {}, flash=False).expandable_segments
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512, expandable_segments: True"}
    assert planned_setting(planned("stage=sft", **own), own, flash=False).expandable_segments
    assert not has_expandable_segments(own | {"PYTORCH_ALLOC_CONF": "expandable_segments:False"})


def test_they_are_not_part_of_the_identity() -> None:
    identities = {
        planned("stage=sft", *key).identity for key in ((), ("expandable_segments=false",))
    }
    assert identities == {
        planned("stage=sft", PYTORCH_ALLOC_CONF="backend:cudaMallocAsync").identity
    }


@pytest.mark.parametrize(
    ("variables", "overrides", "advice"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (), [("visible_gpus", "gpus=2")]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ("gpus=1",), []),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ("gpus=8",), [("visible_gpus", "gpus=1")]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ("device=cpu",), []),
        ({"WORLD_SIZE": "8"}, (), [("foreign_world_size", "gpus=8")]),
        ({"WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""}, (), []),
    ],
)
def test_a_width_that_variables_set_elsewhere_is_mentioned(
    variables: dict[str, str], overrides: tuple[str, ...], advice: list[tuple[str, str]]
) -> None:
    warnings = planned("stage=sft", *overrides, **variables).warnings
    ids = ("visible_gpus", "foreign_world_size")
    given = [(warning.id, *values_of(str(warning.cure))) for warning in warnings]
    assert [entry for entry in given if entry[0] in ids] == advice
