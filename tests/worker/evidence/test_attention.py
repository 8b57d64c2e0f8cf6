"""Whether attention leaks across packed documents, tried on real models; and which attention there
is.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")

from launch.worker.evidence import batches, kernels  # noqa: E402
from tests.worker.evidence import models  # noqa: E402

FLATTENED = frozenset(
    {"input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q"}
)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "olmo2", "mistral"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_position_ids_keep_documents_apart(kind: str, kernel: str) -> None:
    assert not kernels.leaks(models.model(kind, kernel), frozenset({"input_ids", "position_ids"}))


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("names", [{"input_ids"}, {"input_ids", "attention_mask", "position_ids"}])
def test_without_them_or_with_a_mask_of_ones_documents_see_each_other(
    kernel: str, names: set[str]
) -> None:
    """transformers finds the documents in position ids, and only where no attention mask is
    given.
    """
    assert kernels.leaks(models.model("llama", kernel), frozenset(names))


def test_lengths_alone_do_nothing_without_flash_attention() -> None:
    assert kernels.leaks(models.model(), FLATTENED - {"position_ids"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trial_works_in_the_types_of_training(dtype: torch.dtype) -> None:
    model = models.model().to(dtype)
    assert not kernels.leaks(model, FLATTENED)
    assert kernels.leaks(model, frozenset({"input_ids"}))


def test_the_trial_computes_as_the_accelerator_does() -> None:
    accelerator = SimpleNamespace(device=torch.device("cpu"), mixed_precision="bf16")
    assert not kernels.leaks(models.model(), FLATTENED, accelerator)
    assert kernels.leaks(models.model(), frozenset({"input_ids"}), accelerator)


def test_the_trial_changes_nothing() -> None:
    model = models.model().train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    generator = torch.random.get_rng_state()
    kernels.leaks(model, FLATTENED)
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert model.training


def inputs_of(names: frozenset[str]) -> batches.ForwardInputs:
    return batches.ForwardInputs(names, 1, 100, 0, 4)


def test_isolation_is_proven_refuted_or_unproven() -> None:
    this = models.objects(models.model())
    apart = kernels.check_attention(this, inputs_of(FLATTENED), "flatten", None)[1]
    assert (apart.what, apart.value, apart.verdict) == (
        "isolation",
        "no attention across documents",
        "proven",
    )
    assert apart.note == "without flash attention a row of T tokens costs T x T, masked or not"
    leak = kernels.check_attention(this, inputs_of(frozenset({"input_ids"})), "flatten", None)[1]
    assert (leak.value, leak.verdict) == ("attention leaks across documents", "refuted")
    unseen = kernels.check_attention(this, None, "flatten", None)[1]
    assert (unseen.value, unseen.verdict) == (None, "unproven")
    assert len(kernels.check_attention(this, inputs_of(FLATTENED), "none", None)) == 1


def test_a_trial_that_can_not_run_proves_nothing() -> None:
    model = models.model()
    model.config.rope_parameters = None
    finding = kernels.check_attention(models.objects(model), inputs_of(FLATTENED), "flatten", None)[
        1
    ]
    assert finding.verdict == "unproven"
    assert str(finding.note).startswith("the test did not run (")


@pytest.mark.parametrize(
    ("has", "requested", "verdict"),
    [
        ("sdpa", "sdpa", "proven"),
        ("eager", "eager", "proven"),
        ("sdpa", "flash_2", "refuted"),
        ("sdpa", None, None),
    ],
)
def test_the_implementation_is_what_the_layers_read(
    has: str, requested: str | None, verdict: str | None
) -> None:
    [finding] = kernels.check_attention(
        models.objects(models.model(attention=has)), None, "none", requested
    )
    assert (finding.value, finding.verdict) == (has, verdict)
