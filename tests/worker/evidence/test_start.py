"""Weights that a checkpoint lacks are refuted, on real models of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("torch", reason="the `train` dependencies are not installed")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from launch.worker.evidence import start  # noqa: E402
from launch.worker.patches import shared  # noqa: E402
from tests.worker.evidence import models  # noqa: E402

SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 16,
}


def save(folder: Path, *, drop: str = "", tied: bool = False) -> Path:
    config = transformers.LlamaConfig(**SHAPE, tie_word_embeddings=tied)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    safetensors.save_file(
        {name: tensor for name, tensor in tensors.items() if name != drop}, file, {"format": "pt"}
    )
    return folder


def loaded(folder: Path, kind: Any, **options: Any) -> Any:
    model, report = kind.from_pretrained(folder, output_loading_info=True, **options)
    return start.check_weights(model, folder, type("Info", (), report))


@pytest.mark.parametrize("tied", [False, True])
def test_a_whole_model_is_all_from_its_checkpoint(tmp_path: Path, tied: bool) -> None:
    finding = loaded(save(tmp_path, tied=tied), transformers.LlamaForCausalLM)
    assert (finding.value, finding.verdict) == ("checkpoint", None)


def test_a_missing_tensor_is_refuted(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    finding = loaded(save(tmp_path, drop=name), transformers.LlamaForCausalLM)
    assert (finding.requested, finding.verdict) == ("checkpoint", "refuted")
    assert finding.note == f"{name} is missing" and str(tmp_path) in finding.how


def test_the_new_head_of_a_reward_model_is_expected(tmp_path: Path) -> None:
    kind = transformers.LlamaForSequenceClassification
    assert loaded(save(tmp_path), kind, num_labels=1).verdict is None
    finding = loaded(save(tmp_path, drop="model.norm.weight"), kind, num_labels=1)
    assert finding.verdict == "refuted" and "norm" in finding.note


@pytest.mark.parametrize("layers", [2, 3])
def test_layers_that_the_configuration_leaves_out_are_refuted(tmp_path: Path, layers: int) -> None:
    config = transformers.LlamaConfig(**{**SHAPE, "num_hidden_layers": layers})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    finding = loaded(
        tmp_path, transformers.LlamaForCausalLM, config=transformers.LlamaConfig(**SHAPE)
    )
    assert finding.verdict == "refuted" and "model.layers.1." in finding.note


def test_the_head_of_another_kind_of_model_does_no_harm(tmp_path: Path) -> None:
    transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SHAPE)).save_pretrained(
        tmp_path
    )
    assert "score" not in str(loaded(tmp_path, transformers.LlamaForCausalLM).note)


def test_an_adapter_names_the_commit_of_its_hub_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers resolves it in the hub's cache, where the branch may point to another commit
    later.
    """
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, PreTrainedModel

    kept = staticmethod(PreTrainedModel._finalize_model_loading)
    # and restored after the test
    monkeypatch.setattr(PreTrainedModel, "_finalize_model_loading", kept)
    shared._check_loaded_weights(Mock(), Mock())
    repository = tmp_path / "models--lab--tiny"
    for digit in "ab":
        save(repository / "snapshots" / (digit * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    base = AutoModelForCausalLM.from_pretrained(
        "lab/tiny", cache_dir=tmp_path, local_files_only=True
    )
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], r=4))
    start.pin_base(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    (repository / "refs" / "main").write_text("b" * 40)
    config = peft.PeftConfig.from_pretrained(tmp_path / "adapter")
    assert (config.base_model_name_or_path, config.revision) == ("lab/tiny", "a" * 40)
    options = {"cache_dir": tmp_path, "local_files_only": True, "revision": config.revision}
    again = AutoModelForCausalLM.from_pretrained("lab/tiny", **options)
    assert again.lm_head.weight.equal(base.lm_head.weight)


@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_shows_its_alpha_and_its_dropout(rslora: bool) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        target_modules=["q_proj"], r=4, lora_alpha=8, lora_dropout=0.1, use_rslora=rslora
    )
    adapted = peft.get_peft_model(models.model(), settings)
    requested = {"lora_alpha": "8", "lora_dropout": "0.1"}
    found = start.check_adapter_settings(adapted, requested)
    assert [(item.what, item.value, item.verdict) for item in found] == [
        ("lora_alpha", "8", "proven"),
        ("lora_dropout", "0.1", "proven"),
    ]
    for module in adapted.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling["default"] /= 2
            module.lora_dropout["default"].p = 0.0
    found = start.check_adapter_settings(adapted, requested)
    assert [(item.value, item.verdict) for item in found] == [("4", "refuted"), ("0", "refuted")]


def test_an_adapter_without_dropout_has_a_dropout_of_zero() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["q_proj"], r=4, lora_alpha=8)
    adapted = peft.get_peft_model(models.model(), settings)
    (found,) = start.check_adapter_settings(adapted, {"lora_dropout": "0.0"})
    assert (found.value, found.verdict) == ("0", "proven")


def test_a_model_without_an_adapter_has_no_alpha() -> None:
    (found,) = start.check_adapter_settings(models.model(), {"lora_alpha": "8"})
    assert (found.value, found.verdict) == ("none", "refuted")


@pytest.mark.parametrize(
    ("targets", "requested", "found", "verdict"),
    [
        ("all-linear", "all-linear", "all-linear", "proven"),
        (["q_proj", "k_proj"], "k_proj,q_proj", "k_proj,q_proj", "proven"),
        (["q_proj"], "all-linear", "q_proj", "refuted"),
        (["q_proj"], "k_proj,q_proj", "q_proj", "refuted"),
        (["q_proj", "v_proj"], "q_proj", "q_proj,v_proj", "refuted"),
    ],
)
def test_the_adapted_layers_are_those_that_are_requested(
    targets: Any, requested: str, found: str, verdict: str
) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=targets, r=2, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(models.model(), settings)
    (evidence,) = start.check_adapter_targets(adapted, requested)
    assert (evidence.value, evidence.verdict) == (found, verdict)


def test_one_layer_of_a_name_without_an_adapter_is_refuted() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        target_modules=["q_proj"], layers_to_transform=[0], r=2, task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(models.model(), settings)
    (evidence,) = start.check_adapter_targets(adapted, "q_proj")
    assert (evidence.verdict, evidence.note) == ("refuted", "1 layers of these names have none")
    assert start.check_adapter_targets(adapted, None) == []


def test_an_adapter_is_new_or_was_trained_before() -> None:
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(models.model(), settings)
    (new,) = start.check_adapter_start(models.objects(adapted), "merged")
    assert (new.value, new.verdict) == ("merged", "proven")
    (lost,) = start.check_adapter_start(models.objects(adapted), "continue")
    assert (lost.value, lost.verdict) == ("merged", "refuted")
    matrix = next(p for name, p in adapted.named_parameters() if "lora_B" in name)
    torch.nn.init.ones_(matrix)
    (trained,) = start.check_adapter_start(models.objects(adapted), "continue")
    assert (trained.value, trained.verdict) == ("continue", "proven")
    assert trained.note == "1 of the adapter's 2 B matrices are not zero"
    (kept,) = start.check_adapter_start(models.objects(adapted), "merged")
    assert kept.verdict == "refuted"
    (bare,) = start.check_adapter_start(models.objects(models.model()), "merged")
    assert bare.verdict == "refuted"
    (resumed,) = start.check_adapter_start(models.objects(adapted, step=3), "merged")
    assert (resumed.value, resumed.verdict) == ("resumed", "proven")
