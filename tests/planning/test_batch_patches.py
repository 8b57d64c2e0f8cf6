"""Which patches a plan wants; recipe.balanced and recipe.loss_averaging: which trainers have
them.
"""

from __future__ import annotations

import pytest

from launch.planning.command import is_decisive, patch_conditions
from launch.planning.flags import Flags
from launch.trials.rollout.plan_differences import find_plan_differences
from launch.worker.patches import PATCHES
from tests.conftest import planned, problems


def problem_of(*overrides: str) -> str:
    [found] = problems(*overrides)
    return str(found)


def test_every_condition_is_of_a_patch_and_each_value_of_a_patch_has_one() -> None:
    plan = planned("stage=sft", "gpus=8")
    flags = Flags(plan.flags, warnings=(), subset=None, template=plan.template)
    conditions = set(patch_conditions(plan.config, plan.parallel, plan.inputs, flags))
    assert (
        {patch.id for patch in PATCHES.values() if patch.takes_value} <= conditions <= set(PATCHES)
    )


def test_what_only_reports_is_no_part_of_the_identity() -> None:
    undecisive = {patch for patch in PATCHES if not is_decisive(f"{patch}=value")}
    reports = {"dataset_cache", "saving", "dpo_steps", "finetune_steps", "reward_steps"}
    reports |= {"olmo_core_steps", "olmo_core_packed_data", "lengths"}
    reports |= {"olmo_core_async_saves", "olmo_core_signals", "olmo_core_export"}
    assert undecisive == reports | {
        "adapter_inputs",
        "olmo_core_first_checkpoint",
        "universal_checkpoint",
    }


def test_they_are_patches_that_change_the_identity() -> None:
    plain = planned("stage=sft", "gpus=8")
    assert {"balanced_batches", "token_weighting", "token_sums"} & set(plain.patches) == {
        "token_sums"
    }
    assert "--expect loss_averaging=sum" in " ".join(plain.command)
    balanced = planned(
        "stage=sft", "gpus=8", "recipe.balanced=true", "recipe.loss_averaging=tokens"
    )
    # before those that log the figures
    assert balanced.patches[:2] == ("balanced_batches", "token_weighting")
    assert balanced.flags == plain.flags | {"output_dir": balanced.flags["output_dir"]}
    assert balanced.identity != plain.identity
    overrides = " ".join(balanced.command)
    assert "--expect balanced=true" in overrides and "--expect loss_averaging=tokens" in overrides


def test_the_trainers_own_way_is_no_patch() -> None:
    means = planned("stage=sft", "gpus=8", "recipe.loss_averaging=micro_batch_means")
    assert not {"token_weighting", "token_sums"} & set(means.patches)
    assert means.identity == planned("stage=sft", "gpus=8", "recipe.loss_averaging=null").identity
    trl = planned("stage=demo", "trainer=trl_sft", "recipe.loss_averaging=tokens")
    assert "token_weighting" not in trl.patches
    assert "--expect loss_averaging=tokens" in " ".join(trl.command)


def test_dpo_is_balanced_and_never_weighted() -> None:
    plan = planned("stage=dpo", "gpus=8", "recipe.balanced=true")
    assert plan.patches.index("balanced_batches") < plan.patches.index("dpo_steps")
    message = problem_of("stage=dpo", "gpus=8", "recipe.loss_averaging=tokens")
    assert message.endswith("[unsupported_recipe]")


@pytest.mark.parametrize(
    "overrides",
    [
        ["stage=demo", "trainer=trl_sft", "recipe.balanced=true"],
        ["stage=demo", "trainer=trl_sft", "recipe.loss_averaging=micro_batch_means"],
        ["stage=demo_dpo", "trainer=trl_dpo", "recipe.balanced=true"],
    ],
)
def test_who_has_it_not_says_why(overrides: list[str]) -> None:
    message = problem_of(*overrides)
    assert message.endswith("[unsupported_recipe]")


def test_what_does_not_go_together() -> None:
    message = problem_of(
        "stage=sft", "gpus=8", "recipe.balanced=true", "flags.sequence_parallel_size=2"
    )
    assert message.endswith("[balanced_sequence_parallel]")
    for averaging in ("tokens", "sum"):
        own = f"recipe.loss_averaging={averaging}"
        message = problem_of("stage=sft", "gpus=8", own, "flags.load_balancing_loss=true")
        assert message.endswith("[weighted_auxiliary_loss]")


def test_widths_deal_differently_unless_tokens_are_weighted() -> None:
    def ids(*overrides: str) -> set[str]:
        plans = [planned(*overrides, "recipe.balanced=true", f"gpus={width}") for width in (1, 8)]
        return {difference.id for difference in find_plan_differences(plans)}

    assert "other_micro_batches" in ids("stage=sft", "recipe.loss_averaging=null")
    assert "other_micro_batches" not in ids("stage=sft", "recipe.loss_averaging=tokens")
    assert "other_micro_batches" not in ids("stage=sft")
    assert "other_micro_batches" not in ids("stage=dpo")
