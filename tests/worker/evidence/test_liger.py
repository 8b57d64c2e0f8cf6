"""Liger kernel by kernel: applied for real to real models (they can't run on a CPU, and need
not).
"""

from __future__ import annotations

from types import MethodType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the `train` dependencies are not installed")
monkey_patch = pytest.importorskip(
    "liger_kernel.transformers.monkey_patch", reason="no liger-kernel here"
)

from launch.worker.evidence import kernels  # noqa: E402
from tests.worker.evidence import models  # noqa: E402

LAYERS = "rms_norm,rope,swiglu"
SFT = f"{LAYERS},fused_linear_cross_entropy"


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Any:
    """transformers' Llama module, put back as it was."""
    import torch
    from transformers.models.llama import modeling_llama

    for name in ("apply_rotary_pos_emb", "LlamaRMSNorm", "LlamaMLP"):
        monkeypatch.setattr(modeling_llama, name, getattr(modeling_llama, name))
    monkeypatch.setattr(
        modeling_llama.LlamaForCausalLM, "forward", modeling_llama.LlamaForCausalLM.forward
    )
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
    return modeling_llama


def collect(model: Any, requested: str | None, **others: Any) -> dict[str, Any]:
    return {
        finding.what: finding
        for finding in kernels.check_liger(models.objects(model, **others), requested)
    }


def test_without_liger_there_is_none() -> None:
    findings = collect(models.model(), None)
    assert {name: finding.value for name, finding in findings.items()} == {"liger": "none"}


def test_liger_asked_for_and_not_there_is_refuted() -> None:
    summary = collect(models.model(), SFT)["liger"]
    assert summary.verdict == "refuted"
    assert summary.value == "none"
    assert "rms_norm is in 0 of 5 places" in summary.note
    assert "rope is in 0 of 2 places" in summary.note


def test_what_open_instructs_sft_gets(llama: Any) -> None:
    """Classes replaced before the model is built, the loss fused (finetune.py:577-587)."""
    monkey_patch._apply_liger_kernel("llama", fused_linear_cross_entropy=True)
    findings = collect(models.model(), SFT)
    assert (findings["liger"].verdict, findings["liger"].value) == ("proven", SFT)
    assert {name: finding.value for name, finding in findings.items()} == {
        "liger": SFT,
        "liger.rms_norm": "5 of 5",
        "liger.rope": "2 of 2",
        "liger.swiglu": "2 of 2",
        "liger.cross_entropy": "0 of 1",
        "liger.fused_linear_cross_entropy": "1 of 1",
        "liger.dpo_loss": "0 of 1",
    }


def test_what_open_instructs_dpo_gets_and_does_not(llama: Any) -> None:
    """fused_linear_cross_entropy=False (dpo_tune_cache.py:328): no kernel touches the loss."""
    monkey_patch._apply_liger_kernel("llama", fused_linear_cross_entropy=False)
    findings = collect(models.model(), LAYERS)
    assert (findings["liger"].verdict, findings["liger"].value) == ("proven", LAYERS)
    assert (
        findings["liger"].note
        == "RMSNorm, RoPE and SwiGLU only: the loss and the logits stay the trainer's own"
    )
    assert findings["liger.fused_linear_cross_entropy"].value == "0 of 1"
    assert findings["liger.dpo_loss"].value == "0 of 1"
    assert collect(models.model(), SFT)["liger"].verdict == "refuted"


def test_a_model_built_before_the_patch_is_refuted(llama: Any) -> None:
    """The log says "Applying Liger kernels"; the layers of this model were made before."""
    early = models.model()
    monkey_patch._apply_liger_kernel("llama")
    findings = collect(early, SFT)
    assert findings["liger"].verdict == "refuted"
    assert findings["liger.rms_norm"].value == "0 of 5"
    # a global of the module: it does reach this model
    assert findings["liger.rope"].value == "2 of 2"
    assert "rms_norm is in 0 of 5 places" in str(findings["liger"].note)


def test_a_kernel_that_is_not_everywhere_is_counted(llama: Any) -> None:
    monkey_patch._apply_liger_kernel("llama")
    model = models.model()
    norm = model.model.layers[1].input_layernorm
    norm.forward = MethodType(lambda self, x: x, norm)
    finding = collect(model, SFT)["liger"]
    assert (finding.verdict, finding.value) == (
        "proven",
        f"rms_norm (4 of 5){SFT.removeprefix('rms_norm')}",
    )


def test_the_cross_entropy_kernel_is_seen(llama: Any) -> None:
    monkey_patch._apply_liger_kernel("llama", cross_entropy=True, fused_linear_cross_entropy=False)
    findings = collect(models.model(), "cross_entropy")
    assert findings["liger"].verdict == "proven"
    assert findings["liger.cross_entropy"].value == "1 of 1"


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma2", "phi3"])
def test_kernels_put_into_a_model_that_exists(
    kind: str, llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers' Trainer does for TRL (integrations/liger.py)."""
    import importlib

    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    monkeypatch.setattr(module, "apply_rotary_pos_emb", module.apply_rotary_pos_emb)
    for name in [name for name in vars(module) if name.endswith(("RMSNorm", "MLP"))]:
        monkeypatch.setattr(module, name, getattr(module, name))
    model = models.model(kind, "eager")
    before = collect(model, LAYERS)["liger"]
    assert before.verdict == "refuted"
    monkey_patch._apply_liger_kernel_to_instance(model, fused_linear_cross_entropy=False)
    after = collect(model, LAYERS)["liger"]
    left_out = {"olmo2": "rms_norm (5 of 9),rope,swiglu"}  # Liger forgets q_norm and k_norm there
    assert (after.verdict, after.value) == ("proven", left_out.get(kind, LAYERS)), after.note


def test_a_model_that_liger_does_not_know_is_refuted_with_that_reason() -> None:
    model = models.model("gpt2", n_embd=32, n_layer=1, n_head=2)
    finding = collect(model, LAYERS)["liger"]
    assert (finding.verdict, finding.note) == (
        "refuted",
        "Liger has no kernels for models of type gpt2",
    )


def test_accelerates_wrapper_for_mixed_precision_hides_nothing(llama: Any) -> None:
    """accelerator.py:1825-1835 replaces the model's forward."""
    import torch
    from accelerate.utils import convert_outputs_to_fp32

    monkey_patch._apply_liger_kernel("llama")
    model = models.model()
    model._original_forward = model.forward
    wrapped = torch.autocast("cpu", torch.bfloat16)(model.forward.__func__)
    model.forward = MethodType(convert_outputs_to_fp32(wrapped), model)
    assert collect(model, SFT)["liger"].verdict == "proven"


def test_ligers_dpo_loss_is_seen_on_the_trainer() -> None:
    loss = pytest.importorskip("liger_kernel.chunked_loss").LigerFusedLinearDPOLoss()
    findings = collect(models.model(), None, trainer=SimpleNamespace(liger_loss_fn=loss))
    assert findings["liger.dpo_loss"].value == "1 of 1"
    assert findings["liger"].value == "dpo_loss"
