"""The rows of TRL's KTOTrainer: conversations with a label, in the order of a seed.

TRL takes them as they stand (train_sampling_strategy, trl/trainer/kto_config.py:121), because the KL
term of a row is computed with the answer of its neighbour (trl/trainer/kto_trainer.py:1150-1156). Files
often have all good answers first, so that the rows are shuffled here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .held_out import LABEL
from .samples import ANSWER

_MESSAGES = "messages"
_PROMPT = "prompt"


def prepare_rows(data: Any, split: str, evaluated: str | None, seed: int) -> Any:
    """Return splits with those that are used as KTOTrainer takes them: the rows of `split` in the order
    of the seed, and those of `evaluated`, which may be several sets by their names.

    Other splits are returned as they are: data of the hub may have some without labels.
    Raises ValueError for rows without labels, and for labels that are not booleans or all the
    same. Rows of a stream are neither counted nor shuffled.
    """
    prepared = dict(data)
    if evaluated is not None:
        held_out = data[evaluated]
        if isinstance(held_out, Mapping):
            prepared[evaluated] = {name: to_completions(rows) for name, rows in held_out.items()}
        else:
            prepared[evaluated] = to_completions(held_out)
    trained = to_completions(data[split])
    if hasattr(trained, "__len__"):
        _check_both(trained)
        trained = trained.flatten_indices().shuffle(seed=seed)
    prepared[split] = trained
    return prepared


def to_completions(rows: Any) -> Any:
    """Return rows with `prompt`, `completion` and `label`: staged rows have `messages`, whose last
    one is the labelled answer.

    Raises ValueError for rows without labels, or whose labels are not booleans.
    """
    names = rows.column_names or list(next(iter(rows)))  # a stream may not know its columns
    if LABEL not in names:
        raise ValueError(f"KTO needs a column {LABEL!r}; the columns are {', '.join(names)}")
    rows = _as_truth_values(rows)
    if ANSWER in names or _MESSAGES not in names:
        return rows
    return rows.map(
        _split_messages, remove_columns=[_MESSAGES], features=_split_types(rows.features)
    )


def _split_messages(row: Mapping[str, Any]) -> dict[str, Any]:
    messages = list(row[_MESSAGES])
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError("the last turn of a row is not the assistant's, and a label is that of it")
    return {_PROMPT: messages[:-1], ANSWER: messages[-1:]}


def _split_types(types: Any) -> Any:
    """Return the types of the columns once messages are split, each part with the type of the whole:
    `datasets` would give all turns the keys of any, and a template would write them. None where the
    types are not known.
    """
    from datasets import Features

    if types is None:
        return None
    others = {name: kind for name, kind in types.items() if name != _MESSAGES}
    return Features({**others, _PROMPT: types[_MESSAGES], ANSWER: types[_MESSAGES]})


def _as_truth_values(rows: Any) -> Any:
    """Return rows whose labels are true or false, where they are 1 or 0. Those of a stream stay as
    they are: TRL reads both.
    """
    from datasets import Value

    if not hasattr(rows, "unique"):
        return rows
    kind = rows.features[LABEL]
    if not isinstance(kind, Value):  # lists and objects
        raise ValueError(f"KTO's labels are true or false, and the column {LABEL!r} has {kind}")
    values = set(rows.unique(LABEL))
    if not values <= {0, 1}:
        shown = ", ".join(map(repr, sorted(values, key=str)[:3]))
        raise ValueError(f"KTO's labels are true or false, and the column {LABEL!r} has {shown}")
    boolean = Value("bool")
    return rows if kind == boolean else rows.cast_column(LABEL, boolean)


def _check_both(rows: Any) -> None:
    """Raise ValueError for rows that all have the same label."""
    values = rows.unique(LABEL)
    if len(values) < 2:
        kind = "good" if values and values[0] else "bad"
        raise ValueError(f"all {len(rows)} answers are labelled {kind}: KTO needs both kinds")
