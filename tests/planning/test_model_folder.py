"""A local model is looked at before anything runs, and what flags name is part of the identity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.errors import UserError
from launch.planning.build import plan_on_this_machine
from launch.planning.plan import Plan
from launch.worker.finding import Finding
from tests.conftest import composed

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
TENSORS = len(HEADER).to_bytes(8, "little") + HEADER + b"\0\0\0\0"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete model in two shards, in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    shards = {"w": "model-1.safetensors", "v": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "model-1.safetensors").write_bytes(TENSORS)
    (folder / "model-2.safetensors").write_bytes(TENSORS.replace(b'"w"', b'"v"'))
    return folder


def planned(*overrides: str) -> Plan:
    model = (
        ()
        if any(override.startswith("model.path=") for override in overrides)
        else ("model.path=./model",)
    )
    stage = composed("stage=sft", "trainer=trl_sft", "gpus=1", *model, *overrides)
    return plan_on_this_machine(stage)


def refused(*overrides: str) -> Finding:
    with pytest.raises(UserError) as refusal:
        planned(*overrides)
    [problem] = refusal.value.problems
    assert problem.id == "incomplete_model" and problem.where == "override model.path"
    return problem


def test_a_complete_model_is_accepted(model: Path) -> None:
    assert planned().inputs.model.local == model


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("model-2.safetensors", None, "model-2.safetensors"),
        ("model-2.safetensors", POINTER, "LFS"),
        ("model-2.safetensors", TENSORS, "(v, ...)"),
        ("model-2.safetensors", TENSORS[:-2], "bytes, but its header requires"),
        ("config.json", None, "config.json"),
        ("config.json", POINTER, "config.json"),
        ("tokenizer.json", None, "tokenizer"),
    ],
)
def test_an_incomplete_model_is_refused(
    model: Path, name: str, content: bytes | None, fault: str
) -> None:
    (model / name).unlink()
    if content is not None:
        (model / name).write_bytes(content)
    assert fault in refused().message
    assert planned("allow=[incomplete_model]").inputs.model.local == model


def test_another_tokenizer_may_be_set(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    stage = composed(
        "stage=sft", "gpus=1", "model.path=./model", "flags.tokenizer_name_or_path=a/b"
    )
    assert plan_on_this_machine(stage).inputs.model.local == model


def test_what_a_flag_names_is_part_of_the_identity(model: Path, tmp_path: Path) -> None:
    words = ("flags.chat_template_path=mine.jinja",)
    absent = planned(*words).identity
    (tmp_path / "mine.jinja").write_text("{% generation %}")
    before = planned(*words).identity
    (tmp_path / "mine.jinja").write_text("{% generation %}!")
    assert len({absent, before, planned(*words).identity}) == 3
    assert planned("flags.run_name=model").identity  # a folder's name may be another flag's value
    long = planned(f"flags.run_name={'a' * 5000}").identity
    assert long != planned("flags.run_name=a").identity


@pytest.mark.parametrize("name", ["model-1.safetensors", "config.json", "tokenizer.json"])
def test_an_edited_model_is_another_run(model: Path, name: str) -> None:
    before = planned().identity
    content = (model / name).read_bytes()
    (model / name).write_bytes(content[:-1] + b"\1" if name.endswith("tensors") else b'{"a": 1}')
    assert planned().identity != before


def test_names_need_not_be_utf8(model: Path) -> None:
    """A file system's names are bytes: Python shows those that are not UTF-8 as surrogates."""
    assert planned("flags.run_name=\udcff").identity != planned("flags.run_name=\udcfe").identity


def test_a_file_is_no_model(model: Path) -> None:
    (model.parent / "m.gguf").write_bytes(b"GGUF\x03")
    problem = refused("model.path=./m.gguf")
    assert "m.gguf" in problem.message and "GGUF" in str(problem.cure)


def test_a_path_that_is_no_model_is_refused_by_what_it_is(model: Path) -> None:
    (model.parent / "chats.jsonl").write_text("{}")
    problem = refused("model.path=chats.jsonl")
    assert "chats.jsonl" in problem.message and "data.mix" in str(problem.cure)
    problem = refused(f"model.path={model.parent}/modle")
    assert "modle" in problem.message and "'model'" in str(problem.cure)
    assert planned(
        "model.path=/elsewhere/on/the/cluster"
    ).inputs.model.local  # the folder of another machine


def test_a_length_beyond_the_models_positions_is_refused(model: Path) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": 512}), encoding="utf-8"
    )
    assert planned("recipe.max_seq_length=512")
    with pytest.raises(UserError, match=rf"{model}.*\b512\b.*\[short_context\]"):
        planned("recipe.max_seq_length=513")
    allowed = planned("recipe.max_seq_length=513", "allow=[short_context]")
    assert "short_context" in [warning.id for warning in allowed.warnings]


@pytest.mark.parametrize(
    "override", ["model=oai/lora", "model.path=oai/lora", "model.path=oai/lora/model"]
)
def test_the_name_of_a_run_is_its_model_and_not_a_hub_id(model: Path, override: str) -> None:
    run = model.parent / "runs/oai/lora"
    run.mkdir(parents=True)
    model.rename(run / "model")
    (run / "plan.json").write_text("{}")
    (run / "DONE").write_text("{}")
    stage = composed("stage=sft", "trainer=trl_sft", "gpus=1", override)
    assert plan_on_this_machine(stage).inputs.model.local == run / "model"
    (run / "plan.json").unlink()
    assert plan_on_this_machine(stage).inputs.model.local is None
