"""Converts a DeepSpeed checkpoint into its universal form, which is read at any width.

It runs in the trainer's interpreter. `main` takes a `ConversionRequest`, and prints the stages of
the conversion as DeepSpeed begins them, a line each.
"""

from __future__ import annotations

import io
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .json_codec import decode
from .process import die_with_parent


@dataclass(frozen=True)
class ConversionRequest:
    """What is converted."""

    source: Path  # the folder of DeepSpeed's own files in a checkpoint
    out: Path  # the folder to write; DeepSpeed writes `latest_universal` beside it


def main(arguments: Sequence[str]) -> None:
    """Convert by DeepSpeed's own program (deepspeed/checkpoint/ds_to_universal.py:1156).

    Its workers are processes that would outlive a killed parent, so it runs in this one alone. A
    ZeRO 1 or 2 checkpoint of accelerate's lacks the entry in which other clients describe their
    layers; DeepSpeed adds an empty one.
    """
    from deepspeed.checkpoint import ds_to_universal

    request = decode(ConversionRequest, arguments[0])
    die_with_parent()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a stage is reported as it begins
    ds_to_universal.main(
        Namespace(
            input_folder=str(request.source),
            output_folder=str(request.out),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )
