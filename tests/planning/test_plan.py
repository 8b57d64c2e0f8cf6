"""A plan under another name, and the warnings of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.planning.build import build_plan
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine, planned

NAME = "rollout-a/gpu8-b"
WANDB = ("tracking=wandb", "tracking_entity=me")


@pytest.mark.parametrize(
    "overrides",
    [
        ("stage=sft_25pct", "gpus=8"),
        ("stage=sft", "gpus=1", *WANDB),
        ("stage=dpo", "gpus=8", *WANDB, "name=mine"),
        ("stage=demo", "trainer=trl_sft", "gpus=0", "tracking=wandb_offline"),
        ("stage=sft", "gpus=1", *WANDB, "flags.exp_name=mine"),
        ("stage=demo", "gpus=0", "cache_only=true", *WANDB),
        (
            "stage=sft",
            "trainer=olmo_core_finetune",
            "recipe.packing=bins",
            "model=olmo2_1b",
            "gpus=2",
            *WANDB,
        ),
    ],
)
def test_a_renamed_plan_is_the_plan_of_that_name(overrides: tuple[str, ...]) -> None:
    """Equal to composing with `name=` and planning again, which refuses a name with a slash."""
    stage = composed(*overrides)
    plain, config = {**stage.plain, "name": NAME}, replace(stage.config, name=NAME)
    anew = build_plan(replace(stage, config=config, plain=plain), fixed_machine())
    renamed = build_plan(stage, fixed_machine()).renamed(NAME)
    assert renamed == anew
    assert renamed.resolved["name"] == NAME
    assert str(renamed.model_dir) in renamed.command
    assert list(renamed.flags) == list(anew.flags)


def test_renaming_neither_reads_nor_checks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def refuse(*_: object) -> None:
        raise AssertionError("the flags are checked again")

    machine = fixed_machine(digest=lambda path: reads.append(path.name))
    plan: Plan = planned("stage=sft", "gpus=8", "data.mix=[{name: ./chats.jsonl}]", machine=machine)
    before = list(reads)
    monkeypatch.setattr("launch.planning.build.check_flags", refuse)
    assert plan.renamed("other").identity == plan.identity
    assert "chats.jsonl" in before and reads == before


TRL_SFT = ("stage=sft", "gpus=8", "trainer=trl_sft")


@pytest.mark.parametrize(
    ("id", "overrides"),
    [
        (
            "best_not_saved",
            (
                *TRL_SFT,
                "data.validation=0.1",
                "recipe.checkpoint_steps=100",
                "recipe.eval_steps=30",
            ),
        ),
        ("bf16_sampling", ("stage=demo_rlvr", "recipe.generation=continuous")),
        ("bins_change_the_batch", (*TRL_SFT, "recipe.packing=bins")),
        (
            "few_cpus",
            ("stage=rlvr", "trainer=grpo_fast", "gpus=8", "flags.num_learners_per_node=[7]"),
        ),
        ("few_steps", ("stage=demo", "recipe.max_steps=1")),
        ("first_of_family", ("stage=sft", "recipe.chat_template=gemma")),
        ("flag_over_recipe", ("stage=sft", "flags.learning_rate=1e-5")),
        (
            "flag_over_recipe",
            ("stage=sft", "recipe.learning_rate=1e-6", "flags.learning_rate=1e-5"),
        ),
        ("foreign_world_size", ("stage=sft", "gpus=8")),
        ("high_learning_rate", ("stage=sft", "recipe.learning_rate=1")),
        ("ineffective_flag", (*TRL_SFT, "flags.hub_strategy=end")),
        ("micro_batch_means", ("stage=sft", "gpus=8", "recipe.loss_averaging=micro_batch_means")),
        ("push_takes_checkpoints", ("stage=dpo", "hub.push=a/b", "recipe.checkpoint_steps=100")),
        ("shape_mismatch", ("stage=sft", "model.shape.parameters=1e9")),
        ("ignored_flag", ("stage=sft", "flags.max_train_samples=5")),
        ("visible_gpus", ("stage=sft", "gpus=8")),
        ("no_effect", ("stage=sft", "recipe.epochs=3", "recipe.max_steps=10")),
        ("repeated_rows", ("stage=sft", "data.fraction=30")),
    ],
)
def test_a_plans_warnings_have_the_severity_of_warnings(
    id: str, overrides: tuple[str, ...]
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1,2", "WORLD_SIZE": "64"}
    machine = replace(fixed_machine(), environ=environ)
    allowed = "allow=[bf16_sampling,flag_over_recipe]"
    plan = planned(*overrides, "recipe.precision=bf16", allowed, machine=machine)
    assert id in [warning.id for warning in plan.warnings]
    assert {warning.severity for warning in plan.warnings} == {"warn"}
    assert not any(warning.stops for warning in plan.warnings)
