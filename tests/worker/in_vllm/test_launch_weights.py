"""Digests of what vLLM's workers hold: on a CPU, with modules of vLLM's form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from launch.worker.in_vllm import launch_weights
from launch.worker.in_vllm.launch_weights import ServerWeights, digest


def model() -> nn.Module:
    torch.manual_seed(0)
    module: Any = nn.Module()
    module.qkv_proj = nn.Linear(4, 6, bias=False)
    module.norm = nn.RMSNorm(4)
    return nn.ModuleDict({"attn": module})


def worker(gpus: int = 1) -> ServerWeights:
    """A worker as vLLM builds it, whose model's projections are joined."""
    layer: Any = model()
    layer.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    built = ServerWeights()
    built.model_runner = SimpleNamespace(model=layer)
    parallel = SimpleNamespace(tensor_parallel_size=gpus)
    built.vllm_config = SimpleNamespace(parallel_config=parallel)
    return built


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int8])
def test_a_digest_shows_one_changed_element_and_two_that_changed_places(dtype: torch.dtype) -> None:
    tensor = torch.arange(60).reshape(6, 10).to(dtype)
    changed = tensor.clone()
    changed[3, 4] += 1
    swapped = tensor.clone()
    swapped[2] = tensor[5]
    swapped[5] = tensor[2]
    digests = {digest(form) for form in (tensor, changed, swapped, tensor[:5])}
    assert len(digests) == 4
    assert digest(tensor.T.contiguous().T) == digest(tensor), "the layout in memory does not count"


def test_a_digest_is_the_same_however_much_is_summed_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = torch.randn(100_003).bfloat16()
    whole = digest(tensor)
    monkeypatch.setattr(launch_weights, "_CHUNK", 1000)
    assert digest(tensor) == whole


def test_a_sign_of_zero_counts() -> None:
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_a_worker_returns_digests_of_parts_of_joined_tensors() -> None:
    built = worker()
    joined = built.model_runner.model["attn"].qkv_proj.weight.data
    names = [f"attn.{part}_proj.weight" for part in "qkv"]
    shapes = [[3, 4], [2, 4], [1, 4]]
    names, shapes = [*names, "attn.norm.weight", "lm_head.weight"], [*shapes, [4], [4, 4]]
    digests = built.launch_digests(names, shapes)["digests"]
    own = [digest(rows) for rows in joined.split([3, 2, 1])]
    assert digests[:3] == [["torch.float32", text] for text in own]
    assert digests[3] == ["torch.float32", digest(torch.ones(4))]
    assert digests[4] is None, "it holds no such tensor"


def test_a_worker_of_several_gpus_returns_only_what_it_holds_whole() -> None:
    names, shapes = ["attn.q_proj.weight", "attn.norm.weight"], [[3, 4], [4]]
    first, second = worker(gpus=2).launch_digests(names, shapes)["digests"]
    assert first is None and second is not None
