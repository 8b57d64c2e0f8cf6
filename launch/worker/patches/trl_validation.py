"""Holds out a share of a dataset that TRL's scripts load, where `launch` has not split the data itself."""

from __future__ import annotations

import json
from typing import Any

from ..held_out import choose_limit, hash_row
from .patch import PatchContext, PatchError, PatchInfo
from .trl_subset import change_split

_ID = "trl_validation"
_NAME = "validation"


def split_rows(rows: Any, share: float) -> tuple[list[int], list[int]]:
    """Return the numbers of the rows to train on and of those held out. Raises ValueError if either has none."""
    hashes = [hash_row(json.dumps(row, sort_keys=True, default=str).encode()) for row in rows]
    limit = choose_limit(hashes, share)
    held_out = [number for number, value in enumerate(hashes) if value <= limit]
    return [number for number, value in enumerate(hashes) if value > limit], held_out


def _hold_out(context: PatchContext) -> None:
    share = float(str(context.value))

    def split_off(name: str, loaded: Any, split: str) -> None:
        rows = loaded[split]
        try:
            kept, held_out = split_rows(rows, share)
        except ValueError as error:
            raise PatchError(_ID, f"data.validation={share:g}: {error}") from error
        loaded[split], loaded[_NAME] = rows.select(kept), rows.select(held_out)
        print(f"launch: {name}: {len(kept)} rows to train on, {len(held_out)} for validation", flush=True)

    change_split(context, _ID, split_off)


_LOADS = "from datasets import load_dataset"
_PASSES = 'eval_dataset=dataset[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None,'

PATCH = PatchInfo(
    id=_ID,
    reason="holds out data.validation of data that launch does not stage (of the hub, the demo's)",
    wanted=lambda facts: facts.held_out,
    condition="data.validation is a share and the data is not staged; the value is the share",
    lines={"trl/scripts/sft.py": {69: _LOADS, 107: _PASSES}, "trl/scripts/dpo.py": {67: _LOADS, 105: _PASSES}},
    apply=_hold_out,
    takes_value=True,
)
