"""Shows that the weights that sample completions are the ones that are trained.

transformers samples with the trained tensors themselves, so that the modules that ran must have the
storage of those tensors. vLLM holds a copy, which TRL overwrites after each update: every tensor of
it is compared with the one that was loaded into it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .in_vllm.launch_weights import EngineTensors, digest

# The mean absolute difference of a token's two log-probs, in nats. Rounding to bf16 makes up to
# 0.016, and the weights before an update 0.61 and more (benchmarks/sampler.json).
MOST_LOGP_DIFFERENCE = 0.05


@contextlib.contextmanager
def record_parameters() -> Iterator[Mapping[int, int]]:
    """Record the data addresses of all parameters whose modules are called within the context, by
    the parameters' ids.
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
    compared: int = 0  # those that vLLM holds whole, not as a share or in another form
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
    """Compare each tensor that TRL loads into vLLM within the context, as soon as it is loaded.

    `generation` is TRL's VLLMGeneration, with vLLM in this process. Its `sync_weights` loads one
    tensor at a time (trl/generation/vllm_generation.py, `_iter_named_params`): when it requests the
    next tensor, the last one is loaded. Nothing is gathered or merged for the comparison.
    """
    copy = EngineCopy()
    iterate = generation._iter_named_params

    def iterate_and_compare() -> Iterator[tuple[str, Any]]:
        runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
        engine = EngineTensors(runner.model, is_whole=generation.tensor_parallel_size == 1)
        for name, tensor in iterate():
            yield name, tensor
            copy.loaded += 1
            held = engine.find(name, tensor.shape)
            if held is None:
                continue
            copy.compared += 1
            if not bool((held == tensor.to(held)).all()):
                copy.different.append(name)

    generation._iter_named_params = iterate_and_compare
    try:
        yield copy
    finally:
        del generation._iter_named_params  # this restores the method of the class


@contextlib.contextmanager
def record_server(generation: Any) -> Iterator[EngineCopy | None]:
    """Compare each tensor that TRL sends to vLLM's server within the context with the server's copy.

    Both sides compute a digest of it. Yields None if the server was started without `ServerWeights`
    and so can't compute one. The value is complete when the context ends. Only the main process has
    a connection to the server.
    """
    client = getattr(generation, "vllm_client", None)
    copy = EngineCopy()
    if client is None or not _reads_weights(client):
        yield None
        return
    dtype = _dtype_of(client)
    sent: dict[str, tuple[list[int], str]] = {}  # shape and digest, by name
    iterate = generation._iter_named_params

    def iterate_and_digest() -> Iterator[tuple[str, Any]]:
        for name, tensor in iterate():
            sent[name] = (list(tensor.shape), digest(tensor.to(dtype)))
            yield name, tensor

    generation._iter_named_params = iterate_and_digest
    try:
        yield copy
    finally:
        del generation._iter_named_params
    copy.loaded = len(sent)
    if not sent:
        return
    held = _request_digests(client, list(sent), [shape for shape, _ in sent.values()])
    for (name, (_, own)), other in zip(sent.items(), held, strict=True):
        if other is None or other[0] != str(dtype):
            continue
        copy.compared += 1
        if other[1] != own:
            copy.different.append(name)


def _reads_weights(client: Any) -> bool:
    config = client.get_server_info()["parallel_config"]
    return str(config.get("worker_extension_cls") or "").endswith(".ServerWeights")


def _dtype_of(client: Any) -> Any:
    """Return the type in which the server holds its weights."""
    import torch

    name = str(client.get_server_info()["model_config"]["dtype"])
    return getattr(torch, name.removeprefix("torch."))


def _request_digests(client: Any, names: list[str], shapes: list[list[int]]) -> list[Any]:
    """Return what the first worker of a server holds of each tensor: its type and digest, or None."""
    request = {"method": "launch_digests", "kwargs": {"names": names, "shapes": shapes}}
    answer = client._post(f"{client.base_url}/collective_rpc", json=request)
    digests: list[Any] = answer["results"][0]["digests"]
    return digests
