"""Writes the lengths of the tokenised samples for the planner (read by launch/planning/lengths.py)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import columns
from ..channel import EventWriter
from ..replacing import replaces
from .patch import PatchContext, PatchInfo, on_request

SCHEMA_VERSION = 1
_ID = "lengths"
_MAX_PAIRS = 4096  # pairs whose two lengths are kept


def build_content(lengths: columns.SampleLengths) -> dict[str, Any]:
    """Build the file's content: histograms {length: samples} and, for pairs, the lengths of an evenly spaced subset."""
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "sft" if len(lengths.halves) == 1 else "dpo",
        "label_tokens": None if lengths.loss_tokens is None else sum(lengths.loss_tokens),
        "tokens": _histogram(lengths.tokens()),
    }
    if len(lengths.halves) == 2:
        chosen, rejected = lengths.halves
        content["chosen"], content["rejected"] = _histogram(chosen), _histogram(rejected)
        content["longer"] = _histogram(map(max, chosen, rejected))
        stride = max(1, -(-len(chosen) // _MAX_PAIRS))
        content["pairs"] = list(zip(chosen[::stride], rejected[::stride], strict=True))
    return content


def write(path: Path, content: dict[str, Any]) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)


def _histogram(lengths: Iterable[int]) -> dict[str, int]:
    return {str(length): count for length, count in sorted(Counter(lengths).items())}


def _write_after_tokenizing(context: PatchContext) -> None:
    from open_instruct import dataset_transformation

    if context.events.rank != 0:
        return

    @replaces(dataset_transformation, "get_cached_dataset_tulu_with_statistics")
    def build_and_write(build: Any, *arguments: Any, **options: Any) -> Any:
        built = build(*arguments, **options)
        # only the first dataset is the training data
        dataset_transformation.get_cached_dataset_tulu_with_statistics = build
        write_lengths(Path(str(context.value)), built[0], context.events)
        return built


def write_lengths(path: Path, dataset: Any, events: EventWriter) -> None:
    """Write the lengths of a tokenised data set. Failing is only a warning: the file serves the next plan."""
    try:
        write(path, build_content(columns.read_lengths(dataset)))
    except (OSError, ValueError) as error:
        events.warn(f"could not write the lengths of the tokenised data: {error}")


PATCH = PatchInfo(
    id=_ID,
    reason="counts the lengths of the tokenised samples for the next plan's predictions; changes nothing",
    wanted=on_request,
    condition="always; the value is the output file",
    lines={
        "open_instruct/dataset_transformation.py": {
            2382: "def get_cached_dataset_tulu_with_statistics(",
            2440: "return get_cached_dataset_tulu_with_statistics(",
        },
        "open_instruct/finetune.py": {500: 'transform_fn_args = [{"max_seq_length": args.max_seq_length}, {}]'},
    },
    apply=_write_after_tokenizing,
    takes_value=True,
)
