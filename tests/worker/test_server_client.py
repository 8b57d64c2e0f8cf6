"""Weights go to a server that shares the trainer's GPU by handles, and to another by TRL's own way.

vLLM's sender needs a GPU: here a stand-in reads what it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import requests
import torch
from trl.generation.vllm_client import VLLMClient

from launch.worker.server_client import share_weights_by_handle
from tests.worker.json_server import serve_json

DEFAULT_SIZE = 16
SHAPES = {"model.norm.weight": [4], "lm_head.weight": [8, 4]}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What vLLM and TRL's own way were given, in order."""
    made: list[Any] = []

    def send(iterator: Iterator[tuple[str, Any]], trainer_args: Any) -> None:
        names = [name for name, _ in iterator]
        made.append(("handles", names, vars(trainer_args)))

    engine: Any = ModuleType("vllm.distributed.weight_transfer.ipc_engine")
    engine.DEFAULT_PACKED_BUFFER_SIZE_BYTES = DEFAULT_SIZE
    engine.IPCTrainerSendWeightsArgs = SimpleNamespace
    engine.IPCWeightTransferEngine = SimpleNamespace(trainer_send_weights=send)
    package: Any = ModuleType("vllm.distributed.weight_transfer")
    package.ipc_engine = engine
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, engine.__name__, engine)

    def update(client: Any, metadata: Any, named_params: Any) -> None:
        made.append(("nccl", [name for name, _ in named_params]))

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda *_: made.append(("connect",)))
    monkeypatch.setattr(VLLMClient, "update_named_params", update)
    share_weights_by_handle()
    return made


@pytest.fixture
def pages() -> Iterator[tuple[list[str], int]]:
    """The pages that were posted to, and the server's port; its backend is the path's first part."""
    posted: list[str] = []

    def read_config(path: str) -> dict[str, Any]:
        name = path.split("/")[1]
        config = {"weight_transfer_config": None if name == "none" else {"backend": name}}
        return {"vllm_config": config}

    def receive(path: str, _: bytes) -> dict[str, Any]:
        posted.append(path.split("?", maxsplit=1)[0].rsplit("/", 1)[1])
        return {}

    with serve_json(read_config, receive) as port:
        yield posted, port


def update(port: int, backend: str) -> Any:
    client: Any = object.__new__(VLLMClient)
    client.session = requests.Session()
    client.base_url = f"http://127.0.0.1:{port}/{backend}"
    client._updating_weights = False
    client.init_communicator("cpu")
    metadata = [(name, "bfloat16", shape) for name, shape in SHAPES.items()]
    tensors = ((name, torch.zeros(shape)) for name, shape in SHAPES.items())
    client.update_named_params(metadata, tensors)
    return client


def test_a_shared_gpu_gets_handles_in_a_buffer_that_takes_the_largest_tensor(
    calls: list[Any], pages: tuple[list[str], int]
) -> None:
    posted, port = pages
    client = update(port, "ipc")
    ((way, names, arguments),) = calls
    assert (way, names) == ("handles", list(SHAPES))
    assert arguments["url"] == client.base_url and arguments["send_mode"] == "http"
    assert arguments["packed_buffer_size_bytes"] == 8 * 4 * 2
    assert posted[0] == "init_weight_transfer_engine" and len(posted) == 3, posted
    assert "start" in posted[1] and "finish" in posted[2]


@pytest.mark.parametrize("backend", ["nccl", "none"])
def test_another_server_gets_what_trl_sends(
    calls: list[Any], pages: tuple[list[str], int], backend: str
) -> None:
    update(pages[1], backend)
    assert calls == [("connect",), ("nccl", list(SHAPES))]
    assert not pages[0]
