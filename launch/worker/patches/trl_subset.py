"""Selects a subset of a dataset for TRL's scripts: the rows that open-instruct would take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..replacing import replaces
from .patch import PatchContext, PatchError, PatchInfo

_ID = "trl_subset"
_SEED = 42  # fixed upstream: dataset_transformation.py:1870


def subset_size(amount: str, rows: int) -> int:
    """Return how many of `rows` rows a mixer amount takes: "0.25" is a fraction, "512" a count.

    As open_instruct/dataset_transformation.py:2343 and :2360-2365 at the pin, where "1" is one row and "1.0" is all.
    Raises ValueError if `amount` is not a positive number or selects no rows.
    """
    size = int(float(amount) * rows) if "." in amount else int(amount)
    if size < 1:
        raise ValueError(f"'{amount}' of {rows} rows selects no rows")
    return size


def subset_rows(amount: str, rows: int) -> list[int]:
    """Return the row numbers that `amount` takes of `rows` rows, in order; a larger amount first repeats all rows.

    As open_instruct/dataset_transformation.py:1916-1943 at the pin: the rest is drawn without replacement with a
    fixed seed. Needs numpy, as every trainer does. Raises ValueError as `subset_size` does.
    """
    import numpy

    repeats, rest = divmod(subset_size(amount, rows), rows)
    taken = list(range(rows)) * repeats
    if rest:
        taken += numpy.random.RandomState(_SEED).choice(rows, size=rest, replace=False).tolist()
    return taken


def change_split(context: PatchContext, patch: str, change: Callable[[str, Any, str], None]) -> None:
    """Have `change` edit what TRL's script loads for training: it gets the name, the DatasetDict and the split."""
    import datasets

    name = context.trainer.flag("dataset_name")
    split = context.trainer.flag("dataset_train_split") or "train"
    if name is None:
        raise PatchError(patch, "needs the trainer flag --dataset_name")

    @replaces(datasets, "load_dataset")
    def load_and_change(load: Any, path: str, *arguments: Any, **options: Any) -> Any:
        loaded = load(path, *arguments, **options)
        if path != name:
            return loaded
        if not isinstance(loaded, datasets.DatasetDict) or split not in loaded:
            raise PatchError(patch, f"{path} is a {type(loaded).__name__}, not a DatasetDict with a split '{split}'")
        change(name, loaded, split)
        return loaded


def _take_subset(context: PatchContext) -> None:
    amount = str(context.value)
    try:
        subset_size(amount, 2**62)
    except ValueError as error:
        raise PatchError(_ID, str(error)) from error

    def take(name: str, loaded: Any, split: str) -> None:
        rows = loaded[split]
        loaded[split] = rows.select(subset_rows(amount, len(rows)))
        print(f"launch: {name}: {len(rows)} -> {len(loaded[split])} rows (patch {_ID}={amount})", flush=True)

    change_split(context, _ID, take)


_LOADS = "from datasets import load_dataset"
_CALLS = "script_args.dataset_name, name=script_args.dataset_config, streaming=script_args.dataset_streaming"

SUBSET = PatchInfo(
    id=_ID,
    reason="TRL's scripts always train on a whole split; this takes the rows that open-instruct would take",
    wanted=lambda facts: facts.subset,
    condition="always; the value is a fraction with a point, or a count of rows",
    lines={"trl/scripts/sft.py": {69: _LOADS, 97: _CALLS}, "trl/scripts/dpo.py": {67: _LOADS, 95: _CALLS}},
    apply=_take_subset,
    takes_value=True,
)
