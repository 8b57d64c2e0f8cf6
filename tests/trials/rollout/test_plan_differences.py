"""What differs between widths is found in their plans, with numbers that upstream's own arithmetic
gives.
"""

from __future__ import annotations

import functools

import pytest

from launch.planning.build import build_plan
from launch.planning.plan import Plan
from launch.trials.rollout.plan_differences import find_plan_differences, warmup_steps
from tests.conftest import composed, fixed_machine


@functools.cache
def plans(
    *words: str, widths: tuple[int, ...] = (1, 2, 8), mode_at_one: str | None = None
) -> list[Plan]:
    built = []
    for width in widths:
        mode = [f"parallel={mode_at_one}"] if mode_at_one and width == 1 else []
        built.append(build_plan(composed(*words, f"gpus={width}", *mode), fixed_machine()))
    return built


def ids(*words: str, **more: object) -> list[str]:
    return [difference.id for difference in find_plan_differences(plans(*words, **more))]  # type: ignore[arg-type]


def test_the_micro_batch_is_the_same_and_the_accumulation_follows() -> None:
    batches = [plan.batch for plan in plans("stage=sft_25pct")]
    assert {(batch.global_, batch.per_device) for batch in batches} == {(128, 1)}
    assert [batch.accumulation for batch in batches] == [128, 64, 16]


def test_clipping_is_the_same_with_deepspeed_and_without() -> None:
    one, two = plans("stage=sft_25pct", widths=(1, 2))
    assert one.flags["clip_grad_norm"].value == two.flags["clip_grad_norm"].value == 1.0
    assert "--gradient_clipping" in two.command and "--gradient_clipping" not in one.command


def test_one_width_differs_from_nothing() -> None:
    assert find_plan_differences(plans("stage=sft_25pct", widths=(8,))) == ()


def test_open_instruct_has_no_master_weights_without_deepspeed() -> None:
    differences = {
        difference.id: difference for difference in find_plan_differences(plans("stage=sft_25pct"))
    }
    assert list(differences) == [
        "master_weights",
        "warmup_rounding",
        "schedule_rounding",
        "end_of_epoch",
    ]
    assert differences["master_weights"].what.startswith(
        "AdamW updates bf16 weights at gpu1, without DeepSpeed"
    )
    assert "parallel_at_one=zero2" in str(differences["master_weights"].cure)


@pytest.mark.parametrize("mode", ["zero2", "zero3_offload"])
def test_zero_at_one_gpu_is_the_exact_comparison(mode: str) -> None:
    assert "master_weights" not in ids("stage=sft_25pct", mode_at_one=mode)


def test_trl_keeps_its_weights_in_fp32_and_its_schedule_in_steps() -> None:
    assert ids("stage=sft_25pct", "trainer=trl_sft", "data.mix=[{name: some/data}]") == [
        "end_of_epoch"
    ]


def test_the_warm_up_is_rounded_by_the_ranks() -> None:
    """int(100 x 0.1) is 10 at every width; int(50 x 0.03) is 1 on one rank, 12 of 8 steps on
    eight.
    """
    assert "warmup_rounding" not in ids("stage=dpo", "recipe.max_steps=100")
    differences = find_plan_differences(plans("stage=sft", "recipe.max_steps=50"))
    warmup = next(difference for difference in differences if difference.id == "warmup_rounding")
    assert "1 on 1, 1.5 on 2, 1.5 on 8" in warmup.what
    assert warmup.bound == "0.5 optimizer steps"


def test_the_cure_of_the_warm_up_is_one() -> None:
    differences = find_plan_differences(plans("stage=sft", "recipe.max_steps=50"))
    cure = str(
        next(difference for difference in differences if difference.id == "warmup_rounding").cure
    )
    ratio = float(cure.partition("=")[2].split()[0])
    assert {warmup_steps(50, ratio, ranks) for ranks in (1, 2, 4, 8, 64)} == {1.0}
    assert "warmup_rounding" not in ids(
        "stage=sft", "recipe.max_steps=50", f"recipe.warmup_ratio={ratio}"
    )


@pytest.mark.parametrize(
    ("steps", "ratio", "ranks", "expected"), [(12, 0.03, 1, 0.0), (12, 0.03, 4, 0.25)]
)
def test_warmup_by_hand(steps: int, ratio: float, ranks: int, expected: float) -> None:
    """The second of these starts at a rate of 0 and the first does not: measured,
    docs/explanation/gates.md.
    """
    assert warmup_steps(steps, ratio, ranks) == expected


def test_the_end_of_an_epoch_is_bounded_by_the_widest() -> None:
    differences = find_plan_differences(
        plans("stage=sft", "recipe.per_device_batch_size=2", widths=(1, 8))
    )
    assert next(
        difference for difference in differences if difference.id == "end_of_epoch"
    ).bound == ("at most 14 samples of an epoch are seen twice on 8 ranks")


def test_the_sharding_of_an_olmo_core_trainer_has_no_bound() -> None:
    differences = find_plan_differences(
        plans("stage=dpo", "trainer=dpo", "model=olmo2_1b", "model.sft=some/model")
    )
    assert [difference.id for difference in differences] == [
        "pairs_weighed_by_tokens",
        "olmo_core_sharding",
    ] and differences[1].bound is None


def test_pairs_that_weigh_by_their_ranks_tokens_are_reported() -> None:
    """Upstream olmo_core_train_modules.py:236-243; a packed batch is one micro batch."""
    words = ("stage=dpo", "trainer=dpo", "model=olmo2_1b", "model.sft=some/model")
    assert "pairs_weighed_by_tokens" in ids(*words, widths=(2, 8))
    assert "pairs_weighed_by_tokens" not in ids(*words, "recipe.packing=bins", widths=(2, 8))
    assert "pairs_weighed_by_tokens" not in ids("stage=dpo", widths=(2, 8))


def test_dropout_is_reported() -> None:
    assert "dropout" in ids("stage=sft", "flags.use_lora=true")
    assert "dropout" not in ids("stage=sft", "flags.use_lora=true", "flags.lora_dropout=0.0")
