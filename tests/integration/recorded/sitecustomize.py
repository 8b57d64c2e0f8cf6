"""Records the rows that a trainer is dealt, in the process of each rank.

Python imports this file at its start where its folder is on PYTHONPATH. Each rank writes
`rank-N.jsonl` into the folder LAUNCH_TEST_ROWS: a line `[]` where an epoch begins, and then the
rows of each micro batch by their positions in the data set.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MODULE = "accelerate.data_loader"


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `_record` with accelerate's module of data loaders once it is imported."""

    is_searching = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != _MODULE or self.is_searching:
            return None
        self.is_searching = True
        spec = importlib.util.find_spec(fullname)
        self.is_searching = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_record(module: Any) -> None:
            sys.meta_path.remove(self)
            run(module)
            _record(module)

        spec.loader.exec_module = run_and_record  # type: ignore[method-assign]
        return spec


def _record(module: Any) -> None:
    iterate = module.DataLoaderShard.__iter__

    def iterate_and_record(self: Any) -> Iterator[Any]:
        rank = os.environ.get("RANK", "0")
        path = Path(os.environ["LAUNCH_TEST_ROWS"]) / f"rank-{rank}.jsonl"
        positions = _positions(self.dataset)
        with path.open("a", encoding="utf-8") as file:
            print("[]", file=file, flush=True)
            for batch in iterate(self):
                rows = [positions[tokens] for tokens in _documents(batch)]
                print(json.dumps(rows), file=file, flush=True)
                yield batch

    module.DataLoaderShard.__iter__ = iterate_and_record


def _positions(dataset: Any) -> dict[tuple[int, ...], int]:
    """Return the position of each row by its tokens."""
    rows = dataset.with_format(None)["input_ids"]
    return {tuple(tokens): position for position, tokens in enumerate(rows)}


def _documents(batch: Any) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of each row of a batch, without padding."""
    for tokens, is_token in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        yield tuple(tokens[is_token.bool()].tolist())


if "LAUNCH_TEST_ROWS" in os.environ:
    sys.meta_path.insert(0, _Finder())
