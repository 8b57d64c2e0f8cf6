"""What a plan asks the worker to prove."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.compose import Composed
from launch.execution.record.evidence import evidence_table, unchecked_settings, unmet_settings
from launch.planning.expectations import (
    allowed_expectations,
    build_expectations,
    overridden_settings,
)
from launch.planning.parallel import resolve_parallel, resolve_width
from launch.worker.expectations import EVIDENCE, STATE
from tests.conftest import composed, machine_in, planned, problems
from tests.data.files import chat, write_lines


def expected(stage: Composed) -> dict[str, str]:
    parallel = resolve_parallel(
        stage.config, stage.config.trainer, resolve_width(stage.config, stage.origins)
    )
    return build_expectations(stage.config, parallel)


@pytest.mark.parametrize(
    ("overrides", "pairs"),
    [
        (
            [
                "stage=sft",
                "gpus=8",
                "recipe.packing=flatten",
                "recipe.liger=true",
                "recipe.max_grad_norm=null",
            ],
            {
                "distributed": "DEEPSPEED",
                "zero_stage": "3",
                "packing": "flatten",
                "liger": "rms_norm,rope,swiglu,fused_linear_cross_entropy",
                "grad_clip": "none",
                "chat_template": "tulu",
                "dtype": "bf16",
            },
        ),
        (
            [
                "stage=dpo",
                "gpus=1",
                "recipe.liger=true",
                "recipe.attention=flash_2",
                "recipe.max_grad_norm=0.5",
            ],
            {
                "distributed": "NO",
                "liger": "rms_norm,rope,swiglu",
                "attention": "flash_2",
                "grad_clip": "0.5",
            },
        ),
        (
            ["stage=demo", "trainer=trl_sft", "recipe.packing=bins"],
            {"packing": "bins", "dtype": "fp32"},
        ),
    ],
)
def test_the_recipe_is_what_is_asked(overrides: list[str], pairs: dict[str, str]) -> None:
    settings = expected(composed(*overrides))
    assert settings.items() >= pairs.items()
    assert settings.keys() <= {*STATE, *EVIDENCE}  # the worker understands all of it


def test_what_the_recipe_leaves_open_is_not_asked() -> None:
    assert {"liger", "attention"}.isdisjoint(expected(composed("stage=sft", "gpus=8")))


SCHEDULE = {"learning_rate", "lr_scheduler", "warmup_ratio"}


@pytest.mark.parametrize(
    ("overrides", "pairs"),
    [
        (
            ["stage=sft"],
            {
                "learning_rate": "5e-06",
                "lr_scheduler": "linear",
                "warmup_ratio": "0.03",
                "weight_decay": "0.0",
                "epochs": "2",
            },
        ),
        # the default of finetune.py
        (["stage=sft", "recipe.warmup_ratio=null"], {"warmup_ratio": "0.03"}),
        # that of transformers, and a trainer that has no warm-up
        (["stage=sft", "trainer=trl_sft", "recipe.warmup_ratio=null"], {"warmup_ratio": "0.0"}),
        (["stage=rm"], {"warmup_ratio": "0.0", "epochs": "1"}),
        (["stage=sft", "recipe.max_steps=50"], {"max_steps": "50"}),
        (["stage=dpo"], {"beta": "5.0", "loss": "dpo_norm"}),
        (["stage=dpo", "trainer=trl_dpo"], {"beta": "5.0", "loss": "sigmoid_norm"}),
        (["stage=lora_sft"], {"lora_alpha": "32", "lora_dropout": "0.0"}),
        (
            ["stage=demo_rlvr"],
            {"temperature": "1.0", "response_length": "16", "kl_beta": "0.0", "clip_range": "0.2"},
        ),
    ],
)
def test_the_numbers_of_the_recipe_are_asked(overrides: list[str], pairs: dict[str, str]) -> None:
    settings = expected(composed(*overrides))
    assert settings.items() >= pairs.items()
    assert ("epochs" in settings) != ("max_steps" in settings)


@pytest.mark.parametrize(
    "override",
    [
        "flags.learning_rate=1e-6",
        "flags.final_lr_ratio=0.1",
        "flags.sequence_parallel_size=2",
        "recipe.lr_scheduler=reduce_lr_on_plateau",
    ],
)
def test_no_rate_is_asked_where_the_recipe_does_not_decide_it(override: str) -> None:
    settings = expected(composed("stage=sft", "gpus=8", override))
    assert SCHEDULE.isdisjoint(settings)
    assert "weight_decay" in settings


def test_a_number_of_steps_among_the_flags_leaves_the_epochs_open() -> None:
    settings = expected(composed("stage=sft", "gpus=8", "flags.max_train_steps=10"))
    assert {"epochs", "max_steps"}.isdisjoint(settings)


def test_a_flag_of_the_users_own_wins_over_the_recipe() -> None:
    settings = expected(
        composed("stage=sft", "gpus=8", "flags.clip_grad_norm=0.3", "flags.packing=true")
    )
    assert {"grad_clip", "packing"}.isdisjoint(settings)
    assert "gradient_checkpointing" in settings


def test_of_olmo_core_the_ranks_and_the_device_are_asked_besides_the_recipe() -> None:
    stage = composed(
        "stage=sft", "trainer=olmo_core_finetune", "recipe.packing=bins", "model=olmo2_1b", "gpus=8"
    )
    settings = expected(stage)
    assert {"distributed", "zero_stage"}.isdisjoint(settings)
    assert (settings["world_size"], settings["device"]) == ("8", "cuda")
    assert (settings["packing"], settings["dtype"], settings["grad_clip"]) == (
        "bins",
        "bf16",
        "1.0",
    )


def test_only_ids_of_expectations_reach_the_worker() -> None:
    stage = composed(
        "stage=sft", "gpus=8", "allow=[refuted_liger,unproven_packing,upstream_mismatch]"
    )
    assert allowed_expectations(stage.config) == ("refuted_liger", "unproven_packing")


def test_a_setting_that_a_flag_replaces_still_counts() -> None:
    stage = composed("stage=sft", "gpus=8", "flags.clip_grad_norm=0.3")
    parallel = resolve_parallel(
        stage.config, stage.config.trainer, resolve_width(stage.config, stage.origins)
    )
    items = unchecked_settings(overridden_settings(stage.config, parallel))
    assert [item.what for item in items] == ["grad_clip"]
    assert evidence_table(items)[0] == "evidence: 0 of 1 requested setting is proven"
    assert unmet_settings(items, []) == []


def test_a_reward_model_of_several_epochs_has_no_falling_schedule() -> None:
    """reward_modeling.py would end it at half of its way (:287, 314)."""
    (refused,) = problems("stage=rm", "gpus=1", "recipe.epochs=2")
    assert refused.id == "epochs_in_schedule"
    assert planned("stage=rm", "gpus=1", "recipe.epochs=1").config.recipe.epochs == 1
    constant = planned("stage=rm", "gpus=1", "recipe.epochs=2", "recipe.lr_scheduler=constant")
    assert constant.config.recipe.epochs == 2


@pytest.mark.parametrize(
    ("overrides", "pairs"),
    [
        (["stage=sft"], {"seed": "8", "max_seq_length": "4096"}),
        (["stage=rm", "recipe.seed=3"], {"seed": "3", "max_seq_length": "2048"}),
        (["stage=sft", "flags.seed=1", "flags.max_seq_length=8"], {}),
        (["stage=demo_rlvr"], {"seed": "0"}),  # its prompts are checked before the run
        (["stage=demo", "trainer=trl_sft", "flags.data_seed=1"], {"max_seq_length": "1024"}),
    ],
)
def test_the_order_and_the_limit_are_asked_where_a_flag_does_not_replace_them(
    overrides: list[str], pairs: dict[str, str]
) -> None:
    settings = expected(composed(*overrides))
    of_rows = {name: settings[name] for name in ("seed", "max_seq_length") if name in settings}
    assert of_rows == pairs


def test_the_shares_of_local_data_are_asked(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [chat("a", "b")] * 400)
    write_lines(tmp_path / "b.jsonl", [chat("b", "a")] * 400)

    def mixture_of(*overrides: str) -> str | None:
        plan = planned(*overrides, machine=machine_in(tmp_path))
        return build_expectations(plan.config, plan.parallel, plan.inputs.mixture).get("mixture")

    stage = ("stage=demo", "trainer=finetune")
    assert mixture_of(*stage) == "1.0"
    both = "data.mix=[{name: ./a.jsonl}, {name: ./b.jsonl, share: 0.5}]"
    assert mixture_of(*stage, both) == "1.0,0.5"
    assert mixture_of(*stage, both, "data.fraction=0.5") == "0.5,0.25"
    twice = "data.mix=[{name: ./a.jsonl}, {name: ./a.jsonl, share: 0.5}]"
    assert mixture_of(*stage, twice) is None
    assert mixture_of("stage=sft", "gpus=8") is None  # of the hub


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        ("all-linear", "all-linear"),
        ("[all-linear]", "all-linear"),
        ("[v_proj,q_proj]", "q_proj,v_proj"),
        ("[self_attn.q_proj,v_proj,q_proj]", "q_proj,v_proj"),
        ("['.*_proj']", None),
    ],
)
def test_the_layers_of_an_adapter_are_asked_by_their_names(
    targets: str, layers: str | None
) -> None:
    stage = composed("stage=lora_sft", "trainer=trl_sft", f"recipe.lora.targets={targets}")
    assert expected(stage).get("lora_targets") == layers


def test_the_rows_are_not_asked_where_the_trainer_holds_some_out(tmp_path: Path) -> None:
    def mixture_of(*overrides: str) -> str | None:
        plan = planned("stage=demo", "trainer=trl_sft", *overrides, machine=machine_in(tmp_path))
        return build_expectations(plan.config, plan.parallel, plan.inputs.mixture).get("mixture")

    assert mixture_of() == "1.0"
    assert mixture_of("data.validation=0.1") is None
