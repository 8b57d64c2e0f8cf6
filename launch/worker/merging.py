"""Merges an adapter into its base, and compares the saved model with base and adapter.

It runs in the trainer's interpreter. `main` takes a `MergeRequest`, and prints one JSON object with
the differences.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from .json_codec import decode
from .model_loading import load_model

_FALLBACK_TOKENS = 64  # tokens of the row that is compared if the run's own samples are unknown


@dataclass(frozen=True)
class MergeRequest:
    """What is merged."""

    adapter: Path  # a folder
    out: Path  # an empty one
    rows: Sequence[Sequence[int]]  # token ids to compare on
    dtype: str
    quantized: bool  # whether the run kept the base in 4 bit
    copied: Sequence[str]  # files of the adapter's folder that the merged model needs


def main(arguments: Sequence[str]) -> None:
    """Merge, save, load what was saved, compare, and print the differences."""
    request = decode(MergeRequest, arguments[0])
    adapter = request.adapter
    out = request.out
    dtype = request.dtype
    model, _ = load_model(adapter, dtype=dtype)
    rows = request.rows or [_fallback_row(model)]
    with model.disable_adapter():
        base = compute_logits(model, rows)
    adapted = compute_logits(model, rows)
    merged = model.merge_and_unload(safe_merge=True)
    merged.save_pretrained(out)
    del model, merged
    for name in request.copied:
        if (adapter / name).is_file():
            (out / name).write_bytes((adapter / name).read_bytes())
    saved, _ = load_model(out, dtype=dtype)
    reloaded = compute_logits(saved, rows)
    report = {
        "dtype": str(saved.dtype).removeprefix("torch."),
        "tokens": sum(len(row) for row in rows),
        "own_samples": bool(request.rows),
        "error": logit_difference(reloaded, adapted),
        "adapter_effect": logit_difference(base, adapted),
        "same_first_choice": _agreement(reloaded, adapted),
    }
    if request.quantized:
        del saved
        quantized, _ = load_model(adapter, dtype=dtype, quantized=True)
        report["quantized_error"] = logit_difference(reloaded, compute_logits(quantized, rows))
    print(json.dumps(report), flush=True)


def compute_logits(model: Any, rows: Sequence[Sequence[int]]) -> list[Any]:
    """Return the logits of each row as fp32 on the CPU, tokens x vocabulary."""
    import torch

    device = next(model.parameters()).device
    with torch.no_grad():
        return [
            model(input_ids=torch.tensor([row], device=device)).logits[0].float().cpu()
            for row in rows
        ]


def logit_difference(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Return the mean absolute difference of logits.

    It is a share of the standard deviation of `right`.
    """
    pairs = zip(left, right, strict=True)
    difference = fmean(float((a - b).abs().mean()) for a, b in pairs)
    spread = fmean(float(logits.std()) for logits in right)
    return difference / spread if spread else difference


def _agreement(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Return the share of tokens after which both models find the same token most likely."""
    same = 0
    tokens = 0
    for a, b in zip(left, right, strict=True):
        same += int((a.argmax(-1) == b.argmax(-1)).sum())
        tokens += int(b.shape[0])
    return same / tokens


def _fallback_row(model: Any) -> list[int]:
    """Return the first tokens of the vocabulary."""
    size = min(_FALLBACK_TOKENS, model.get_input_embeddings().weight.shape[0])
    return list(range(size))
