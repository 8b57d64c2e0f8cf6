"""Patches that keep packed documents apart in OLMo-core's trainers.

OLMo-core separates documents only with flash-attn; here it gets torch's own build of the same
kernel, and on a CPU a mask.

In a row of dpo.py the chosen and rejected documents form two rows, each padded to the limit, which
are concatenated. Upstream keeps only the borders of documents (padding_free_collator.py:178-183),
so the padding of the first row becomes the beginning of the first rejected document, which attends
to it. The amount of padding differs between training and the reference pass, which packs four times
as many: the first loss is not ln 2.

olmo_core_finetune.py writes where each chat begins and ends (token_ids_part_*.csv.gz). OLMo-core
reads that only on request: by default every end token ends a document. A chat with several answers
is then torn apart. A chat that was cut off has no end token, so it is one document with the chat
after it, which is cut off in turn (olmo_core/data/utils.py:193-206).
"""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

from ..hooks import replaces
from .patch import PatchContext, PatchInfo

# The packages that OLMo-core looks for.
_PACKAGES = ("flash_attn", "flash_attn_3", "flash_attn_interface")


class TorchFlashAttention:
    """The two functions of the flash-attn package that OLMo-core calls in training, implemented
    with torch.

    `parameters`: the parameter names of torch's `varlen_attn`, which differ between versions; None
    on a CPU, which has no such kernel.
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

        q: (tokens, heads, head size), k and v with their own number of heads; `cu_seqlens`:
        borders, (documents + 1,).
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
                repeats = q.shape[1] // k.shape[1]
                k = k.repeat_interleave(repeats, dim=1)
                v = v.repeat_interleave(repeats, dim=1)
        return varlen_attn(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options
        )

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
            window = (window_size[0], 0) if causal else window_size
            positions = torch.arange(q.shape[1], device=q.device)
            mask = _attention_mask(positions, positions, window)
        options = {"is_causal": causal and mask is None, "attn_mask": mask, "scale": softmax_scale}
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(*rows, enable_gqa=q.shape[2] != k.shape[2], **options).transpose(1, 2)


def _refuse_dropout(probability: float) -> None:
    if probability:
        raise ValueError("torch's varlen attention has no dropout")


def _attention_mask(queries: Any, keys: Any, window: tuple[int, int]) -> Any:
    """Return which keys each query may attend to, by position: (queries, keys), True where
    allowed.
    """
    import torch

    ahead = keys[None, :] - queries[:, None]
    allowed = torch.ones_like(ahead, dtype=torch.bool)
    if window[0] >= 0:
        allowed &= ahead >= -window[0]
    if window[1] >= 0:
        allowed &= ahead <= window[1]
    return allowed


def _masked_attention(
    qkv: tuple[Any, Any, Any],
    borders: tuple[Any, Any],
    scale: float | None,
    window: tuple[int, int],
) -> Any:
    """Compute `flash_attn_varlen_func` with a mask over all pairs of tokens, for a CPU."""
    import torch

    q, k, _ = qkv
    query_borders, key_borders = borders
    queries = torch.arange(q.shape[0], device=q.device)
    keys = torch.arange(k.shape[0], device=k.device)
    # These tensors have the number of each token's document.
    query_documents = torch.bucketize(queries, query_borders[1:], right=True)
    key_documents = torch.bucketize(keys, key_borders[1:], right=True)
    is_same_document = query_documents[:, None] == key_documents[None, :]
    mask = _attention_mask(queries, keys, window) & is_same_document
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
        if implementation == AttentionBackendName.torch:
            return AttentionBackendName.flash_2
        return implementation

    kernel = "torch.nn.attention.varlen" if on_gpu else "a mask over all pairs of tokens"
    context.events.emit(
        "evidence", what="flash_attention", value=kernel, how="instead of the flash-attn package"
    )


def _separate_on_cpu() -> None:
    """Make OLMo-core's torch backend, which it always uses on a CPU, accept document borders."""
    from olmo_core.nn.attention.backend import TorchAttentionBackend
    from olmo_core.nn.attention.flash_attn_api import dispatch_flash_attn

    @replaces(TorchAttentionBackend, "forward")
    def forward_documents(
        forward: Any,
        self: Any,
        qkv: Any,
        cu_doc_lens: Any = None,
        max_doc_len: Any = None,
        **options: Any,
    ) -> Any:
        if cu_doc_lens is None:
            return forward(self, qkv, **options)
        return dispatch_flash_attn(
            *qkv,
            causal=True,
            cu_seqlens=cu_doc_lens,
            dropout_p=self.dropout_p,
            max_seqlen=max_doc_len,
            softmax_scale=self.scale,
            window_size=self.window_size,
        )


SEPARATION = PatchInfo(
    id="olmo_core_documents",
    reason="gives OLMo-core torch's own flash-attention kernel (a mask on a CPU), because it "
    "separates packed documents only with the flash-attn package",
    lines={
        "olmo_core/nn/attention/flash_attn_api.py": {
            10: "import flash_attn as flash_attn_2",
            101: "return flash_attn_2.flash_attn_varlen_func(",
        },
        "olmo_core/nn/attention/backend.py": {496: "if not has_flash_attn_2():"},
        "open_instruct/olmo_core_utils.py": {82: "model_utils.detect_attn_implementation()"},
        "open_instruct/olmo_core_train_modules.py": {
            136: "assert attn_implementation in _DOC_LENS_ATTN_BACKENDS"
        },
        "olmo_core/nn/attention/__init__.py": {
            799: "if not torch.cuda.is_available() and backend != AttentionBackendName.torch:"
        },
    },
    apply=_use_torch_kernel,
    not_needed=_not_needed,
)


def split_at_border(lengths: list[int], border: int) -> list[int]:
    """Split the document that crosses `border` (tokens from the start); return the new document
    lengths.

    >>> split_at_border([3, 9, 4], 8)
    [3, 5, 4, 4]
    >>> split_at_border([3, 5, 4], 8)
    [3, 5, 4]
    """
    cut: list[int] = []
    begin = 0
    for length in lengths:
        if begin < border < begin + length:
            cut += [border - begin, begin + length - border]
        else:
            cut.append(length)
        begin += length
    return cut


def _split_at_padding(_: PatchContext) -> None:
    import torch
    from open_instruct import dpo_utils, olmo_core_utils

    chosen: list[int] = [0]  # tokens of the chosen row of the latest batch, padding included

    @replaces(dpo_utils, "pf_concatenated_inputs")
    def note_border(concatenate: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
        chosen[0] = int(batch["chosen_input_ids"].shape[-1])
        return concatenate(batch, *arguments, **options)

    @replaces(olmo_core_utils, "doc_lens_from_cu_seq_lens")
    def split_lengths(lengths_of: Any, *arguments: Any, **options: Any) -> Any:
        lengths, _ = lengths_of(*arguments, **options)
        cut = split_at_border([int(length) for length in lengths[0].tolist()], chosen[0])
        return torch.tensor([cut], dtype=lengths.dtype, device=lengths.device), [max(cut)]


PADDING = PatchInfo(
    id="dpo_packed_padding",
    reason="separates the padding after dpo.py's packed chosen documents from the first rejected "
    "document, which would attend to it",
    lines={
        "open_instruct/padding_free_collator.py": {
            182: 'rejected_features["cu_seq_lens_k"][1:] + chosen_input_len]',
            114: 'tensor_utils.pad_to_length(ret["input_ids"], self.max_seq_length, pad_value=0)',
        },
        "open_instruct/dpo_utils.py": {
            987: "concatenated_batch, bs = pf_concatenated_inputs(batch)",
            993: "olmo_core_utils.doc_lens_from_cu_seq_lens(",
        },
        "open_instruct/olmo_core_utils.py": {
            658: "seq_lens_D = cu_seq_lens_k_D1.diff().to(torch.int32)"
        },
    },
    apply=_split_at_padding,
)


def _read_boundaries(_: PatchContext) -> None:
    from olmo_core.data import NumpyPackedFSLDatasetConfig

    @replaces(NumpyPackedFSLDatasetConfig, "build")
    def build_from_metadata(build: Any, self: Any) -> Any:
        self.use_array_if_local = False
        return build(self)


WHOLE_CHATS = PatchInfo(
    id="olmo_core_whole_chats",
    reason="has OLMo-core read where upstream's packing ends each chat: it would split chats at each "
    "end token, and drop the one after a truncated chat",
    lines={
        "open_instruct/olmo_core_finetune.py": {
            232: "np_dataset_config = oc_data.NumpyPackedFSLDatasetConfig("
        },
        "olmo_core/data/numpy_dataset.py": {2991: "use_array_if_local: Optional[bool] = None"},
        "olmo_core/data/utils.py": {219: "doc_boundaries = (mmap == eos_token_id).nonzero()[0]"},
    },
    apply=_read_boundaries,
)
