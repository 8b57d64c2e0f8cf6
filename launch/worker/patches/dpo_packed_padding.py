"""Marks where the padding of the chosen documents begins in open_instruct/dpo.py with packing.

Chosen and rejected documents form two rows, each padded to the limit, which are concatenated. Upstream keeps only the
borders of documents (padding_free_collator.py:178-183), so the padding of the first row becomes the beginning of the
first rejected document, which attends to it. The amount of padding differs between training and the reference pass,
which packs four times as many: the first loss is not ln 2.
"""

from __future__ import annotations

from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchInfo


def split_at_border(lengths: list[int], border: int) -> list[int]:
    """Split the document that crosses `border` (tokens from the start); return the new document lengths.

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


PATCH = PatchInfo(
    id="dpo_packed_padding",
    reason="with packing, dpo.py's first rejected document attends to the padding after the chosen ones",
    wanted=lambda facts: facts.packs,
    condition="packing",
    lines={
        "open_instruct/padding_free_collator.py": {
            182: 'rejected_features["cu_seq_lens_k"][1:] + chosen_input_len]',
            114: 'tensor_utils.pad_to_length(ret["input_ids"], self.max_seq_length, pad_value=0)',
        },
        "open_instruct/dpo_utils.py": {
            987: "concatenated_batch, bs = pf_concatenated_inputs(batch)",
            993: "olmo_core_utils.doc_lens_from_cu_seq_lens(",
        },
        "open_instruct/olmo_core_utils.py": {658: "seq_lens_D = cu_seq_lens_k_D1.diff().to(torch.int32)"},
    },
    apply=_split_at_padding,
)
