"""Counting a model's parameters without loading it, and what its checkpoints take."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from launch.check.machine.disk import (
    checkpoint_count,
    find_model_size,
    keeps_unknown_count,
    written_bytes,
)
from launch.check.machine.rule import Host
from launch.execution.caches import plan_cache_pass
from launch.planning.build import build_plan
from launch.planning.hub_cache import hub_snapshot
from launch.planning.model_folder import count_parameters
from launch.planning.plan import Plan
from tests.check.machine.driver import find
from tests.conftest import composed, fixed_machine
from tests.messages import values_of


def shard(path: Path, **shapes: list[int]) -> None:
    """A safetensors file with its header only."""
    header = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}
        for name, shape in shapes.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def planned(cwd: Path, *overrides: str) -> Plan:
    return build_plan(composed("allow=[incomplete_model]", *overrides), fixed_machine(cwd))


def test_parameters_are_counted_over_the_shards(tmp_path: Path) -> None:
    shard(tmp_path / "model-00001-of-00002.safetensors", a=[100, 20], b=[7])
    shard(tmp_path / "model-00002-of-00002.safetensors", c=[3, 2, 1])
    assert count_parameters(tmp_path) == 2013


def test_what_is_half_there_is_not_counted_and_what_is_there_twice_is_once(tmp_path: Path) -> None:
    shard(tmp_path / "model-00001-of-00002.safetensors", a=[100, 20])
    assert count_parameters(tmp_path) is None
    shard(tmp_path / "model-00002-of-00002.safetensors", b=[10])
    shard(tmp_path / "consolidated.safetensors", a=[100, 20], b=[10])
    assert count_parameters(tmp_path) == 2010
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "gone.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert count_parameters(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, struct.pack("<Q", 5) + b"nope!"])
def test_what_is_no_safetensors_file_counts_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert count_parameters(tmp_path) is None


def test_weights_of_torch_alone_have_two_bytes_a_parameter(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00001.bin").write_bytes(b"\0" * 2000)
    plan = planned(tmp_path, "stage=sft", f"model.path={tmp_path}")
    weights = find_model_size(plan, {})
    assert weights is not None and weights.parameters == 1000 and "pytorch_model" in weights.source


def test_a_cached_hub_model_is_counted_too(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    snapshot = tmp_path / "hub" / "models--me--mine" / "snapshots" / "abc"
    assert hub_snapshot("me/mine", environ) is None
    shard(snapshot / "model.safetensors", a=[10, 10])
    assert hub_snapshot("me/mine", environ) == snapshot
    weights = find_model_size(planned(tmp_path, "stage=sft", "model.path=me/mine"), environ)
    assert weights is not None and weights.parameters == 100


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["stage=sft"], 4),  # every 200 steps
        (["stage=sft", "recipe.checkpoint_steps=null"], 0),
        (["stage=sft", "recipe.checkpoint_steps=100"], 4),
        (["stage=sft", "recipe.checkpoint_steps=100", "recipe.max_steps=250"], 2),
        (["stage=sft", "recipe.checkpoint_steps=100", "flags.keep_last_n_checkpoints=1"], 2),
        # the trainer's own default is every 500 steps
        (["stage=dpo", "recipe.checkpoint_steps=null"], 4),
        (["stage=dpo", "recipe.checkpoint_steps=null", "recipe.max_steps=400"], 0),
        (
            [
                "stage=sft",
                "trainer=trl_sft",
                "recipe.checkpoint_steps=100",
                "recipe.max_steps=1000",
            ],
            4,
        ),
        (
            [
                "stage=sft",
                "trainer=trl_sft",
                "recipe.checkpoint_steps=10",
                "flags.save_total_limit=2",
            ],
            3,
        ),
    ],
)
def test_how_many_checkpoints_lie_there_at_once(
    tmp_path: Path, overrides: list[str], expected: int
) -> None:
    assert checkpoint_count(planned(tmp_path, *overrides)) == expected


def test_tokenising_needs_no_room_for_the_model(tmp_path: Path) -> None:
    host = Host({"HOME": str(tmp_path)})
    plan = planned(tmp_path, "stage=sft", "gpus=0", "model.shape.parameters=1e15")
    rules, only = ("model_too_big", "disk_full"), plan_cache_pass(plan)
    assert [find(rule, plan, host).severity for rule in rules] == ["fail"] * 2
    assert [find(rule, only, host).severity for rule in rules] == ["skipped"] * 2


@pytest.mark.parametrize("trainer", ["trl_dpo", "dpo_tune_cache"])
def test_an_adapter_needs_its_own_room_and_not_the_models(tmp_path: Path, trainer: str) -> None:
    """A LoRA DPO of 8b was refused for 30 GiB of "the model", where it ends with an adapter of 160
    MB.
    """
    plan = planned(
        tmp_path, "stage=lora_dpo", f"trainer={trainer}", "model=llama3_1_8b", "recipe.lora.rank=16"
    )
    model, checkpoint = written_bytes(plan, {}) or (0.0, 0.0)
    assert model == pytest.approx(4 * 41_943_040)
    frozen = 0 if trainer == "trl_dpo" else 2 * 8.03e9  # accelerate's save_state writes all weights
    assert checkpoint == pytest.approx(3 * model + frozen, rel=0.01)
    assert "160" in values_of(find("disk_full", plan, Host({})).message)


def test_the_number_of_rows_says_how_many_checkpoints_there_are(tmp_path: Path) -> None:
    """Ten steps with a checkpoint every 200: none is ever written."""
    words = ("stage=sft", "recipe.global_batch_size=16", f"cache={tmp_path}")
    plan = planned(tmp_path, *words, "recipe.epochs=1")
    # as many as are kept: the rows are unknown
    assert checkpoint_count(plan) == 4 and plan.lengths_file
    plan.lengths_file.parent.mkdir(parents=True)
    tokens = {"schema_version": 1, "kind": "sft", "tokens": {"100": 160}, "label_tokens": None}
    plan.lengths_file.write_text(json.dumps(tokens), encoding="utf-8")
    assert checkpoint_count(plan) == 0
    assert checkpoint_count(planned(tmp_path, *words, "recipe.epochs=25")) == 1


def test_checkpoints_that_are_all_kept_have_no_number_before_the_rows_are_counted(
    tmp_path: Path,
) -> None:
    words = ("stage=sft", "recipe.global_batch_size=16", f"cache={tmp_path}", "recipe.epochs=1")
    endless = (*words, "recipe.checkpoint_steps=1", "flags.keep_last_n_checkpoints=-1")
    plan = planned(tmp_path, *endless)
    assert keeps_unknown_count(plan) and checkpoint_count(plan) == 2
    assert not keeps_unknown_count(planned(tmp_path, *words))
    assert not keeps_unknown_count(planned(tmp_path, *endless, "recipe.max_steps=9"))
    assert plan.lengths_file is not None
    plan.lengths_file.parent.mkdir(parents=True)
    tokens = {"schema_version": 1, "kind": "sft", "tokens": {"100": 160}, "label_tokens": None}
    plan.lengths_file.write_text(json.dumps(tokens), encoding="utf-8")
    assert not keeps_unknown_count(plan) and checkpoint_count(plan) == 10
