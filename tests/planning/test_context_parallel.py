"""Ranks that share a row count as one, in the batch, the memory and what the run has to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launch.planning.estimate.planned_setting import planned_setting
from tests.conftest import fixed_machine, planned, problem_ids, problems

STAGE = (
    "stage=sft",
    "trainer=olmo_core_finetune",
    "model=olmo2_1b",
    "recipe.packing=bins",
)
ULYSSES = "flags.cp_strategy=ulysses"


@pytest.mark.parametrize(
    ("degree", "gpus", "accumulation"),
    [(1, 8, 16), (2, 8, 32), (4, 8, 64), (8, 8, 128), (2, 4, 64)],
)
def test_the_batch_is_split_over_ranks_with_rows_of_their_own(
    degree: int, gpus: int, accumulation: int
) -> None:
    plan = planned(*STAGE, f"flags.cp_degree={degree}", ULYSSES, f"gpus={gpus}")
    assert (plan.batch.width, plan.batch.data_ranks) == (gpus, gpus // degree)
    assert plan.batch.accumulation == accumulation
    assert plan.flags["gradient_accumulation_steps"].value == accumulation
    expected = f"context_parallel={degree}"
    assert (expected in plan.command) is (degree > 1)


def test_a_global_batch_that_does_not_divide_names_what_does() -> None:
    overrides = ("flags.cp_degree=2", ULYSSES, "gpus=8", "recipe.global_batch_size=6")
    [problem] = problems(*STAGE, *overrides)
    assert problem.id == "batch_not_divisible"
    assert "a width of 2, 4, 6 or 12" in str(problem.cure)


def test_memory_counts_the_share_of_a_row() -> None:
    overrides = (*STAGE, "gpus=8", "recipe.max_seq_length=4096")
    whole = planned_setting(planned(*overrides), {}, flash=True)
    half = planned_setting(planned(*overrides, "flags.cp_degree=2", ULYSSES), {}, flash=True)
    assert (whole.tokens, half.tokens) == (4096, 2048)


@pytest.mark.parametrize(
    ("overrides", "id"),
    [
        (("flags.cp_degree=3", "gpus=8"), "context_parallel"),
        (("flags.cp_degree=16", "gpus=8"), "context_parallel"),
        (("flags.cp_degree=16", "gpus=8", "nodes=2"), "context_parallel"),
        (("flags.cp_degree=2", "device=cpu", "processes=2"), "context_parallel"),
        (
            ("flags.cp_degree=2", "gpus=8", ULYSSES, "recipe.per_device_batch_size=2"),
            "context_parallel_rows",
        ),
        (
            ("flags.cp_degree=2", "gpus=8", ULYSSES, "flags.rope_scaling_factor=8"),
            "ulysses_rope_scaling",
        ),
    ],
)
def test_what_cannot_work_is_refused(overrides: Sequence[str], id: str) -> None:
    assert problem_ids(*STAGE, *overrides) == [id]


def test_a_ring_needs_its_package(tmp_path: Path) -> None:
    ring = (*STAGE, "flags.cp_degree=2", "gpus=8")
    machine = replace(fixed_machine(), packages=(tmp_path,))
    assert problem_ids(*ring, machine=machine) == ["ring_needs_package"]
    assert planned(*ring, ULYSSES, machine=machine).batch.ranks_per_row == 2
    (tmp_path / "ring_flash_attn").mkdir()
    assert planned(*ring, machine=machine).batch.ranks_per_row == 2
