"""Names that the trainer would look up while it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.errors import UserError
from launch.planning.plan import build_plan
from tests.conftest import composed, fixed_machine, planned

OLMO_CORE = ("stage=sft", "trainer=olmo_core_finetune", "recipe.packing=bins", "model=olmo2_1b")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("stage=sft", "recipe.chat_template=tullu"), "finetune has no chat template 'tullu'; did you mean 'tulu"),
        (("stage=dpo", "flags.chat_template_name=chatml"), "no --chat_template_name 'chatml'; choose from "),
        (("stage=sft", "flags.dataset_transform_fn=[sft_tulu_filter_v2]"), "did you mean 'sft_tulu_filter_v1'"),
        (("stage=dpo", "flags.get_tokenizer_fn=get_tokeniser_tulu_v2_2"), "did you mean 'get_tokenizer_tulu_v2_2'"),
        (("stage=dpo", "recipe.lr_scheduler=cosin"), "no --lr_scheduler_type 'cosin'; did you mean 'cosine'"),
        (
            (*OLMO_CORE, "flags.lr_scheduler_type=polynomial"),
            "choose from linear, cosine, constant",
        ),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match="unknown_name") as refused:
        planned(*overrides)
    [problem] = refused.value.problems
    assert message in str(problem) and (problem.where or "").startswith("override ")


def test_the_names_are_those_of_the_source_here() -> None:
    names = {"chat_template_name": ("mine",)}
    machine = replace(fixed_machine(), registries=names)
    plan = build_plan(composed("stage=sft", "recipe.chat_template=mine"), machine)
    assert plan.flags["chat_template_name"].value == "mine" and not any("template" in patch for patch in plan.patches)
    with pytest.raises(UserError, match="choose from mine"):
        build_plan(composed("stage=sft", "flags.chat_template_name=olmo"), machine)
