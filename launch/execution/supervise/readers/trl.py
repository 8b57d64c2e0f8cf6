"""Reads the logs of TRL's trainers: phases only; the worker reports the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from launch.execution.supervise.readers.base import LogReader


class TRLReader(LogReader):
    """Derives the phase from progress bar descriptions (TRL's SFTTrainer and DPOTrainer, transformers' loading).

    The dicts that transformers prints at each logged step are ignored: the worker sees the same numbers unrounded.
    """

    phase_lines: ClassVar[Mapping[str, str]] = {
        "Loading weights": "load",
        "Loading checkpoint shards": "load",
        "Tokenizing train dataset": "tokenize",
        "Packing train dataset": "tokenize",
        "reference log probs": "reference_logprobs",
        "Saving model checkpoint to ": "checkpoint",
    }
