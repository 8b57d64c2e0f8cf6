"""Which optimizer trains, on the libraries' own optimizers after a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the `train` dependencies are not installed")

from launch.worker.evidence.optimizer_kind import check_optimizer  # noqa: E402


def bitsandbytes(parameters: Any, **settings: Any) -> Any:
    optim = pytest.importorskip("bitsandbytes.optim")
    # A trainer that ran in this process has asked for embeddings in 32 bits, and the library keeps that
    # by the address of a tensor, which a new tensor can have.
    optim.GlobalOptimManager.get_instance().initialize()
    return optim.AdamW(parameters, lr=1e-3, **settings)


def adafactor(parameters: Any) -> Any:
    optimization = pytest.importorskip("transformers.optimization")
    return optimization.Adafactor(parameters, lr=1e-3, relative_step=False, scale_parameter=False)


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "adamw_8bit": lambda parameters: bitsandbytes(parameters, optim_bits=8),
    "paged_adamw_8bit": lambda parameters: bitsandbytes(parameters, optim_bits=8, is_paged=True),
    "paged_adamw": lambda parameters: bitsandbytes(parameters, optim_bits=32, is_paged=True),
    "adafactor": adafactor,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
}


def stepped(name: str, rows: int = 128) -> Any:
    weight = torch.nn.Parameter(torch.randn(rows, 64))
    optimizer = OPTIMIZERS[name]([weight])
    weight.sum().backward()
    with torch.compiler.set_stance("force_eager"):  # bitsandbytes compiles its step for a CPU
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_is_known_by_its_class_and_states(name: str) -> None:
    optimizer = stepped(name)
    (found,) = check_optimizer(optimizer, name)
    assert (found.value, found.verdict) == (name, "proven")
    # DeepSpeed keeps torch's optimizer within its own.
    (below,) = check_optimizer(SimpleNamespace(optimizer=optimizer), name)
    assert below.verdict == "proven"


@pytest.mark.parametrize(
    ("name", "requested"),
    [
        ("adamw", "adamw_8bit"),
        ("adamw_8bit", "adamw"),
        ("adamw_8bit", "paged_adamw_8bit"),
        ("paged_adamw", "paged_adamw_8bit"),
        ("sgd", "adamw"),
        ("adamw", "adafactor"),
    ],
)
def test_another_one_is_refuted(name: str, requested: str) -> None:
    (found,) = check_optimizer(stepped(name), requested)
    assert (found.value, found.verdict) == (name, "refuted")


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_8bit", "paged_adamw"])
def test_weights_that_are_too_small_for_8_bits_refute_nothing(name: str) -> None:
    """bitsandbytes keeps fp32 states for fewer than 4,096 weights, as each matrix of a small adapter
    has them: a run of such an adapter was stopped.
    """
    optimizer = stepped(name, rows=8)
    (found,) = check_optimizer(optimizer, name)
    assert (found.value, found.verdict) == (name, "proven") and "float32" in found.note
    other = "paged_adamw" if name.endswith("8bit") else "paged_adamw_8bit"
    (refuted,) = check_optimizer(optimizer, other)
    assert refuted.verdict == "refuted"


def test_without_states_nothing_is_proven() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    (found,) = check_optimizer(torch.optim.AdamW([weight]), "adamw")
    assert found.verdict == "unproven"
    assert check_optimizer(stepped("adamw"), None) == []
