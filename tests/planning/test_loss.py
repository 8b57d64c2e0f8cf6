"""How a plan says that the loss is weighted, when it warns, and what a trainer has in place of a
stage's own value.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import resources
from launch.api.plan_facts import plan_facts
from launch.config.line import override_key
from launch.errors import actions_of
from launch.worker.json_codec import to_json
from tests.conftest import planned, problem

OLMO = ("trainer=olmo_core_finetune", "model=olmo2_1b", "recipe.packing=bins")
STAGES = resources.ROOT / "configs" / "tulu" / "stage"
CHECKED = ("micro_batch_means",)


def warned(*overrides: str) -> list[str]:
    return [str(warning) for warning in planned(*overrides).warnings if warning.id in CHECKED]


def loss_line(*overrides: str) -> str:
    [line] = [text for name, text in plan_facts(planned(*overrides), None, None) if name == "loss"]
    return line


@pytest.mark.parametrize("stage", ["sft", "sft_25pct", "sft_10pct"])
@pytest.mark.parametrize("width", ["gpus=1", "gpus=8", "device=cpu processes=2"])
def test_tulu_3_s_stages_have_the_sum(stage: str, width: str) -> None:
    plan = planned(f"stage={stage}", *width.split())
    assert "token_sums" in plan.patches and "token_weighting" not in plan.patches
    assert plan.config.recipe.max_grad_norm == 1.0
    assert to_json(plan)["loss"].startswith("the sum over all tokens of the global batch")
    assert warned(f"stage={stage}", *width.split()) == []


@pytest.mark.parametrize("stage", ["sft", "sft_25pct", "sft_10pct"])
def test_another_trainer_has_the_nearest_and_the_plan_names_it(stage: str) -> None:
    trl = planned(f"stage={stage}", "gpus=8", "trainer=trl_sft")
    assert (trl.config.recipe.loss_averaging, trl.resolved["recipe"]["loss_averaging"]) == (
        "tokens",
        "tokens",
    )
    assert "--expect loss_averaging=tokens" in " ".join(trl.command)
    assert to_json(trl)["replaced"] == {"loss_averaging": "sum"}
    line = loss_line(f"stage={stage}", "gpus=8", "trainer=trl_sft")
    place = trl.origins.of("recipe.loss_averaging").where
    assert str(place).startswith("configs/tulu/stage/sft")  # not the stage, which may inherit it
    assert line == (
        "the mean over all tokens of the global batch: every token has the same weight; this is the "
        f"nearest to what {place} sets, as trl_sft has no recipe.loss_averaging=sum"
    )
    olmo = planned(f"stage={stage}", "gpus=8", *OLMO)
    assert (olmo.config.recipe.loss_averaging, olmo.resolved["recipe"]["loss_averaging"]) == (
        None,
        None,
    )
    assert "olmo_core_finetune has no recipe.loss_averaging=sum" in loss_line(
        f"stage={stage}", "gpus=8", *OLMO
    )
    assert "replaced" not in to_json(planned(f"stage={stage}", "gpus=8"))


@pytest.mark.parametrize("trainer", [("trainer=trl_sft",), OLMO])
def test_what_the_user_wrote_is_refused(trainer: tuple[str, ...]) -> None:
    found, message = problem("stage=sft", "gpus=8", *trainer, "recipe.loss_averaging=sum")
    assert found == "unsupported_recipe" and "recipe.loss_averaging=sum" in message


def test_a_stage_file_of_the_user_is_what_the_user_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCH_CONFIG_DIR", str(tmp_path))
    (tmp_path / "stage").mkdir()
    lines = [
        "# @package _global_",
        "defaults:",
        "  - sft",
        "  - override /trainer: trl_sft",
        "  - _self_",
    ]
    (tmp_path / "stage" / "inherits.yaml").write_text(
        "\n".join([*lines, "recipe: {epochs: 1}", ""])
    )
    (tmp_path / "stage" / "sums.yaml").write_text(
        "\n".join([*lines, "recipe: {loss_averaging: sum}", ""])
    )
    assert planned("stage=inherits", "gpus=8").config.recipe.loss_averaging == "tokens"
    assert problem("stage=sums", "gpus=8")[0] == "unsupported_recipe"


@pytest.mark.parametrize(
    ("overrides", "cure"),
    [
        (("stage=sft", "gpus=8", "recipe.loss_averaging=null"), "recipe.loss_averaging=sum"),
        (
            ("stage=sft", "gpus=1", "recipe.loss_averaging=micro_batch_means"),
            "recipe.loss_averaging=sum",
        ),
        (("stage=demo",), "recipe.loss_averaging=sum"),
        (
            ("stage=sft", "gpus=8", *OLMO),
            "trainer=finetune recipe.packing=flatten recipe.loss_averaging=sum",
        ),
        (("stage=dpo", "gpus=8", "trainer=dpo", "model=olmo2_1b"), "trainer=dpo_tune_cache"),
        (("stage=rlvr", "gpus=8", "recipe.loss=bnpo"), "recipe.loss=dapo"),
    ],
)
def test_a_loss_that_depends_on_the_split_is_warned_of(
    overrides: tuple[str, ...], cure: str
) -> None:
    [warning] = [found for found in planned(*overrides).warnings if found.id in CHECKED]
    assert " ".join(actions_of(warning.cure)[0].sets) == cure
    cured = {override_key(override): override for override in (*overrides, *cure.split())}
    assert warned(*cured.values()) == []


@pytest.mark.parametrize("stage", sorted(path.stem for path in STAGES.glob("*.yaml")))
def test_what_a_shipped_stage_is_told_to_set_plans(stage: str) -> None:
    width = "device=cpu" if stage.startswith("demo") else "gpus=8"
    overrides = (f"stage={stage}", width)
    for warning in planned(*overrides).warnings:
        for action in actions_of(warning.cure) if warning.id in CHECKED else ():
            cured = {override_key(override): override for override in (*overrides, *action.sets)}
            assert warned(*cured.values()) == []


def test_a_batch_of_tokens_is_not_told_of_a_trainer_that_has_none() -> None:
    [warning] = warned("stage=olmo3_7b_one_node", "gpus=8")
    assert "counts its batch in chats" in warning and "trainer=" not in warning


@pytest.mark.parametrize(
    "overrides",
    [
        ("stage=sft", "gpus=8", "recipe.loss_averaging=tokens"),
        ("stage=sft", "gpus=8", "trainer=trl_sft"),
        ("stage=sft", "gpus=1", *OLMO),
        # one micro batch a step
        ("stage=demo", "recipe.loss_averaging=null", "recipe.per_device_batch_size=64"),
        ("stage=demo", "trainer=trl_sft"),
        ("stage=dpo", "gpus=8"),
        ("stage=dpo", "gpus=8", "trainer=trl_dpo"),
        ("stage=rm", "gpus=8"),
        ("stage=rlvr", "gpus=8"),
    ],
)
def test_another_is_not(overrides: tuple[str, ...]) -> None:
    assert warned(*overrides) == []
    line = loss_line(*overrides)
    assert line.startswith(("the mean over ", "the sum over the "))  # Tulu 3's is over all tokens


def test_a_removed_flag_has_its_override() -> None:
    found, message = problem("stage=sft", "gpus=8", "flags.reduce_loss=sum")
    assert found == "unknown_flag" and "#1024" in message
    assert problem("stage=dpo", "gpus=8", "flags.reduce_loss=sum")[0] == "unknown_flag"
