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
# The tokens of a row: a chat, or the chosen one of a pair of open-instruct's.
_COLUMNS = ("input_ids", "chosen_input_ids")


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
    from torch import is_grad_enabled

    iterate = module.DataLoaderShard.__iter__

    def iterate_and_record(self: Any) -> Iterator[Any]:
        if not is_grad_enabled():  # the reference's log-probs, which are no training
            yield from iterate(self)
            return
        rank = os.environ.get("RANK", "0")
        path = Path(os.environ["LAUNCH_TEST_ROWS"]) / f"rank-{rank}.jsonl"
        column = next(name for name in _COLUMNS if name in self.dataset.column_names)
        positions = _positions(self.dataset, column)
        with path.open("a", encoding="utf-8") as file:
            print("[]", file=file, flush=True)
            for batch in iterate(self):
                rows = [positions[tokens] for tokens in _documents(batch, column)]
                print(json.dumps(rows), file=file, flush=True)
                yield batch

    module.DataLoaderShard.__iter__ = iterate_and_record


def _positions(dataset: Any, column: str) -> dict[tuple[int, ...], int]:
    """Return the position of each row by its tokens."""
    rows = dataset.with_format(None)[column]
    return {tuple(tokens): position for position, tokens in enumerate(rows)}


def _documents(batch: Any, column: str) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of each row of a batch, without padding."""
    masks = batch[column.replace("input_ids", "attention_mask")]
    for tokens, is_token in zip(batch[column], masks, strict=True):
        yield tuple(tokens[is_token.bool()].tolist())


if "LAUNCH_TEST_ROWS" in os.environ and _MODULE in sys.modules:  # the fork of a warm server
    _record(sys.modules[_MODULE])
elif "LAUNCH_TEST_ROWS" in os.environ:
    sys.meta_path.insert(0, _Finder())
