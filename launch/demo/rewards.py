"""The demo's verifier: an answer is right if it is what Python prints, and nothing else.

Written as an own verifier is: it gets what TRL passes to reward functions, and is named
`rewards.py:is_right`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def is_right(completions: Sequence[Any], ground_truth: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for each completion that is its ground truth to the character, else 0."""
    texts = [
        completion if isinstance(completion, str) else completion[0]["content"]
        for completion in completions
    ]
    return [float(text.strip() == truth) for text, truth in zip(texts, ground_truth, strict=True)]
