"""Reads vLLM's copy of the weights, in the process that holds it.

With colocated vLLM, that is the trainer's process. The workers of a vLLM server get `ServerWeights`
by `--worker-extension-cls` (vllm/v1/worker/worker_base.py:261), so this file must not import launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Elements of a tensor that are summed at a time; each takes 8 bytes twice.
_CHUNK = 1 << 24
_PRIME = 65_521


class ServerWeights:
    """Methods that vLLM adds to a server's workers."""

    model_runner: Any
    vllm_config: Any

    def launch_digests(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]]
    ) -> dict[str, list[list[str] | None]]:
        """Return type and digest of each tensor; None for one that this worker holds only in part."""
        is_whole = self.vllm_config.parallel_config.tensor_parallel_size == 1
        engine = EngineTensors(self.model_runner.model, is_whole=is_whole)
        digests: list[list[str] | None] = []
        for name, shape in zip(names, shapes, strict=True):
            held = engine.find(name, shape)
            digests.append(None if held is None else [str(held.dtype), digest(held)])
        return {"digests": digests}


def digest(tensor: Any) -> str:
    """Return a number that depends on each bit of a tensor and on its place, as text.

    It is a sum of integers, which is the same in any order and on any device.
    """
    import torch

    forms = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().contiguous().view(forms[tensor.element_size()]).flatten()
    total = 0
    for start in range(0, len(bits), _CHUNK):
        part = bits[start : start + _CHUNK].long()
        places = torch.arange(start, start + len(part), device=part.device) % _PRIME + 1
        total += int((part * places).sum())
    return f"{len(bits)}:{total}"


class EngineTensors:
    """The tensors of vLLM's model, found by the names of the trained model."""

    def __init__(self, model: Any, *, is_whole: bool) -> None:
        """`is_whole`: whether the model is on one GPU, not split by tensor parallelism."""
        self._tensors = dict(model.named_parameters())
        self._is_whole = is_whole
        # vLLM joins modules, `qkv_proj: [q_proj, k_proj, v_proj]`, whose rows are consecutive.
        self._joined: dict[str, tuple[str, Sequence[str]]] = {}
        for joined, parts in getattr(model, "packed_modules_mapping", {}).items():
            for part in parts:
                self._joined[part] = (joined, parts)
        self._rows: dict[str, int] = {}  # rows of the trained tensors seen so far

    def find(self, name: str, shape: Sequence[int]) -> Any:
        """Return what vLLM holds of a trained tensor, in the tensor's shape.

        Returns None if vLLM holds only a share of it, or another form.
        """
        count = shape[0] if len(shape) else 1
        self._rows[name] = count
        first = 0
        if name not in self._tensors:
            module, part, kind = _split(name)
            if part not in self._joined or not self._is_whole:
                return None
            joined, parts = self._joined[part]
            before = [_join(module, other, kind) for other in parts[: parts.index(part)]]
            if not self._rows.keys() >= set(before):
                return None
            first = sum(self._rows[other] for other in before)
            name = _join(module, joined, kind)
        held = self._tensors.get(name)
        if held is None:
            return None
        # vLLM pads the vocabulary with further rows, which are not compared.
        rows = held.data[first : first + count]
        return rows if list(rows.shape) == list(shape) else None


def _split(name: str) -> tuple[str, str, str]:
    """Return `model.layers.0.self_attn`, `q_proj` and `weight` of a parameter's name."""
    path, _, kind = name.rpartition(".")
    module, _, part = path.rpartition(".")
    return module, part, kind


def _join(module: str, part: str, kind: str) -> str:
    return f"{module}.{part}.{kind}"
