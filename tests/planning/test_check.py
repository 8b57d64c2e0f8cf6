"""A plan's flags against the trainers' schemas, and the trainers' YAML files against them too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.config.compose import Composed
from launch.config.recipe_keys import KEYS
from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.checks import named_flags
from launch.planning.plan import Plan
from launch.upstream.pin.lock import locked_schema
from launch.upstream.schema import Schema
from tests.conftest import composed, fixed_machine

STAGES = {
    "finetune": ["stage=sft"],
    "trl_sft": ["stage=sft"],
    "olmo_core_finetune": ["stage=sft", "model=olmo2_1b", "recipe.packing=bins"],
    "dpo_tune_cache": ["stage=dpo"],
    "trl_dpo": ["stage=dpo"],
    "trl_kto": ["stage=kto"],
    "dpo": ["stage=dpo", "model=olmo2_1b"],
    "reward_modeling": ["stage=rm"],
}


def argv_of(config: Composed, schema: Schema | None = None) -> list[str]:
    """The checked words of a composed stage, by the lock's schema unless another one is given."""
    used = schema or locked_schema(config.config.trainer.name)
    plan: Plan = build_plan(
        config, replace(fixed_machine(), schemas={config.config.trainer.name: used})
    )
    return list(plan.command[plan.command.index("--") + 1 :])


def refusal(*overrides: str) -> list[tuple[str, str]]:
    with pytest.raises(UserError) as refused:
        argv_of(composed(*overrides))
    return [(problem.id, str(problem)) for problem in refused.value.problems]


@pytest.mark.parametrize("trainer", STAGES)
def test_every_trainer_file_fits_its_trainer(trainer: str) -> None:
    """Every flag that a trainer's YAML names exists in the schema, and the stage's values are of
    its types.
    """
    config = composed(*STAGES[trainer], f"trainer={trainer}")
    argv = argv_of(config)
    assert set(named_flags(config.config.trainer)) <= set(locked_schema(trainer).fields)
    flags = [word.removeprefix("--") for word in argv if word.startswith("--")]
    assert len(flags) == len(set(flags)) > 10


def test_a_renamed_flag_upstream_names_the_row_of_the_recipe_key() -> None:
    schema = locked_schema("finetune")
    fields = {name: field for name, field in schema.fields.items() if name != "clip_grad_norm"}
    with pytest.raises(UserError) as refused:
        argv_of(composed("stage=sft"), replace(schema, fields=fields))
    (problem,) = refused.value.problems
    assert problem.id == "stale_allowlist"
    assert problem.where == KEYS["max_grad_norm"].place
    assert "clip_grad_norm" in problem.message


def test_every_mistake_is_told_at_once_with_where_it_was_said() -> None:
    problems = refusal(
        "stage=sft",
        "flags.use_flash_attn=true",
        "flags.timeout=soon",
        "flags.dataset_transform_fn=a",
    )
    assert [kind for kind, _ in problems] == ["unknown_flag", "bad_type", "bad_type"]
    assert "override flags.use_flash_attn" in problems[0][1] and "#1567" in problems[0][1]
    assert "override flags.timeout" in problems[1][1]
    assert "write [a]" in problems[2][1]


@pytest.mark.parametrize(
    ("overrides", "kind", "says"),
    [
        (["stage=sft", "flags.chat_template=tulu"], "unknown_flag", "chat_template_name"),
        (["stage=sft", "flags.mixer_list=[a]"], "unknown_flag", "dataset_mixer_list"),
        (["stage=sft", "flags.num_epochs=2"], "unknown_flag", "num_train_epochs"),
        (["stage=dpo", "flags.num_train_epochs=2"], "unknown_flag", "num_epochs"),
        (
            ["stage=dpo", "flags.gradient_checkpointing=true"],
            "unknown_flag",
            "activation_memory_budget",
        ),
        (["stage=dpo", "flags.attn_backend=flash_2"], "unknown_flag", "attn_implementation"),
        (["stage=sft", "recipe.lr_scheduler=cosin"], "bad_choice", "cosine"),
        (["stage=sft", "flags.learnin_rate=1"], "unknown_flag", "learning_rate"),
        (
            ["stage=sft", "flags.final_lr_ratio=0.1", "recipe.lr_scheduler=cosine"],
            "contradiction",
            "finetune.py:3",
        ),
        (
            ["stage=sft", "flags.try_launch_beaker_eval_jobs=true"],
            "contradiction",
            "finetune.py:335",
        ),
    ],
)
def test_messages_say_what_to_write(overrides: list[str], kind: str, says: str) -> None:
    ((id, text),) = refusal(*overrides)
    assert id == kind
    assert says in text


@pytest.mark.parametrize(
    "overrides",
    [
        ["stage=dpo", "flags.max_grad_norm=-1"],
        ["stage=sft", "flags.clip_grad_norm=-2"],
    ],
)
def test_values_that_upstream_takes_and_misuses_are_refused(overrides: list[str]) -> None:
    assert [kind for kind, _ in refusal(*overrides)] == ["refused_value"]
    assert argv_of(composed(*overrides, "allow=[refused_value]"))


@pytest.mark.parametrize("stage", ["sft", "dpo", "rm"])
def test_a_repository_is_said_once_with_its_namespace(stage: str) -> None:
    """Upstream puts the entity in front of hf_repo_id whatever it holds (finetune.py:437)."""
    ((kind, text),) = refusal(f"stage={stage}", "flags.hf_repo_id=org/name")
    assert kind == "refused_value"
    assert "hub.push=OWNER/NAME" in text
