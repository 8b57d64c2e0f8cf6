"""The kinds of LoRA: the flags that their keys become, what is requested, their memory, and what is
refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.planning.adapter import read_adapter
from launch.planning.estimate.forecast import forecast_memory
from launch.planning.estimate.memory_estimate import MemoryEstimate
from launch.planning.estimate.shape import BLOCKS, ModelShape, with_parameters
from launch.planning.expectations import requested_settings
from launch.planning.lora import settings_of_adapter
from launch.planning.plan import Plan
from tests.conftest import planned

LORA = ("stage=lora_sft", "gpus=1", "recipe.lora.rank=16")
RANK_16 = 41_943_040  # of Llama 3.1 8B's seven matrices in 32 layers
OUTPUTS = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
HEAD = 128256 * 4096


def memory(plan: Plan) -> MemoryEstimate:
    found = forecast_memory(plan, {}, card=None, lengths=None, flash=False).worst
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("override", "flags", "evidence"),
    [
        ("recipe.lora.dora=true", {"use_dora": True}, {"lora_dora": "true"}),
        ("recipe.lora.rslora=true", {"use_rslora": True}, {"lora_rslora": "true"}),
        (
            "recipe.lora.modules_to_save=[lm_head,embed_tokens]",
            {"lora_modules_to_save": ["lm_head", "embed_tokens"]},
            {"lora_modules": "embed_tokens,lm_head"},
        ),
        (
            "recipe.lora.target_parameters=[lm_head.weight]",
            {"lora_target_parameters": ["lm_head.weight"]},
            {"lora_parameters": "lm_head.weight"},
        ),
        ("recipe.lora.init=pissa", {}, {"lora_init": "pissa"}),
    ],
)
def test_a_kind_is_a_flag_and_is_proven(
    override: str, flags: dict[str, object], evidence: dict[str, str]
) -> None:
    plan = planned(*LORA, override)
    assert flags.items() <= {name: flag.value for name, flag in plan.flags.items()}.items()
    requested = requested_settings(plan.config, plan.parallel)
    assert evidence.items() <= requested.items()
    plain = planned(*LORA)
    assert not flags.keys() & plain.flags.keys()
    assert not evidence.keys() & requested_settings(plain.config, plain.parallel).keys()
    assert plan.identity != plain.identity


def test_the_start_of_an_adapter_is_an_option_of_the_entry() -> None:
    plan = planned(*LORA, "recipe.lora.init=olora")
    assert "adapter_init=olora" in plan.options
    assert "lora_start" not in requested_settings(plan.config, plan.parallel)


def test_the_memory_of_each_kind() -> None:
    plain = memory(planned(*LORA))
    gib = 1 << 30
    assert plain.optimizer == pytest.approx(8 * RANK_16 / gib)
    dora = memory(planned(*LORA, "recipe.lora.dora=true"))
    assert dora.optimizer == pytest.approx(8 * (RANK_16 + OUTPUTS) / gib)
    assert dora.total > plain.total + 0.5  # what it keeps of each output, and its temporaries
    assert memory(planned(*LORA, "recipe.lora.rslora=true")).total == plain.total
    assert memory(planned(*LORA, "recipe.lora.init=pissa")).total == plain.total
    whole = memory(planned(*LORA, "recipe.lora.modules_to_save=[lm_head]"))
    assert whole.parameters - plain.parameters == pytest.approx(2 * HEAD / gib)
    assert whole.optimizer - plain.optimizer == pytest.approx(4 * HEAD / gib)
    sharded = ("stage=lora_sft", "gpus=4", "parallel=zero3", "recipe.lora.rank=16")
    whole_of_four = memory(planned(*sharded, "recipe.lora.modules_to_save=[lm_head]"))
    of_head = whole_of_four.optimizer - memory(planned(*sharded)).optimizer
    assert of_head == pytest.approx(12 * HEAD / 4 / gib)  # DeepSpeed's fp32 weights and moments


WEIGHTS = (
    "recipe.lora.targets=[q_proj,k_proj,v_proj,o_proj,up_proj]",
    "recipe.lora.target_parameters=[gate_proj.weight,mlp.down_proj.weight]",
)


def test_the_memory_of_an_adapter_of_weights() -> None:
    gib = 1 << 30
    block = 2 * 4096 * 14336 * 2  # bytes of both weights
    plain = memory(planned(*LORA))
    weights = memory(planned(*LORA, *WEIGHTS))
    assert weights.optimizer == plain.optimizer
    kept = "recipe.gradient_checkpointing=true"
    of_layer = memory(planned(*LORA, kept, *WEIGHTS)).total - memory(planned(*LORA, kept)).total
    assert 0.9 * block < of_layer * gib < 2.1 * block  # of one layer, and backward's temporaries
    whole = "recipe.gradient_checkpointing=false"
    of_all = memory(planned(*LORA, whole, *WEIGHTS)).total - memory(planned(*LORA, whole)).total
    assert 0.9 * 32 * block < of_all * gib < 1.1 * 32 * block


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            "recipe.lora.target_parameters=[embed_tokens.weight]",
            "'embed_tokens.weight' of recipe.lora.target_parameters",
        ),
        (
            "recipe.lora.targets=[q_proj] recipe.lora.target_parameters=[v_proj.weight,weight]",
            "'weight' of recipe.lora.target_parameters",
        ),
        (f"{' '.join(WEIGHTS)} recipe.lora.quantize=nf4", "target_parameters of 4-bit weights"),
        (f"{' '.join(WEIGHTS)} parallel=zero3", "target_parameters under ZeRO-3"),
        ("recipe.lora.modules_to_save=[score]", "recipe.lora.modules_to_save"),
    ],
)
def test_what_is_not_counted_is_unknown(overrides: str, reason: str) -> None:
    words = overrides.split()
    gpus = "gpus=2" if "parallel=zero3" in words else "gpus=1"
    plan = planned("stage=lora_sft", gpus, "recipe.lora.rank=16", *words)
    found = forecast_memory(plan, {}, card=None, lengths=None, flash=False)
    assert found.worst is None and reason in found.why


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ("recipe.lora.dora=true trainer=finetune", "unsupported_recipe"),
        ("recipe.lora.init=corda", "unsupported_recipe"),
        ("recipe.lora.init=pissa recipe.lora.quantize=nf4", "lora_init_splits_weights"),
        ("recipe.lora.init=olora gpus=2 parallel=zero3", "lora_init_splits_weights"),
        ("recipe.lora.target_parameters=[a] recipe.lora.dropout=0.1", "lora_of_parameters"),
        ("recipe.lora.target_parameters=[a] recipe.lora.dora=true", "lora_of_parameters"),
        ("recipe.lora.target_parameters=[q_proj.weight]", "lora_names"),
        ("recipe.lora.modules_to_save=lm_head", "lora_names"),
        ("recipe.lora.modules_to_save=[q_proj]", "lora_names"),
        ("recipe.lora.rank=null recipe.lora.dora=true", "lora_without_rank"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: str, found: str) -> None:
    with pytest.raises(UserError) as refused:
        planned("stage=lora_sft", *overrides.split())
    assert found in {problem.id for problem in refused.value.problems}


WHOLE = "recipe.lora.modules_to_save"
PARAMETERS = "recipe.lora.target_parameters"


@pytest.mark.parametrize(
    ("override", "message", "cure"),
    [
        (f"{WHOLE}=[lm_heed]", "no module 'lm_heed'", "'lm_head'"),
        (f"{WHOLE}=[lm_head,embed_token]", "no module 'embed_token'", "'embed_tokens'"),
        (f"{WHOLE}=[router]", "no module 'router'", "it has model, embed_tokens"),
        (f"{WHOLE}=[model.norms]", "no module 'model.norms'", "'model'"),
        (f"{PARAMETERS}=[q_prj.weight]", "no parameter 'q_prj.weight'", "'q_proj.weight'"),
        (f"{PARAMETERS}=[q_proj]", "no parameter 'q_proj'", "'q_proj.weight'"),
        (f"{PARAMETERS}=[mlp.v_proj.weight]", "'mlp.v_proj.weight'", "'v_proj.weight'"),
        (f"{PARAMETERS}=[mlp.experts.gate_up_proj]", "no parameter", "gate_proj.weight"),
    ],
)
def test_a_name_that_the_model_does_not_have_is_refused(
    override: str, message: str, cure: str
) -> None:
    with pytest.raises(UserError) as refused:
        planned(*LORA, "recipe.lora.targets=[k_proj]", override)
    [problem] = refused.value.problems
    assert problem.id == "lora_names_exist" and problem.where.endswith(override.partition("=")[0])
    assert message in problem.message and cure in str(problem.cure)


@pytest.mark.parametrize(
    ("model", "override", "elements"),
    [
        ("llama3_1_8b", f"{WHOLE}=[embed_tokens,lm_head]", 2 * HEAD),
        ("llama3_1_8b", f"{WHOLE}=[layers.3.mlp.down_proj]", 4096 * 14336),
        ("llama3_1_8b", f"{WHOLE}=[mlp]", 32 * 3 * 4096 * 14336),
        # PEFT compares the ends of paths: those of the blocks' norms are alike
        ("llama3_1_8b", f"{WHOLE}=[norm]", 65 * 4096),
        ("olmo3_7b", f"{WHOLE}=[q_norm]", 32 * 4096),
        ("qwen2_5_7b", f"{WHOLE}=[model.norm]", 3584),
    ],
)
def test_the_weights_that_are_trained_as_a_whole_are_counted(
    model: str, override: str, elements: int
) -> None:
    plan = planned(*LORA, f"model={model}", "recipe.lora.targets=[k_proj]", override)
    assert plan.lora is not None and plan.shape is not None
    counted = plan.lora.count_whole(plan.shape)
    assert counted is not None and counted[0] == elements


@pytest.mark.parametrize("model_type", BLOCKS)
@pytest.mark.parametrize("tied", [False, True])
def test_the_tensors_of_a_shape_are_all_of_its_parameters(model_type: str, tied: bool) -> None:
    shape = ModelShape(0, 3, 64, 96, 8, 2, 500, tied, model_type, head_size=16)
    counted = sum(shape.tensors.values()) - tied * shape.embedding
    assert counted == with_parameters(shape).parameters


def write_model(folder: Path, *names: str) -> str:
    """Write a model of an unknown type, whose tensors have one number each."""
    folder.mkdir()
    header = {}
    for place, name in enumerate(names):
        span = [4 * place, 4 * place + 4]
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": span}
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(4 * len(names))
    (folder / "model.safetensors").write_bytes(data)
    (folder / "config.json").write_text(json.dumps({"model_type": "frobnicator"}))
    (folder / "tokenizer.json").write_text("{}")
    return f"model.path={folder}"


STORED = ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.router.weight")


@pytest.mark.parametrize(
    ("names", "override", "cure"),
    [
        (STORED, f"{PARAMETERS}=[mlp.experts.gate_up_proj]", None),
        (STORED, f"{PARAMETERS}=[mlp.experts.gate_proj]", "'experts.gate_up_proj'"),
        (STORED, f"{WHOLE}=[router]", None),
        (STORED, f"{WHOLE}=[lm_head]", None),  # of tied embeddings no file has one
        (STORED, f"{WHOLE}=[rooter]", "'router'"),
        # transformers joins these experts as it loads them: what they are called then is unknown
        (("model.layers.0.mlp.experts.0.w1.weight",), f"{PARAMETERS}=[mlp.experts.w13]", None),
    ],
)
def test_a_models_files_name_its_tensors(
    tmp_path: Path, names: tuple[str, ...], override: str, cure: str | None
) -> None:
    model = write_model(tmp_path / "model", *names)
    template = "recipe.chat_template=tulu"
    if cure is None:
        assert planned(*LORA, model, template, override).shape is None
        return
    with pytest.raises(UserError) as refused:
        planned(*LORA, model, template, override)
    [problem] = refused.value.problems
    assert problem.id == "lora_names_exist" and cure in str(problem.cure)


def test_the_names_of_a_model_of_the_hub_are_unknown() -> None:
    override = f"{PARAMETERS}=[mlp.experts.gate_up_proj]"
    assert planned(*LORA, "model.path=frob/nicator", "recipe.chat_template=tulu", override).lora


def test_an_adapter_that_is_trained_further_has_its_own_kind(tmp_path: Path) -> None:
    config = {"base_model_name_or_path": "b", "r": 8, "use_dora": True}
    config["modules_to_save"] = ["lm_head"]
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    adapter = read_adapter(tmp_path)
    assert adapter is not None
    settings = settings_of_adapter(adapter)
    assert settings["dora"] is True and settings["rslora"] is False
    assert settings["modules_to_save"] == ("lm_head",)
