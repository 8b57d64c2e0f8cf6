"""Whether all weights of a loaded model come from its checkpoint."""

from __future__ import annotations

from typing import Any

from ..finding import Evidence

_CHECKPOINT = "checkpoint"
_SHOWN = 3
# a reward model's new head (transformers modeling_layers.py, GenericForSequenceClassification)
_NEW_HEADS = ("score.", "classifier.")


def compare(model: Any, source: object, info: Any) -> Evidence:
    """Compare a model's weights with what its checkpoint had.

    `info`: transformers' LoadStateDictInfo: `missing_keys` are drawn at random, and so are `mismatched_keys`, whose
    shape differs. A checkpoint's further weights, as of another head, are not used and do no harm.
    """
    how = f"transformers' report of loading {source}"
    makes_head = type(model).__name__.endswith("ForSequenceClassification")
    missing = sorted(key for key in info.missing_keys if not (makes_head and key.startswith(_NEW_HEADS)))
    mismatched = sorted(key for key, *_ in info.mismatched_keys)
    if not missing and not mismatched:
        return Evidence("weights", _CHECKPOINT, how)
    absent = [f"{key} is missing" for key in missing] + [f"{key} has another shape" for key in mismatched]
    more = f", and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    finding = Evidence("weights", f"{len(absent)} weights at random", how, note=", ".join(absent[:_SHOWN]) + more)
    return finding.judge(_CHECKPOINT, False)
