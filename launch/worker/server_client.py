"""Sends weights to a vLLM server that shares the trainer's GPU.

TRL sends them through NCCL, which accepts each GPU only once in a group. A server that was started
with `--weight-transfer-config '{"backend": "ipc"}'` accepts CUDA IPC handles instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from .hooks import replaces

_BACKEND = "ipc"


def share_weights_by_handle() -> None:
    """Have TRL's client send IPC handles to a server that accepts them, and tensors to any other."""
    from trl.generation.vllm_client import VLLMClient

    @replaces(VLLMClient, "init_communicator")
    def connect(init: Any, client: Any, device: Any = 0) -> None:
        config = client.get_server_info()["weight_transfer_config"] or {}
        client.launch_shares_gpu = config.get("backend") == _BACKEND
        if client.launch_shares_gpu:
            client._post(f"{client.base_url}/init_weight_transfer_engine", json={"init_info": {}})
        else:
            init(client, device)

    @replaces(VLLMClient, "update_named_params")
    def send(
        update: Any,
        client: Any,
        metadata: Sequence[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, Any]],
    ) -> None:
        if not client.launch_shares_gpu:
            update(client, metadata, named_params)
            return
        # The method that is replaced does the same (trl/generation/vllm_client.py,
        # `update_named_params`).
        if not client._updating_weights:
            client._start_weight_update()
        largest = max(math.prod(shape) * _item_size(dtype) for _, dtype, shape in metadata)
        _send_handles(client.base_url, named_params, largest)
        if not client._updating_weights:
            client._finish_weight_update()


def _item_size(dtype: str) -> int:
    import torch

    return int(getattr(torch, dtype).itemsize)


def _send_handles(url: str, named_params: Iterator[tuple[str, Any]], largest: int) -> None:
    """Copy the tensors into a buffer, a part of the model at a time, and send its handle.

    `largest`: bytes of the largest tensor, which has to fit into the buffer.
    """
    from vllm.distributed.weight_transfer import ipc_engine

    arguments = ipc_engine.IPCTrainerSendWeightsArgs(
        send_mode="http",
        url=url,
        packed=True,
        packed_buffer_size_bytes=max(ipc_engine.DEFAULT_PACKED_BUFFER_SIZE_BYTES, largest),
    )
    ipc_engine.IPCWeightTransferEngine.trainer_send_weights(
        iterator=named_params, trainer_args=arguments
    )
