"""The rows that TRL's trainers get, loaded as TRL's scripts load them, and those held out for
validation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .json_codec import from_json
from .trl_options import LEARNS_TEXT, MixturePart

_SEED = 42  # fixed upstream: dataset_transformation.py:1870
_VALIDATION = "validation"
TEXT = "text"  # the column of plain text, by TRL's default of dataset_text_field


def load(script: Any, mixture: Any, options: Mapping[str, str]) -> Any:
    """Load what the flags name (trl/scripts/sft.py:86-101), or the option `mixture`, and keep the
    rows that the recipe requests.

    Options: `validation`, the share of the training rows that becomes the split "validation";
    `subset`, what is trained on of the rest, a share with a point or a count; with `verifier` the
    rows are prompts. Raises ValueError where the data has no such rows.
    """
    from datasets import load_dataset
    from trl import get_dataset

    if "mixture" in options:
        return _load_parts(read_parts(options["mixture"]), options, script)
    if not mixture.datasets and not script.dataset_name:
        raise ValueError("either `datasets` or `dataset_name` must be provided")
    if mixture.datasets:
        data = get_dataset(mixture)
    else:
        data = load_dataset(
            script.dataset_name, name=script.dataset_config, streaming=script.dataset_streaming
        )
    name = script.dataset_name or "the mixture"
    data = _without_padding(data, name)
    return keep_rows(data, name, script.dataset_train_split, options)


def read_parts(text: str) -> list[MixturePart]:
    """Read the option `mixture`."""
    return [from_json(MixturePart, part) for part in json.loads(text)]


def _load_parts(parts: Sequence[MixturePart], options: Mapping[str, str], script: Any) -> Any:
    """Load several data sets, and return their rows in order as one, under the split's name in
    `script`.

    The held-out rows are one data set too, or one for each curve, by its name.
    """
    from datasets import load_dataset

    trained = []
    held_out = []
    curves = {}
    for part in parts:
        part_options = {**options, "subset": part.share}
        if part.validation is not None:
            part_options["validation"] = part.validation
        if part.holds_out != "split":
            part_options.pop("validation", None)
        loaded = _without_padding(load_dataset(part.name), part.name)
        data = keep_rows(loaded, part.name, part.split, part_options)
        trained.append(data[part.split])
        is_staged = part.holds_out == "staged" and _VALIDATION in data
        if part.curve is not None:
            curves[part.curve] = data[_VALIDATION]
        elif is_staged or "validation" in part_options:
            held_out.append(data[_VALIDATION])
    joined = {script.dataset_train_split: join_rows(trained)}
    if curves:
        joined[_VALIDATION] = curves
    elif held_out:
        joined[_VALIDATION] = join_rows(held_out)
    return joined


def _without_padding(data: Any, name: str) -> Any:
    """Return the splits of a data set of the hub without padded keys; local data, whose path is
    absolute, as it is staged.
    """
    if Path(name).is_absolute():
        return data
    return type(data)({split: remove_padding(rows, name) for split, rows in data.items()})


def remove_padding(rows: Any, name: str) -> Any:
    """Return rows whose tools are JSON texts and whose calls are JSON values, without null keys.

    Files of the hub keep both as objects with the keys of all rows, which a template would write
    with their nulls. Where a null may be the row's own, it goes, too. Rows without such objects are
    returned as they are.
    """
    from datasets import Features, List, Value
    from datasets.features import Json

    changed: dict[str, Any] = {}
    for column, feature in (rows.features or {}).items():
        if column == "tools" and _is_objects(feature):
            changed[column] = Value("string")
        elif _is_objects(feature) and _is_objects(feature.feature.get("tool_calls")):
            changed[column] = List(Json())
    if not changed:
        return rows
    print(
        f"launch: {name}: null keys of tools and their calls are left out: its files pad them",
        flush=True,
    )
    types = Features({**rows.features, **changed})
    return rows.map(partial(_unpad_row, columns=tuple(changed)), features=types)


def _is_objects(feature: Any) -> bool:
    """Return whether a type is that of lists of objects with the same keys."""
    from datasets import List

    return isinstance(feature, List) and isinstance(feature.feature, dict)


def join_rows(parts: Sequence[Any]) -> Any:
    """Return the rows of data sets as one, with the columns that all of them have, and `tools`.

    Raises ValueError for a column of two types.
    """
    from datasets import concatenate_datasets

    columns = [set(part.column_names) for part in parts]
    kept = set.intersection(*columns) | {"tools"}
    parts = _align_turns([_select_columns(part, kept) for part in parts])
    features: dict[str, Any] = {}
    for part in parts:
        for name, feature in part.features.items():
            features.setdefault(name, feature)
    try:
        return concatenate_datasets([_cast_columns(part, features) for part in parts])
    except (TypeError, ValueError) as error:  # pyarrow's errors too
        raise ValueError(
            f"the data sets do not fit together: {str(error).splitlines()[0]}"
        ) from error


def _align_turns(parts: Sequence[Any]) -> list[Any]:
    """Return parts whose tools are JSON texts and whose turns are JSON values, where they differ.

    All objects of a file have the keys of all its rows, and two files may have different keys.
    """
    from datasets import Features, Value

    aligned = []
    for part in parts:
        changed: dict[str, Any] = {}
        for name, feature in part.features.items():
            others = [other.features[name] for other in parts if name in other.features]
            target = feature
            if any(other != feature for other in others):
                target = Value("string") if name == "tools" else _json_turns(others) or feature
            if target != feature:
                changed[name] = target
        if changed:
            types = Features({**part.features, **changed})
            part = part.map(partial(_unpad_row, columns=tuple(changed)), features=types)  # noqa: PLW2901
        aligned.append(part)
    return aligned


def _json_turns(types: Sequence[Any]) -> Any:
    """Return the type of lists of JSON values, if all these types are lists of objects; else None."""
    from datasets import List
    from datasets.features import Json

    are_turns = all(isinstance(t, List) and isinstance(t.feature, (dict, Json)) for t in types)
    return List(Json()) if are_turns else None


def _unpad_row(row: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """Return these columns of a row without the keys that a file pads objects with."""
    values = {name: _without_nulls(row[name]) for name in columns}
    for name in columns:
        _keep_empty_contents(row[name], values[name])
    tools = values.get("tools")
    if tools is not None and not isinstance(tools, str):
        values["tools"] = json.dumps(tools, ensure_ascii=False) if tools else None
    return values


def _keep_empty_contents(turns: Any, cleaned: Any) -> None:
    """Write the content of turns that call a tool and have a null for a text as an empty one."""
    for turn, written in zip(turns if isinstance(turns, list) else (), cleaned, strict=False):
        if isinstance(turn, Mapping) and "content" in turn:
            written.setdefault("content", "")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _select_columns(data: Any, names: Collection[str]) -> Any:
    return data.select_columns([name for name in data.column_names if name in names])


def _cast_columns(data: Any, features: Mapping[str, Any]) -> Any:
    """Cast each column to the type that `features` has for it."""
    types = {name: features[name] for name in data.features}
    return data.cast(type(data.features)(types))


def to_prompts(data: Any) -> Any:
    """Return the rows with the column `prompt` that TRL reads: hub data has `messages`, as
    upstream's mixtures.
    """

    def convert(row: Mapping[str, Any]) -> dict[str, Any]:
        messages = list(row["messages"])
        return {"prompt": messages[:-1] if messages[-1]["role"] == "assistant" else messages}

    if all("prompt" in split.column_names for split in data.values()):
        return data
    return data.map(convert, remove_columns=["messages"])


def keep_rows(data: Any, name: str, split: str, options: Mapping[str, str]) -> Any:
    """Return the data set `name` with the rows of `split` that the options keep.

    Raises ValueError where the data has no such rows.
    """
    from datasets import DatasetDict

    validation = options.get("validation")
    subset = options.get("subset")
    if "verifier" in options:
        data = to_prompts(data)
    if options.get("learns") == LEARNS_TEXT:
        data = type(data)({part: select_text(rows, name) for part, rows in data.items()})
    if split not in data:
        raise ValueError(f"{name} has no split '{split}'; it has {', '.join(map(str, data))}")
    if validation is None and subset is None:
        return data
    if not isinstance(data, DatasetDict):
        raise ValueError(
            f"{name} is streamed: its rows cannot be counted, nor some of them held out"
        )
    if validation is not None:
        rows = data[split]
        try:
            kept, held_out = split_rows(rows, float(validation))
        except ValueError as error:
            raise ValueError(f"data.validation={float(validation):g}: {error}") from error
        data[split] = rows.select(kept)
        data[_VALIDATION] = rows.select(held_out)
        print(
            f"launch: {name}: {len(kept)} rows to train on, {len(held_out)} for validation",
            flush=True,
        )
    if subset is not None:
        rows = data[split]
        data[split] = rows.select(subset_rows(subset, len(rows)))
        print(
            f"launch: {name}: {len(rows)} -> {len(data[split])} rows (subset {subset})", flush=True
        )
    return data


def select_text(rows: Any, name: str) -> Any:
    """Return the column of plain text alone: TRL would take other columns for conversations.

    Raises ValueError for rows without the column.
    """
    if rows.column_names is not None and TEXT not in rows.column_names:
        columns = ", ".join(rows.column_names)
        raise ValueError(f"data.format=text: {name} has no column {TEXT!r}, but {columns}")
    return rows.select_columns([TEXT])


def subset_size(amount: str, rows: int) -> int:
    """Return how many of `rows` rows a mixer amount takes: "0.25" is a fraction, "512" a count.

    As open_instruct/dataset_transformation.py:2343 and :2360-2365 at the pin, where "1" is one row
    and "1.0" is all.
    Raises ValueError if `amount` is not a positive number or selects no rows.
    """
    size = int(float(amount) * rows) if "." in amount else int(amount)
    if size < 1:
        raise ValueError(f"'{amount}' of {rows} rows selects no rows")
    return size


def subset_rows(amount: str, rows: int) -> list[int]:
    """Return the row numbers that `amount` takes of `rows` rows, in order; a larger amount first
    repeats all rows.

    As open_instruct/dataset_transformation.py:1916-1943 at the pin: the rest is drawn without
    replacement with a fixed seed. Needs numpy, as every trainer does. Raises ValueError as
    `subset_size` does.
    """
    import numpy

    repeats, rest = divmod(subset_size(amount, rows), rows)
    taken = list(range(rows)) * repeats
    if rest:
        taken += numpy.random.RandomState(_SEED).choice(rows, size=rest, replace=False).tolist()
    return taken


def split_rows(rows: Any, share: float) -> tuple[list[int], list[int]]:
    """Return the numbers of the rows to train on and of those held out. Raises ValueError if either
    has none.
    """
    hashes = [hash_row(json.dumps(row, sort_keys=True, default=str).encode()) for row in rows]
    limit = choose_limit(hashes, share)
    held_out = [number for number, value in enumerate(hashes) if value <= limit]
    return [number for number, value in enumerate(hashes) if value > limit], held_out


def hash_row(content: bytes) -> int:
    """Return a hash of 64 bits."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def choose_limit(hashes: Sequence[int], share: float) -> int:
    """Return the hash up to which a row is held out, so that `share` of the rows is.

    Raises ValueError with the reason if one of the two sides would be empty.
    """
    rows = len(hashes)
    held_out = round(share * rows)
    if held_out < 1:
        raise ValueError(f"{share:g} of {rows:,} rows is less than one row")
    if held_out >= rows:
        raise ValueError(f"{share:g} of {rows:,} rows leaves none to train on")
    ordered = sorted(hashes)
    if ordered[0] == ordered[-1]:
        raise ValueError(f"all {rows:,} rows are equal")
    limit = ordered[held_out - 1]
    if limit < ordered[-1]:
        return limit
    # Equal rows have the same hash: those with the largest one are all trained on.
    return max(value for value in ordered if value < limit)
