"""Each mistake with an adapter: one sentence, exit 2, and nothing left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.messages import outline, values_of
from tests.planning.test_adapters import SHAPE, write_tensors

_HIDE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
hide = lambda cls, name, *rest: None if name == "bitsandbytes" else find(name, *rest)
PathFinder.find_spec = classmethod(hide)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a run `runs/lora/one` that trained an adapter of a model beside
    it.
    """
    base, run = tmp_path / "base", tmp_path / "runs" / "lora" / "one"
    (run / "model").mkdir(parents=True)
    base.mkdir()
    (base / "config.json").write_text(json.dumps(SHAPE))
    (run / "plan.json").write_text('{"schema_version": 1}')
    (run / "DONE").write_text("{}")
    settings = {"base_model_name_or_path": str(base), "r": 8, "lora_alpha": 16}
    (run / "model" / "adapter_config.json").write_text(json.dumps(settings))
    prefix = "base_model.model.model.layers.1.self_attn.q_proj"
    shapes = {f"{prefix}.lora_A.weight": (8, 128), f"{prefix}.lora_B.weight": (128, 8)}
    write_tensors(run / "model" / "adapter_model.safetensors", shapes)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(home: Path, launch: Launch, line: str) -> str:
    """Return the one line of a refused command, which leaves every folder as it was."""
    before = sorted(home.rglob("*"))
    done = launch(*line.split())
    assert done.returncode == 2 and sorted(home.rglob("*")) == before
    [sentence] = done.stderr.splitlines()
    return sentence


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("run stage=demo_lora recipe.lora.rank=0", "out_of_range"),
        ("run stage=demo_lora recipe.lora.rank=129", "lora_rank"),
        ("run stage=lora_sft recipe.lora.rank=1025", "lora_rank"),
        ("run stage=demo_lora recipe.lora.targets=[q_proj,qkv]", "lora_targets"),
        ("run stage=demo_lora recipe.lora.targets=[lm_head]", "lora_targets"),
        ("run stage=demo_lora trainer=olmo_core_finetune", "unsupported_recipe"),
        ("run stage=lora_dpo trainer=dpo model=olmo2_1b", "unsupported_recipe"),
        ("run stage=rm recipe.lora.rank=8", "unsupported_recipe"),
        ("run stage=lora_sft gpus=8 parallel=zero3 recipe.lora.quantize=nf4", "quantized_parallel"),
        ("run stage=lora_dpo gpus=8 parallel=zero3 recipe.lora.quantize=nf4", "quantized_parallel"),
        ("run stage=demo_lora recipe.lora.start=continue", "nothing_to_continue"),
        ("run stage=demo_dpo model=llama3_1_8b model.path=runs/lora/one", "adapter_base"),
    ],
)
def test_what_cannot_be_trained(home: Path, launch: Launch, line: str, id: str) -> None:
    assert refused(home, launch, line).endswith(f"[{id}]")


def test_an_adapter_of_another_base(home: Path, launch: Launch) -> None:
    (home / "base" / "config.json").write_text(json.dumps({**SHAPE, "hidden_size": 256}))
    for verb in ("run stage=demo_dpo model.path=runs/lora/one", "merge lora/one"):
        sentence = refused(home, launch, verb)
        assert outline(sentence).startswith("adapter_base") and {"q_proj", "128", "256"} <= set(
            values_of(sentence)
        )
    config = home / "runs" / "lora" / "one" / "model" / "adapter_config.json"
    config.write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-7B", "r": 8}))
    sentence = refused(
        home, launch, "run stage=demo_dpo model=llama3_1_8b model.path=runs/lora/one"
    )
    assert "Qwen/Qwen2.5-7B" in sentence


@pytest.mark.parametrize("damage", ["unfinished", "cut short", "no weights", "no configuration"])
def test_a_half_written_run_is_not_merged(home: Path, launch: Launch, damage: str) -> None:
    run = home / "runs" / "lora" / "one"
    weights = run / "model" / "adapter_model.safetensors"
    if damage == "unfinished":
        (run / "DONE").unlink()
    elif damage == "cut short":
        weights.write_bytes(weights.read_bytes()[:20])
    elif damage == "no weights":
        weights.unlink()
    else:
        (run / "model" / "adapter_config.json").write_text("{")
    sentence = refused(home, launch, "merge lora/one")
    assert sentence.endswith(("[merge_unfinished]", "[bad_adapter]"))
    assert not (run / "merged").exists()


def test_without_bitsandbytes(home: Path, launch: Launch) -> None:
    pytest.importorskip("trl", reason="the `train` dependencies are not installed")
    (home / "sitecustomize.py").write_text(_HIDE)
    python = home / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{home}" PYTHONDONTWRITEBYTECODE=1 exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = launch("run", "stage=demo_lora", "recipe.lora.quantize=nf4", f"python={python}")
    [sentence] = [text for text in done.stderr.splitlines() if "missing_packages" in text]
    assert "lacks bitsandbytes" in sentence
    assert not (home / "runs" / "demo_lora").exists()
