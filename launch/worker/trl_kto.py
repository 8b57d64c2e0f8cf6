"""The rows of TRL's KTOTrainer: conversations with a label, in the order of a seed.

TRL deals them as they stand (train_sampling_strategy, trl/trainer/kto_config.py:124), because the KL
term of a row is computed with the answer of its neighbour (trl/trainer/kto_trainer.py:1159). Files
often have all good answers first, so that the rows are shuffled here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LABEL = "label"
_COMPLETION = "completion"


def prepare_rows(data: Any, split: str, seed: int) -> Any:
    """Return splits as KTOTrainer takes them, the rows of `split` in the order of the seed.

    Raises ValueError for rows without labels, and for labels that are no truth values or all the
    same. Rows of a stream are neither counted nor shuffled.
    """
    prepared: dict[str, Any] = {}
    for name, rows in data.items():
        # several validation sets, by their names
        if isinstance(rows, Mapping):
            prepared[name] = {curve: to_completions(part) for curve, part in rows.items()}
        else:
            prepared[name] = to_completions(rows)
    trained: Any = prepared[split]
    if hasattr(trained, "__len__"):
        _check_both(trained)
        prepared[split] = trained.flatten_indices().shuffle(seed=seed)
    return prepared


def to_completions(rows: Any) -> Any:
    """Return rows with `prompt`, `completion` and `label`: staged rows have `messages`, whose last
    one is the labelled answer.

    Raises ValueError for rows without labels, or whose labels are no truth values.
    """
    names = rows.column_names
    if names is None:  # a stream, whose columns are not known
        return rows
    if LABEL not in names:
        raise ValueError(f"KTO needs a column {LABEL!r}; the columns are {', '.join(names)}")
    rows = _as_truth_values(rows)
    if _COMPLETION in names or "messages" not in names:
        return rows
    return rows.map(_split_messages, remove_columns=["messages"])


def _split_messages(row: Mapping[str, Any]) -> dict[str, Any]:
    messages = list(row["messages"])
    return {"prompt": messages[:-1], _COMPLETION: messages[-1:]}


def _as_truth_values(rows: Any) -> Any:
    """Return rows whose labels are true or false, where they are 1 or 0."""
    from datasets import Value

    kind = (rows.features or {}).get(LABEL)
    if kind is None or kind.dtype == "bool":
        return rows
    values = set(rows.unique(LABEL)) if hasattr(rows, "unique") else set()
    if values and values <= {0, 1}:
        return rows.cast_column(LABEL, Value("bool"))
    shown = ", ".join(map(repr, sorted(values, key=str)[:3]))
    raise ValueError(f"KTO's labels are true or false, and the column {LABEL!r} has {shown}")


def _check_both(rows: Any) -> None:
    """Raise ValueError for rows that all have the same label."""
    values = rows.unique(LABEL)
    if len(values) < 2:
        kind = "good" if values and values[0] else "bad"
        raise ValueError(f"all {len(rows)} answers are labelled {kind}: KTO needs both kinds")
