"""model.path as a run, an adapter or its merged model: what the trainer gets, and what is
rejected.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.planning.adapter import read_adapter
from launch.planning.build import build_plan
from launch.planning.digest_cache import DigestCache
from launch.planning.estimate.planned_shape import planned_shape
from launch.planning.estimate.shape import LINEAR_LAYERS
from launch.planning.plan import Plan
from tests.conftest import composed, fixed_machine

SHAPE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2000,
}
CONTINUE = ("trainer=trl_dpo", "recipe.lora.rank=8", "recipe.lora.start=continue")


def write_tensors(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * shape[1]
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run whose model is an adapter of rank 8 of a model beside it."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(SHAPE))
    model = tmp_path / "runs" / "lora" / "one" / "model"
    model.mkdir(parents=True)
    (model.parent / "plan.json").write_text("{}")
    (model.parent / "DONE").write_text("{}")
    names = ["model.layers.0.self_attn.q_proj", "v_proj"]
    settings = {"r": 8, "lora_alpha": 16.0, "lora_dropout": 0.1, "target_modules": names}
    (model / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(base), **settings})
    )
    prefix = "base_model.model.model.layers.1.self_attn.q_proj"
    write_tensors(
        model / "adapter_model.safetensors",
        {f"{prefix}.lora_A.weight": (8, 128), f"{prefix}.lora_B.weight": (128, 8)},
    )
    (model / "tokenizer.json").write_text("{}")
    return model.parent


def planned(*overrides: str) -> Plan:
    machine = fixed_machine(digest=DigestCache(Path("/nowhere/digests.json")).of)
    return build_plan(composed("stage=demo_dpo", "allow=[incomplete_model]", *overrides), machine)


def problem(*overrides: str) -> tuple[str, str]:
    with pytest.raises(UserError) as error:
        planned(*overrides)
    [found] = error.value.problems
    return found.id, found.message


@pytest.mark.parametrize("place", ["", "model", "merged"])
def test_every_name_of_an_adapter_starts_from_its_merged_model(run: Path, place: str) -> None:
    for trainer in ("dpo_tune_cache", "trl_dpo"):
        plan = planned(f"model.path={run / place}", f"trainer={trainer}")
        assert plan.flags["model_name_or_path"].value == str(run / "merged")
        assert plan.inputs.model.build == "merge"
        assert "continue_adapter" not in plan.options


def test_a_prefix_of_a_name_means_a_finished_run(run: Path) -> None:
    of_runs = f"runs={run.parents[1]}"
    for name in ("one", "on", "lora/o", "lora"):
        assert planned(f"model.path={name}", of_runs).flags["model_name_or_path"].value == str(
            run / "merged"
        )
    other = run.parents[1] / "sft" / "onward"
    other.mkdir(parents=True)
    (other / "plan.json").write_text("{}")
    assert planned("model.path=on", of_runs).flags["model_name_or_path"].value == str(
        run / "merged"
    )
    (other / "DONE").write_text("{}")
    os.utime(other / "plan.json", (0, 0))
    found, message = problem("model.path=on", of_runs)
    assert found == "ambiguous_run" and all(value in message for value in ("'on'", "2", "lora/one"))
    assert (
        planned("model.path=someone/else", of_runs).flags["model_name_or_path"].value
        == "someone/else"
    )


def test_the_identity_is_that_of_the_adapter(run: Path) -> None:
    """It is the same before and after the merge, and another one for another adapter."""
    before = planned(f"model.path={run}").identity
    (run / "merged").mkdir()
    (run / "merged" / "config.json").write_text("{}")
    assert planned(f"model.path={run / 'merged'}").identity == before
    (run / "model" / "tokenizer.json").write_text("[]")
    assert planned(f"model.path={run}").identity != before


def test_a_run_with_a_whole_model(run: Path) -> None:
    (run / "model" / "adapter_config.json").unlink()
    (run / "model" / "config.json").write_text(json.dumps(SHAPE))
    plan = planned(f"model.path={run}")
    assert (plan.flags["model_name_or_path"].value, plan.inputs.model.build) == (
        str(run / "model"),
        None,
    )


@pytest.mark.parametrize("place", ["", "model"])
def test_going_on_with_an_adapter(run: Path, place: str) -> None:
    plan = planned(f"model.path={run / place}", *CONTINUE)
    assert plan.flags["model_name_or_path"].value == str(run / "model")
    assert "continue_adapter" in plan.options


def test_what_the_recipe_leaves_open_is_the_adapters_own(run: Path) -> None:
    plan = planned(f"model.path={run}", *CONTINUE)
    flags = {name: flag.value for name, flag in plan.flags.items()}
    assert (flags["lora_alpha"], flags["lora_dropout"]) == (16, 0.1)
    assert flags["lora_target_modules"] == ["q_proj", "v_proj"]
    same = (
        "recipe.lora.alpha=16",
        "recipe.lora.targets=[v_proj,q_proj]",
        "recipe.lora.dropout=0.1",
    )
    assert planned(f"model.path={run}", *CONTINUE, *same).identity == plan.identity


@pytest.mark.parametrize(
    ("override", "own"),
    [
        ("recipe.lora.alpha=32", "16"),
        ("recipe.lora.dropout=0.2", "0.1"),
        ("recipe.lora.targets=all-linear", "[q_proj,v_proj]"),
        ("recipe.lora.targets=[q_proj]", "[q_proj,v_proj]"),
    ],
)
def test_going_on_with_other_settings_is_refused(run: Path, override: str, own: str) -> None:
    found, message = problem(f"model.path={run}", *CONTINUE, override)
    assert found == "adapter_settings"
    assert own in message


def test_all_linear_is_every_layer_of_a_block(run: Path) -> None:
    config = run / "model" / "adapter_config.json"
    settings = json.loads(config.read_text()) | {"target_modules": list(LINEAR_LAYERS)}
    config.write_text(json.dumps(settings))
    plan = planned(f"model.path={run}", *CONTINUE, "recipe.lora.targets=all-linear")
    assert plan.flags["lora_target_modules"].value == ["all-linear"]


@pytest.mark.parametrize("path", [(), ("model.path=someone/an-adapter",)])
def test_without_a_folder_there_is_nothing_to_continue(path: tuple[str, ...]) -> None:
    assert problem(*CONTINUE, *path)[0] == "nothing_to_continue"


def test_the_adapter_of_a_run_that_is_still_to_come(run: Path) -> None:
    """A pipeline hands RUN/merged on: the plan is the same before and after the run is there."""
    chain = (
        f"model.path={run / 'merged'}",
        "model.trained_by=0123abcd",
        *CONTINUE,
        "recipe.lora.targets=[q_proj,v_proj]",
    )
    chain += ("recipe.lora.alpha=16", "recipe.lora.dropout=0.1")
    after = planned(*chain)
    run.rename(run.with_name("elsewhere"))
    before = planned(*chain)
    for plan in (before, after):
        assert plan.flags["model_name_or_path"].value == str(run / "model")
        assert "continue_adapter" in plan.options
    assert before.identity == after.identity


def test_the_memory_of_a_stage_on_an_adapter_is_that_of_its_base(run: Path) -> None:
    for words in ((), CONTINUE):
        shape = planned_shape(planned(f"model.path={run}", *words), {})
        assert shape is not None
        assert (shape.layers, shape.hidden) == (2, 128)


def test_a_new_adapter_on_a_merged_model(run: Path) -> None:
    plan = planned(f"model.path={run}", "trainer=trl_dpo", "recipe.lora.rank=4")
    assert plan.flags["model_name_or_path"].value == str(run / "merged")


def test_a_loose_adapter_is_merged_beside_itself(run: Path) -> None:
    loose = (run / "model").rename(run.parent.parent / "mine")
    adapter = read_adapter(loose)
    assert adapter is not None
    assert adapter.merged == loose.with_name("mine-merged")
    assert planned(f"model.path={loose}").flags["model_name_or_path"].value == str(adapter.merged)


def break_weights(run: Path) -> None:
    (run / "model" / "adapter_model.safetensors").write_bytes(b"\0" * 5)


def change_base(run: Path) -> None:
    (run.parents[2] / "base" / "config.json").write_text(json.dumps({**SHAPE, "hidden_size": 256}))


def shorten_base(run: Path) -> None:
    (run.parents[2] / "base" / "config.json").write_text(
        json.dumps({**SHAPE, "num_hidden_layers": 1})
    )


@pytest.mark.parametrize(
    ("breakage", "overrides", "id"),
    [
        (lambda run: (run / "DONE").unlink(), (), "run_without_model"),
        (lambda run: (run.parents[2] / "base" / "config.json").unlink(), (), "adapter_base"),
        (change_base, (), "adapter_base"),
        (shorten_base, (), "adapter_base"),
        (break_weights, (), "bad_adapter"),
        (lambda run: (run / "model" / "adapter_model.safetensors").unlink(), (), "bad_adapter"),
        (lambda run: (run / "model" / "adapter_config.json").write_text("{"), (), "bad_adapter"),
        (
            lambda run: (run / "model" / "adapter_config.json").write_text('{"peft_type": "IA3"}'),
            (),
            "bad_adapter",
        ),
        (
            lambda run: None,
            ("trainer=trl_dpo", "recipe.lora.rank=4", "recipe.lora.start=continue"),
            "lora_rank",
        ),
        (lambda run: None, ("model=qwen2_5_7b",), "adapter_base"),
        (
            lambda run: (run / "model" / "adapter_config.json").unlink(),
            CONTINUE,
            "nothing_to_continue",
        ),
    ],
)
def test_what_cannot_work_is_rejected(
    run: Path, breakage: Callable[[Path], object], overrides: tuple[str, ...], id: str
) -> None:
    breakage(run)
    assert problem(f"model.path={run}", *overrides)[0] == id


@pytest.mark.parametrize("place", ["", "model", "merged"])
def test_an_unfinished_runs_adapter_has_no_name_to_pass_by(run: Path, place: str) -> None:
    (run / "DONE").unlink()
    assert problem(f"model.path={run / place}")[0] == "run_without_model"


def test_an_adapter_of_another_hub_model(run: Path) -> None:
    config = run / "model" / "adapter_config.json"
    config.write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-7B", "r": 8}))
    found, message = problem(f"model.path={run}", "model=llama3_1_8b")
    assert found == "adapter_base"
    assert "Qwen/Qwen2.5-7B" in message
    assert planned(f"model.path={run}").inputs.model.build == "merge"
