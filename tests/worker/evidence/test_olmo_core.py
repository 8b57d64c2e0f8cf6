"""What is read from OLMo-core's train module, on stand-ins that have its attributes."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.worker.evidence import olmo_core
from launch.worker.evidence.batches import ForwardInputs, PassRecorder
from launch.worker.patches.olmo_core_documents import TorchFlashAttention
from launch.worker.trainer import TrainerProgram
from tests.worker.evidence import models

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")


class TorchAttentionBackend(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Causal attention over a whole row: what a backend would be that knows no documents."""

    head_dim, n_heads, n_kv_heads = 8, 4, 2

    def forward(self, qkv: Any, **_: Any) -> Any:
        return TorchFlashAttention(None).flash_attn_func(*qkv, causal=True)


class FlashAttention2Backend(TorchAttentionBackend):
    """The same with documents apart."""

    def forward(self, qkv: Any, cu_doc_lens: Any = None, max_doc_len: int = 0, **_: Any) -> Any:
        rows = (each[0] for each in qkv)
        lent = TorchFlashAttention(None).flash_attn_varlen_func
        return lent(*rows, cu_doc_lens, cu_doc_lens, max_doc_len, max_doc_len, causal=True)


class TensorDataCollatorWithFlatteningDPO:
    max_seq_length = 64


class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.backend, self.linear = backend, torch.nn.Linear(4, 4)


def module_of(backend: Any, collator: Any = None, clip: float | None = 1.0) -> Any:
    model = torch.nn.Sequential(Layer(backend), Layer(backend))
    return SimpleNamespace(
        model=model,
        optim=torch.optim.AdamW(model.parameters()),
        device=torch.device("cpu"),
        max_grad_norm=clip,
        trainer=SimpleNamespace(data_loader=SimpleNamespace(_collator=collator, dataset=[])),
    )


def looked(
    module: Any, documents: int | None = None, ranks: int = 1, **requested: str
) -> dict[str, Any]:
    wanted = {"world_size": str(ranks), "device": "cpu", **requested}
    inputs = ForwardInputs(frozenset(), 1, 64, None, documents)
    findings = olmo_core.collect(module, inputs, TrainerProgram(None, "none", ()), wanted)
    return {finding.what: finding for finding in findings}


def test_a_packed_run_that_is_as_it_was_asked() -> None:
    module = module_of(FlashAttention2Backend(), TensorDataCollatorWithFlatteningDPO())
    findings = looked(
        module,
        3,
        packing="bins",
        attention="flash_2",
        grad_clip="1.0",
        dtype="fp32",
        gradient_checkpointing="false",
    )
    assert {item.verdict for item in findings.values() if item.requested is not None} == {"proven"}
    assert findings["isolation"].value == "no attention across documents"
    assert findings["packing"].note == "first micro batch: 1 row of 64 tokens with 3 documents"
    assert (findings["sharding"].value, findings["master_dtype"].value) == ("none", "fp32")


def test_what_is_otherwise_is_refuted() -> None:
    module = module_of(TorchAttentionBackend(), TensorDataCollatorWithFlatteningDPO(), clip=None)
    findings = looked(
        module, 3, 2, packing="none", attention="flash_2", grad_clip="0.5", dtype="bf16"
    )
    assert {what for what, item in findings.items() if item.verdict == "refuted"} == {
        *("world_size", "packing", "attention", "grad_clip", "dtype", "isolation")
    }
    assert findings["isolation"].value == "attention leaks across documents"


def test_packing_that_never_reaches_the_model() -> None:
    findings = looked(
        module_of(FlashAttention2Backend(), TensorDataCollatorWithFlatteningDPO()),
        None,
        packing="bins",
    )
    assert (
        findings["packing"].verdict == "refuted"
        and "does not get document borders" in findings["packing"].how
    )
    assert "isolation" not in findings


def test_what_the_first_forward_was_given() -> None:
    ids, lengths = torch.zeros(2, 8, dtype=torch.long), torch.tensor([[3, 5, 0], [4, 2, 2]])
    model = torch.nn.Identity()
    model.forward = lambda *_, **__: None
    packed, plain = PassRecorder(), PassRecorder()
    packed.follow(model)
    model(ids, doc_lens=lengths)
    packed.stop()
    plain.follow(model)
    model(input_ids=ids)
    assert packed.take_training_passes() == [
        ForwardInputs(frozenset({"input_ids", "doc_lens"}), 2, 16, None, 5)
    ]
    assert plain.first == ForwardInputs(frozenset({"input_ids"}), 2, 16, None, None)
    assert str(plain.first) == "2 rows of 8 tokens"


@pytest.mark.parametrize(
    ("change", "value"),
    [(0.0, "trained"), (1e-3, "not those in memory"), (math.inf, "not finite")],
)
def test_a_checkpoint_is_compared_with_the_weights_in_memory(
    tmp_path: Path, change: float, value: str
) -> None:
    checkpoint = pytest.importorskip("olmo_core.distributed.checkpoint")
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    model = module_of(FlashAttention2Backend()).model
    checkpoint.save_state_dict(
        tmp_path / "step3" / "model_and_optim", {"model": get_model_state_dict(model)}
    )
    with torch.no_grad():
        model[0].linear.weight.add_(change)
    found = olmo_core.check_checkpoint(tmp_path / "step3", model)
    assert (found.value, found.verdict) == (value, "proven" if value == "trained" else "refuted")


def exported(state_dict: dict[str, Any], model: Any, folder: Path) -> Any:
    """Check an export within a frame that has the variables of upstream's own."""
    converted = state_dict  # noqa: F841
    return olmo_core.check_export(folder, model)


def test_an_export_has_the_weights_that_were_gathered(tmp_path: Path) -> None:
    model = models.model()
    model.save_pretrained(tmp_path)
    weights = {
        name.replace("model.", "olmo."): weight.clone()
        for name, weight in model.state_dict().items()
    }
    assert exported(weights, model, tmp_path).verdict == "proven"
    split = dict(enumerate(part for weight in weights.values() for part in weight.split(8)))
    assert exported(split, model, tmp_path).verdict == "proven"  # type: ignore[arg-type]
    weights["olmo.norm.weight"] += 1e-3
    assert exported(weights, model, tmp_path).value == "not those in memory"


def test_the_trial_leaves_the_random_numbers_as_they_were() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    assert not olmo_core.leaks(FlashAttention2Backend(), torch.device("cpu"))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("dealt", "requested", "verdict"),
    [
        (1048576, "1048576 tokens", "proven"),
        (524288, "1048576 tokens", "refuted"),
    ],
)
def test_the_tokens_of_a_step_are_those_of_the_loader(
    dealt: int, requested: str, verdict: str
) -> None:
    loader = SimpleNamespace(global_batch_size=dealt)
    (found,) = olmo_core.check_tokens(loader, requested)
    assert (found.what, found.value, found.verdict) == ("global_tokens", f"{dealt} tokens", verdict)
    assert olmo_core.check_tokens(loader, None) == []
