"""Names that the trainer would look up while it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.errors import UserError
from launch.planning.build import build_plan
from tests.conftest import composed, fixed_machine, planned
from tests.messages import values_of

OLMO_CORE = ("stage=sft", "trainer=olmo_core_finetune", "recipe.packing=bins", "model=olmo2_1b")


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        (("stage=sft", "recipe.chat_template=tullu"), {"tullu", "tulu"}),
        (("stage=dpo", "flags.chat_template_name=chatml"), {"--chat_template_name", "chatml"}),
        (("stage=sft", "flags.dataset_transform_fn=[sft_tulu_filter_v2]"), {"sft_tulu_filter_v1"}),
        (
            ("stage=dpo", "flags.get_tokenizer_fn=get_tokeniser_tulu_v2_2"),
            {"get_tokenizer_tulu_v2_2"},
        ),
        (("stage=dpo", "recipe.lr_scheduler=cosin"), {"--lr_scheduler_type", "cosin", "cosine"}),
        ((*OLMO_CORE, "flags.lr_scheduler_type=polynomial"), {"polynomial"}),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    overrides: tuple[str, ...], values: set[str]
) -> None:
    with pytest.raises(UserError, match="unknown_name") as refused:
        planned(*overrides)
    [problem] = refused.value.problems
    assert values <= set(values_of(str(problem))) and (problem.where or "").startswith("override ")


def test_the_names_are_those_of_the_source_here() -> None:
    names = {"chat_template_name": ("mine",)}
    machine = replace(fixed_machine(), registries=names)
    plan = build_plan(composed("stage=sft", "recipe.chat_template=mine"), machine)
    assert plan.flags["chat_template_name"].value == "mine" and not any(
        "template" in patch for patch in plan.patches
    )
    with pytest.raises(UserError, match=r"mine.*\[unknown_name\]"):
        build_plan(composed("stage=sft", "flags.chat_template_name=olmo"), machine)
