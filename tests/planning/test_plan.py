"""A plan under another name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.planning.plan import Plan, build_plan
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
    monkeypatch.setattr("launch.planning.plan.check_flags", refuse)
    assert plan.renamed("other").identity == plan.identity
    assert "chats.jsonl" in before and reads == before
