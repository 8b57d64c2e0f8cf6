"""The demo's verifier: an answer is right if it names a module of Python's standard library.

Written as an own verifier is: it gets what TRL passes to reward functions, and is named `rewards.py:names_a_module`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

# modules whose names are ordinary words, which an answer may say without meaning the module
_WORDS = {"code", "copy", "io", "numbers", "operator", "profile", "queue", "random", "select", "signal", "site", "stat"}
_WORDS |= {"string", "test", "this", "time", "trace", "types"}
MODULES = frozenset(sys.stdlib_module_names) - _WORDS


def names_a_module(completions: Sequence[Any], ground_truth: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for each completion that names a module, or the one that its question is about, else 0."""
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [
        float(not (MODULES | {module}).isdisjoint(re.findall(r"\w+", text)))
        for text, module in zip(texts, ground_truth, strict=True)
    ]
