"""Gives OLMo-core an attention that separates packed documents when the flash-attn package is not installed.

OLMo-core supports this only with flash-attn; here it gets torch's own build of the same kernel, and on a CPU a mask.
"""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchInfo

_PACKAGES = ("flash_attn", "flash_attn_3", "flash_attn_interface")  # that OLMo-core looks for


class TorchFlashAttention:
    """The two functions of the flash-attn package that OLMo-core calls in training, implemented with torch.

    `parameters`: the parameter names of torch's `varlen_attn`, which differ between versions; None on a CPU, which has
    no such kernel.
    """

    def __init__(self, parameters: frozenset[str] | None) -> None:
        self._parameters = parameters

    def flash_attn_varlen_func(  # noqa: PLR0917 - flash-attn's own signature
        self,
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Any:
        """Compute attention within concatenated documents.

        q: (tokens, heads, head size), k and v with their own number of heads; `cu_seqlens`: borders, (documents + 1,).
        Returns the shape of q.
        """
        _refuse_dropout(dropout_p)
        window = (window_size[0], 0) if causal else window_size
        if self._parameters is None:
            return _masked_attention((q, k, v), (cu_seqlens_q, cu_seqlens_k), softmax_scale, window)
        from torch.nn.attention.varlen import varlen_attn

        options: dict[str, Any] = {} if softmax_scale is None else {"scale": softmax_scale}
        if "window_size" in self._parameters:
            options["window_size"] = window
        elif window in ((-1, 0), (-1, -1)):  # torch 2.10
            options["is_causal"] = causal
        else:
            raise ValueError("this version of torch has no varlen attention with a sliding window")
        if q.shape[1] != k.shape[1]:
            if "enable_gqa" in self._parameters:
                options["enable_gqa"] = True
            else:
                k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
        return varlen_attn(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options)

    def flash_attn_func(  # noqa: PLR0917 - flash-attn's own signature
        self,
        q: Any,
        k: Any,
        v: Any,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Any:
        """Compute attention over whole rows. q, k, v: (batch, tokens, heads, head size)."""
        import torch

        _refuse_dropout(dropout_p)
        rows = tuple(tensor.transpose(1, 2) for tensor in (q, k, v))
        mask = None
        if window_size != (-1, -1):
            positions = torch.arange(q.shape[1], device=q.device)
            mask = _attention_mask(positions, positions, (window_size[0], 0) if causal else window_size)
        options = {"is_causal": causal and mask is None, "attn_mask": mask, "scale": softmax_scale}
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(*rows, enable_gqa=q.shape[2] != k.shape[2], **options).transpose(1, 2)


def _refuse_dropout(probability: float) -> None:
    if probability:
        raise ValueError("torch's varlen attention has no dropout")


def _attention_mask(queries: Any, keys: Any, window: tuple[int, int]) -> Any:
    """Return which keys each query may attend to, by position: (queries, keys), True where allowed."""
    import torch

    ahead = keys[None, :] - queries[:, None]
    allowed = torch.ones_like(ahead, dtype=torch.bool)
    if window[0] >= 0:
        allowed &= ahead >= -window[0]
    if window[1] >= 0:
        allowed &= ahead <= window[1]
    return allowed


def _masked_attention(
    qkv: tuple[Any, Any, Any], borders: tuple[Any, Any], scale: float | None, window: tuple[int, int]
) -> Any:
    """Compute the same with a mask over all pairs of tokens, for a CPU, where torch has no such kernel."""
    import torch

    q, k, _ = qkv
    queries, keys = torch.arange(q.shape[0], device=q.device), torch.arange(k.shape[0], device=k.device)
    documents = tuple(
        torch.bucketize(indices, ends[1:], right=True) for indices, ends in zip((queries, keys), borders, strict=True)
    )
    mask = _attention_mask(queries, keys, window) & (documents[0][:, None] == documents[1][None, :])
    rows = tuple(tensor.transpose(0, 1)[None] for tensor in qkv)
    attention = torch.nn.functional.scaled_dot_product_attention
    grouped = q.shape[1] != k.shape[1]
    return attention(*rows, attn_mask=mask, scale=scale, enable_gqa=grouped)[0].transpose(0, 1)


def _not_needed(_: PatchContext) -> str | None:
    installed = [name for name in _PACKAGES if importlib.util.find_spec(name) is not None]
    return f"{installed[0]} is installed" if installed else None


def _use_torch_kernel(context: PatchContext) -> None:
    import torch
    from olmo_core.nn.attention import AttentionBackendName, flash_attn_api
    from open_instruct import model_utils
    from torch.nn.attention.varlen import varlen_attn

    on_gpu = torch.cuda.is_available()
    parameters = frozenset(inspect.signature(varlen_attn).parameters) if on_gpu else None
    flash_attn_api.flash_attn_2 = TorchFlashAttention(parameters)
    if not on_gpu:
        _separate_on_cpu()

    @replaces(model_utils, "detect_attn_implementation")
    def detect_or_torch(detect: Any) -> Any:
        implementation = detect()
        return AttentionBackendName.flash_2 if implementation == AttentionBackendName.torch else implementation

    kernel = "torch.nn.attention.varlen" if on_gpu else "a mask over all pairs of tokens"
    context.events.emit("evidence", what="flash_attention", value=kernel, how="instead of the flash-attn package")


def _separate_on_cpu() -> None:
    """Make OLMo-core's torch backend, which it always uses on a CPU, accept document borders."""
    from olmo_core.nn.attention.backend import TorchAttentionBackend
    from olmo_core.nn.attention.flash_attn_api import dispatch_flash_attn

    @replaces(TorchAttentionBackend, "forward")
    def forward_documents(
        forward: Any, self: Any, qkv: Any, cu_doc_lens: Any = None, max_doc_len: Any = None, **options: Any
    ) -> Any:
        if cu_doc_lens is None:
            return forward(self, qkv, **options)
        return dispatch_flash_attn(
            *qkv,
            cu_seqlens=cu_doc_lens,
            max_seqlen=max_doc_len,
            dropout_p=self.dropout_p,
            softmax_scale=self.scale,
            causal=True,
            window_size=self.window_size,
        )


PATCH = PatchInfo(
    id="olmo_core_documents",
    reason="OLMo-core separates packed documents only with the flash-attn package; torch has the same kernel",
    wanted=lambda facts: facts.packs,
    condition="flash-attn is not installed",
    lines={
        "olmo_core/nn/attention/flash_attn_api.py": {
            10: "import flash_attn as flash_attn_2",
            101: "return flash_attn_2.flash_attn_varlen_func(",
        },
        "olmo_core/nn/attention/backend.py": {496: "if not has_flash_attn_2():"},
        "open_instruct/olmo_core_utils.py": {82: "model_utils.detect_attn_implementation()"},
        "open_instruct/olmo_core_train_modules.py": {136: "assert attn_implementation in _DOC_LENS_ATTN_BACKENDS"},
        "olmo_core/nn/attention/__init__.py": {
            799: "if not torch.cuda.is_available() and backend != AttentionBackendName.torch:"
        },
    },
    apply=_use_torch_kernel,
    not_needed=_not_needed,
)
