"""The keys of recipe.lora: the flags they become, and what is rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.config.recipe_keys import KEYS
from launch.demo import make_model
from launch.errors import UserError
from launch.planning.build import build_plan
from launch.planning.estimate.shape import ModelShape, shape_from_yaml, with_parameters
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine, planned, problem_ids

NF4 = ("stage=lora_sft", "recipe.lora.quantize=nf4")
TINY = with_parameters(ModelShape(0, 2, 128, 512, 4, 2, 2000))


def values(plan: Plan) -> dict[str, object]:
    return {name: flag.value for name, flag in plan.flags.items()}


def test_trl_gets_its_own_flags_and_bf16_weights() -> None:
    flags = values(planned("stage=lora_sft", "recipe.lora.dropout=0.05"))
    adapter = {"use_peft": True, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05}
    assert adapter.items() <= flags.items()
    assert flags["lora_target_modules"] == ["all-linear"]
    assert flags["dtype"] == "bfloat16"
    assert "load_in_4bit" not in flags


def test_a_list_of_targets() -> None:
    flags = values(planned("stage=lora_dpo", "recipe.lora.targets=[q_proj,v_proj]"))
    assert flags["lora_target_modules"] == ["q_proj", "v_proj"]
    assert values(planned("stage=lora_dpo", "recipe.lora.targets=q_proj"))[
        "lora_target_modules"
    ] == ["q_proj"]


def test_4_bit_weights() -> None:
    flags = values(
        planned("stage=lora_sft", "recipe.lora.quantize=nf4", "gpus=2", "parallel=zero2")
    )
    wanted = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "use_bnb_nested_quant": True,
        "dtype": "bfloat16",
    }
    assert wanted.items() <= flags.items()
    assert (
        values(planned("stage=lora_sft", "trainer=finetune", "recipe.lora.quantize=nf4"))[
            "use_qlora"
        ]
        is True
    )


@pytest.mark.parametrize("stage", ["lora_sft trainer=finetune", "lora_dpo trainer=dpo_tune_cache"])
def test_open_instructs_own_flags(stage: str) -> None:
    flags = values(
        planned(*f"stage={stage}".split(), "recipe.lora.rank=64", "recipe.lora.alpha=16")
    )
    assert {
        "use_lora": True,
        "lora_rank": 64,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
    }.items() <= flags.items()
    assert "dtype" not in flags


def test_without_a_rank_no_flag_of_an_adapter_is_set() -> None:
    for stage in ("sft", "dpo"):
        for trainer in ("finetune", "trl_sft") if stage == "sft" else ("dpo_tune_cache", "trl_dpo"):
            flags = values(planned(f"stage={stage}", f"trainer={trainer}"))
            assert not {"use_peft", "use_lora", "lora_r", "lora_alpha", "dtype"} & set(flags)


@pytest.mark.parametrize("model", ["llama3_1_8b", "qwen2_5_7b"])
@pytest.mark.parametrize("stage", ["lora_sft", "lora_dpo"])
def test_the_stages_need_no_override_for_either_model(stage: str, model: str) -> None:
    plan = planned(f"stage={stage}", f"model={model}")
    assert plan.lora is not None
    assert plan.lora.rank == 16


@pytest.mark.parametrize(
    ("overrides", "ids"),
    [
        (["stage=lora_sft", "recipe.lora.rank=0"], ["out_of_range"]),
        (["stage=lora_sft", "recipe.lora.rank=-4"], ["out_of_range"]),
        (["stage=lora_sft", "recipe.lora.rank=1025"], ["lora_rank"]),
        (["stage=lora_sft", "model=qwen2_5_7b", "recipe.lora.rank=513"], ["lora_rank"]),
        (["stage=lora_sft", "recipe.lora.alpha=0"], ["out_of_range"]),
        (["stage=lora_sft", "recipe.lora.dropout=1"], ["out_of_range"]),
        (["stage=lora_sft", "recipe.lora.targets=[q_prj]"], ["lora_targets"]),
        (["stage=lora_sft", "recipe.lora.targets=[]"], ["lora_targets"]),
        (["stage=lora_sft", "recipe.lora.targets=[q_proj,lm_head]"], ["lora_targets"]),
        (["stage=sft", "recipe.lora.alpha=8"], ["lora_without_rank"]),
        (["stage=lora_sft", "recipe.lora.quantize=nf4", "gpus=8"], ["quantized_parallel"]),
        ([*NF4, "trainer=finetune", "gpus=2", "parallel=zero2"], ["quantized_parallel"]),
        (["stage=demo_lora", "trainer=finetune", "recipe.lora.quantize=nf4"], ["quantized_parallel"]),
        ([*NF4, "trainer=finetune", "recipe.liger=true"], ["quantized_liger"]),
        (["stage=dpo", "recipe.lora.rank=8"], ["lora_checkpointing"]),
        # before the demo's model is made
        (["stage=demo_lora", "recipe.lora.rank=129"], ["lora_rank"]),
        (["stage=demo_lora", "recipe.lora.targets=[q_prj]"], ["lora_targets"]),
        (["stage=demo_lora", "trainer=olmo_core_finetune"], ["unsupported_recipe"]),
        (["stage=lora_sft", "trainer=olmo_core_finetune"], ["unsupported_recipe"]),
        (["stage=lora_dpo", "trainer=dpo"], ["unsupported_recipe"]),
        (["stage=rm", "recipe.lora.rank=8"], ["unsupported_recipe"]),
        (["stage=dpo", "trainer=dpo", "model=olmo2_1b", "recipe.lora.rank=8"], ["unsupported_recipe"]),
        (["stage=lora_sft", "trainer=finetune", "recipe.lora.targets=[q_proj]"], ["unsupported_recipe"]),
        (["stage=lora_dpo", "trainer=dpo_tune_cache", "recipe.lora.start=continue"], ["unsupported_recipe"]),
    ],
)  # fmt: skip
def test_what_cannot_work_is_rejected(overrides: list[str], ids: list[str]) -> None:
    assert problem_ids(*overrides) == ids


@pytest.mark.parametrize(
    ("rank", "model"), [(1024, "llama3_1_8b"), (512, "qwen2_5_7b"), (1, "llama3_1_8b")]
)
def test_ranks_at_the_border(rank: int, model: str) -> None:
    assert planned("stage=lora_sft", f"model={model}", f"recipe.lora.rank={rank}").lora is not None


def test_the_trainers_flag_warns_that_a_recipe_key_exists() -> None:
    warnings = planned("stage=sft", "trainer=trl_sft", "flags.use_peft=true").warnings
    assert [warnings[0].id, str(warnings[0].cure).removeprefix("set ")] == [
        "flag_over_recipe",
        "recipe.lora.rank=16",
    ]


def test_the_shape_in_the_demos_file_is_that_of_the_model_that_is_made() -> None:
    shape = shape_from_yaml(composed("stage=demo_lora").config.model.shape)
    assert shape is not None
    made = (make_model.LAYERS, make_model.HIDDEN, make_model.HEADS, make_model.VOCABULARY)
    assert (shape.layers, shape.hidden, shape.heads, shape.vocabulary) == made
    assert (shape.intermediate, shape.kv_heads) == (2 * make_model.HIDDEN, make_model.HEADS)
    assert shape.parameters == pytest.approx(with_parameters(shape).parameters, rel=1e-3)


def test_ligers_dpo_loss_is_refused() -> None:
    kernels = "flags.liger_kernel_config={fused_linear_cross_entropy: true}"
    for cached in ((), ("flags.precompute_ref_log_probs=true",)):
        assert problem_ids("stage=lora_dpo", kernels, *cached) == ["liger_dpo_loss"]
    layers = (
        "recipe.liger=true",
        "flags.precompute_ref_log_probs=true",
        "flags.liger_kernel_config={rope: true}",
    )
    # by TRL's parser, whatever it holds
    assert problem_ids("stage=lora_dpo", *layers) == ["unsettable"]


def test_a_trainer_of_adapters_maps_all_of_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = composed("stage=demo_lora")
    monkeypatch.setitem(KEYS, "lora.dropout", replace(KEYS["lora.dropout"], flags={}))
    with pytest.raises(UserError, match=r"trl_sft.*recipe\.lora\.dropout"):
        build_plan(stage, fixed_machine())
    stage.config.recipe.lora.rank = None
    assert build_plan(stage, fixed_machine()).lora is None


def test_the_number_of_trained_parameters() -> None:
    lora = planned("stage=demo_lora").lora
    assert lora is not None
    attention = (128 + 128) + 2 * (128 + 64) + (128 + 128)
    assert lora.count_parameters(TINY) == 2 * 8 * (attention + 3 * (128 + 512))


def test_llamas_published_count() -> None:
    """PEFT counts 41,943,040 for rank 16 on all linear layers of Llama 3.1 8B."""
    plan = planned("stage=lora_sft")
    assert plan.lora is not None
    shape = ModelShape(8.03e9, 32, 4096, 14336, 32, 8, 128256)
    assert plan.lora.count_parameters(shape) == 41_943_040
