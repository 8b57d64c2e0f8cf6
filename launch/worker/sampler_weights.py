"""Shows that the weights that sample completions are the ones that are trained.

transformers samples with the trained tensors themselves: what ran has their storage. vLLM holds a
copy, which TRL overwrites after each update: every tensor of it is compared with the one that was
loaded into it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Mean absolute difference of two log-probs of a token, in nats. Rounding to bf16 makes up to 0.016,
# weights of before an update 0.61 and more (benchmarks/sampler.json).
MOST_LOGP_DIFFERENCE = 0.05


@contextlib.contextmanager
def record_parameters() -> Iterator[Mapping[int, int]]:
    """Yield the addresses of the data of all parameters whose modules are called meanwhile, by the
    parameters' ids.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    addresses: dict[int, int] = {}

    def record(module: Any, _: Any) -> None:
        for parameter in module.parameters(recurse=False):
            addresses[id(parameter)] = parameter.data_ptr()

    hook = register_module_forward_pre_hook(record)
    try:
        yield addresses
    finally:
        hook.remove()


def count_called(parameters: Iterable[Any], addresses: Mapping[int, int]) -> int:
    """Count the parameters whose data is among those of `record_parameters`."""
    called_data = set(addresses.values())
    count = 0
    for parameter in parameters:
        if parameter.numel():
            count += parameter.data_ptr() in called_data
        else:  # ZeRO-3 leaves a parameter without data between two calls
            count += id(parameter) in addresses
    return count


@dataclass
class EngineCopy:
    """How vLLM's copy of the weights compares with the trained ones."""

    loaded: int = 0  # tensors that TRL handed to vLLM
    compared: int = 0  # those that vLLM holds whole; of the others it has a share or another form
    different: list[str] = field(default_factory=list)  # the names of those that are not equal

    @property
    def value(self) -> str:
        """Return the value of the evidence: `trained`, or what was found in its place."""
        if not self.loaded:
            return "an older copy: vLLM was given no weights after the update"
        if not self.compared:
            return f"unknown: none of {self.loaded} tensors is whole in vLLM"
        if self.different:
            count = len(self.different)
            return f"{count} of {self.compared} tensors differ in vLLM, {self.different[0]} first"
        return "trained"

    @property
    def how(self) -> str:
        return f"{self.compared} of {self.loaded} tensors, read from vLLM after an update"


@contextlib.contextmanager
def record_engine(generation: Any) -> Iterator[EngineCopy]:
    """Compare each tensor that TRL loads into vLLM meanwhile, as soon as it is loaded.

    `generation` is TRL's VLLMGeneration, with vLLM in this process. Its `sync_weights` loads one
    tensor at a time (trl/generation/vllm_generation.py, `_iter_named_params`), so that the next one
    is asked for when the last one is loaded. Nothing is gathered or merged for this.
    """
    copy = EngineCopy()
    iterate = generation._iter_named_params

    def iterate_and_compare() -> Iterator[tuple[str, Any]]:
        engine = _Engine(generation)
        for name, tensor in iterate():
            yield name, tensor
            copy.loaded += 1
            held = engine.find(name, tensor)
            if held is None:
                continue
            copy.compared += 1
            if not bool((held == tensor.to(held)).all()):
                copy.different.append(name)

    generation._iter_named_params = iterate_and_compare
    try:
        yield copy
    finally:
        del generation._iter_named_params  # the class's own is back


class _Engine:
    """The tensors of vLLM's model, found by the names of the trained model."""

    def __init__(self, generation: Any) -> None:
        runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
        self._tensors = dict(runner.model.named_parameters())
        self._is_whole = generation.tensor_parallel_size == 1
        # vLLM joins modules, `qkv_proj: [q_proj, k_proj, v_proj]`, whose rows follow one another
        self._joined: dict[str, tuple[str, Sequence[str]]] = {}
        for joined, parts in getattr(runner.model, "packed_modules_mapping", {}).items():
            for part in parts:
                self._joined[part] = (joined, parts)
        self._rows: dict[str, int] = {}  # of the trained tensors seen so far

    def find(self, name: str, tensor: Any) -> Any:
        """Return what vLLM holds of a trained tensor, in the tensor's shape.

        Returns None if vLLM holds only a share of it, or another form.
        """
        self._rows[name] = len(tensor)
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
        # a vocabulary is filled up with further rows
        rows = held.data[first : first + len(tensor)]
        return rows if rows.shape == tensor.shape else None


def _split(name: str) -> tuple[str, str, str]:
    """Return `model.layers.0.self_attn`, `q_proj` and `weight` of a parameter's name."""
    path, _, kind = name.rpartition(".")
    module, _, part = path.rpartition(".")
    return module, part, kind


def _join(module: str, part: str, kind: str) -> str:
    return f"{module}.{part}.{kind}"
