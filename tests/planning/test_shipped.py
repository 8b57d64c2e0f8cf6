"""Every shipped stage composes and plans, with every trainer of its kind, every model and every
usual width.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch import resources
from launch.config.schema import Device
from launch.planning.build import build_plan
from launch.planning.plan import Plan
from tests.conftest import composed_at, fixed_machine, planned

KINDS = {
    path.stem: yaml.safe_load(path.read_text())["kind"]
    for path in (resources.CONFIGS / "trainer").glob("*.yaml")
}
STAGES = {
    "demo": "sft",
    "demo_dpo": "dpo",
    "sft": "sft",
    "sft_25pct": "sft",
    "sft_10pct": "sft",
    "dpo": "dpo",
    "dpo_10pct": "dpo",
    "rm": "rm",
    "lora_sft": "sft",
    "lora_dpo": "dpo",
    "kto": "kto",
    "lora_kto": "kto",
    "demo_kto": "kto",
    "demo_lora": "sft",
    "rlvr": "rlvr",
    "lora_rlvr": "rlvr",
    "demo_rlvr": "rlvr",
    "demo_rlvr_lora": "rlvr",
}
MODELS = [path.stem for path in (resources.CONFIGS / "model").glob("*.yaml")]
WIDTHS: list[dict[str, Any]] = [
    *({"gpus": gpus} for gpus in (1, 2, 8, 0)),
    {"device": Device.cpu, "processes": 2},
]
DRIVEN = (
    *("finetune", "dpo_tune_cache", "trl_sft", "trl_dpo", "trl_kto", "trl_grpo"),
    "reward_modeling",
)


def test_the_table_above_names_every_shipped_stage() -> None:
    """Those of Olmo 3 have a trainer of their own: tests/planning/test_olmo3.py plans them."""
    shipped = {path.stem for path in (resources.CONFIGS / "stage").glob("*.yaml")}
    assert set(STAGES) == {name for name in shipped if not name.startswith("olmo3_")}


@pytest.mark.parametrize(
    ("stage", "trainer"),
    [(s, t) for s, t in itertools.product(STAGES, DRIVEN) if STAGES[s] == KINDS[t]],
)
@pytest.mark.parametrize("width", WIDTHS, ids=str)
def test_stage_plans_with_every_trainer_of_its_kind_at_every_width(
    stage: str, trainer: str, width: dict[str, Any]
) -> None:
    recipe = ["recipe.chat_template=null"] if trainer == "trl_dpo" else []
    if stage.startswith("demo") and width == {"gpus": 8}:
        recipe.append("recipe.per_device_batch_size=2")
    plan = build_plan(
        composed_at(width, f"stage={stage}", f"trainer={trainer}", *recipe), fixed_machine()
    )
    batch = plan.batch
    assert (
        batch.global_
        == batch.width * batch.per_device * batch.accumulation
        == plan.config.recipe.global_batch_size
    )
    several_gpus = plan.parallel.width.device == "cuda" and batch.width > 1
    assert plan.parallel.mode == (
        "zero3" if several_gpus else "single" if batch.width == 1 else "ddp"
    )
    assert all(path.is_file() for path in plan.parallel.files)
    assert f"--{plan.config.trainer.launch['accumulation']}" in plan.command
    assert plan.folder == Path("/cwd/runs") / stage / plan.name


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_stage_plans_with_every_model(stage: str, model: str) -> None:
    plan = planned(f"stage={stage}", f"model={model}", "gpus=8")
    assert plan.flags["model_name_or_path"].provenance.origin == "model"
    assert "shape_mismatch" not in {warning.id for warning in plan.warnings}


# Qwen/Qwen3-0.6B's config.json; its heads are larger than hidden / heads
QWEN3_0_6B = (
    "parameters: 0.596e9, layers: 28, hidden: 1024, intermediate: 3072, heads: 16, kv_heads: 8"
)


def test_sizes_that_make_another_number_of_parameters_are_reported() -> None:
    def plan_with(sizes: str) -> Plan:
        shape = f"{QWEN3_0_6B}, vocabulary: 151936, tied_embeddings: true, model_type: qwen3{sizes}"
        return planned("stage=sft", f"model.shape={{{shape}}}", "gpus=8")

    right, wrong = plan_with(", head_dim: 128"), plan_with("")
    assert right.shape is not None and wrong.shape is not None
    assert right.shape.layer / wrong.shape.layer == pytest.approx(1.25, rel=0.01)
    assert "shape_mismatch" not in {warning.id for warning in right.warnings}
    [warning] = [warning for warning in wrong.warnings if warning.id == "shape_mismatch"]
    assert "0.508e9" in warning.message and "0.596e9" in warning.message
    assert warning.where == "override model.shape"
    elsewhere = (
        "stage=sft",
        f"model.shape={{{QWEN3_0_6B}, vocabulary: 151936}}",
        "model.path=/a/folder",
        "gpus=8",
    )
    assert "shape_mismatch" not in {warning.id for warning in planned(*elsewhere).warnings}


def test_the_numbers_of_tulu_3() -> None:
    """Upstream docs/tulu3.md:10-55 and :126-163."""
    sft = planned("stage=sft", "gpus=8").flags
    assert [
        sft[name].value
        for name in ("learning_rate", "num_train_epochs", "max_seq_length", "warmup_ratio")
    ] == [
        5e-6,
        2,
        4096,
        0.03,
    ]
    dpo = planned("stage=dpo", "gpus=8").flags
    assert [
        dpo[name].value
        for name in ("learning_rate", "num_epochs", "max_seq_length", "loss_type", "beta")
    ] == [
        5e-7,
        1,
        2048,
        "dpo_norm",
        5.0,
    ]
    assert dpo["gradient_accumulation_steps"].value == 16


def test_a_fraction_is_written_with_its_point() -> None:
    """Upstream reads "1" as one sample and "1.0" as all of them
    (dataset_transformation.py:2341-2343).
    """
    whole = planned("stage=sft", "data.fraction=1")
    assert whole.flags["dataset_mixer_list"].value == ["allenai/tulu-3-sft-mixture", "1.0"]
    quarter = planned("stage=sft_25pct")
    assert quarter.flags["dataset_mixer_list"].value == ["allenai/tulu-3-sft-mixture", "0.25"]
    patched = planned("stage=sft_25pct", "trainer=trl_sft")
    assert "subset=0.25" in patched.options


@pytest.mark.parametrize(
    ("overrides", "entry"),
    [
        (
            ["stage=sft", "trainer=olmo_core_finetune", "recipe.packing=bins"],
            "open_instruct/olmo_core_finetune.py",
        ),
        (["stage=dpo", "trainer=dpo"], "open_instruct/dpo.py"),
    ],
)
def test_the_olmo_core_trainers_are_started_by_torchrun(overrides: list[str], entry: str) -> None:
    plan = planned(*overrides, "model=olmo2_1b", "gpus=2")
    assert plan.command[1:3] == ("-m", "torch.distributed.run")
    assert plan.command[plan.command.index("--script") + 1] == f"/upstream/{entry}"
    assert (plan.parallel.mode, plan.parallel.files) == ("fsdp", ())
