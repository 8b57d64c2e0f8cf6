"""The columns that launch knows: their names, and which of them a row's conversion reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from launch.config.kinds import DataFormat, Kind
from launch.data.cells import read_cell
from launch.data.labels import NAMES as LABELS
from launch.data.pairs import CHOSEN, PAIR, REJECTED, groups_of_pair
from launch.data.prompts import (
    ASKING,
    CHATS,
    EMPTY,
    SYSTEMS,
    column_of_question,
    find_column,
    find_filled,
    groups_of_question,
)
from launch.data.row_errors import RowError, not_a_row, read_json
from launch.data.tables import KeyPath
from launch.data.truths import column_of_truth
from launch.data.verdicts import find_verdict

COMPLETIONS = ("completion", "response", "answer", "output")
VERIFIER_COLUMNS = ("ground_truth", "dataset")
TEXT = "text"  # the column of plain text
TOOLS = ("tools", "functions")  # the definitions of tools, which chat templates read
REASONING = ("reasoning_content", "thinking")  # what the model thinks before its answer
# columns of other tools that a stage may not learn from, and those that it has no use for
MEDIA = (
    *("images", "videos", "audios", "image", "video", "audio"),
    *("image_path", "image_paths", "image_url"),
)
KNOWN = frozenset(
    (
        *CHATS,
        *ASKING,
        *COMPLETIONS,
        *TOOLS,
        *REASONING,
        *SYSTEMS,
        "history",
        *PAIR,
        *CHOSEN,
        *REJECTED,
        *MEDIA,
        *LABELS,
        *VERIFIER_COLUMNS,
        "chat_template_kwargs",
        TEXT,
    )
)
_ANSWERS = frozenset((*COMPLETIONS, *PAIR, *CHOSEN, *REJECTED))
# What the conversion of a format reads: of the columns of each group the first that is filled.
_GROUPS: Mapping[DataFormat, tuple[tuple[str, ...], ...]] = {
    DataFormat.chat: (CHATS, SYSTEMS, TOOLS),
    DataFormat.sharegpt: (CHATS, SYSTEMS, TOOLS),
    DataFormat.text: ((TEXT,),),
}


def columns_of(row: Mapping[str, object], form: DataFormat, kind: Kind) -> tuple[str, ...]:
    """Return the columns that the conversion of this row reads, in the order of the row.

    Of a group that no column of the row fills, the first empty one is listed.
    """
    names = set()
    groups = _groups_of(row, form)
    if kind == Kind.kto:
        groups = (*groups, LABELS)
    for group in groups:
        name = find_filled(row, group)
        if group == REASONING:
            name = find_reasoning(row)
        empty = (column for column in group if row.get(column, 0) in EMPTY)
        names.add(name or next(empty, ""))
    return tuple(name for name in row if name in names)


def columns_of_texts(row: Mapping[str, object], used: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the columns of a row that have what is asked, or an answer to it."""
    asked = column_of_question(row)
    return tuple(name for name in used if name == asked or name in _ANSWERS)


def _groups_of(row: Mapping[str, object], form: DataFormat) -> tuple[tuple[str, ...], ...]:
    if form == DataFormat.preference:
        return (*groups_of_pair(row), TOOLS)
    if form in _GROUPS:
        return _GROUPS[form]
    if form != DataFormat.prompts:
        return (SYSTEMS, ("history",), *groups_of_question(row), COMPLETIONS, REASONING, TOOLS)
    asked = (CHATS,) if find_column(row, CHATS) else groups_of_question(row)
    truth = column_of_truth(row) or "ground_truth"
    return (SYSTEMS, ("history",), *asked, (truth,), ("dataset",))


def find_reasoning(row: Mapping[str, object]) -> str:
    """Return the column with a text of what the model thinks first; "" without one."""
    texts = (name for name in REASONING if isinstance(row.get(name), str))
    return next((name for name in texts if str(row[name]).strip()), "")


def rename_columns(row: object, columns: Mapping[str, str]) -> Mapping[str, object]:
    """Return a row with the names of columns that launch knows, in the order of the row.

    `columns` has by each of them the row's own name, whose case does not matter, nor whether words in
    it are joined by spaces, hyphens or underscores; or a path below a column, such as
    `reward.ground_truth` or `answers.0`.

    Raises RowError: data_row, if the row has none of `columns`.
    """
    if not isinstance(row, dict):
        raise not_a_row(row)
    if any(not _own_name(row, name) and not _values_at(row, name) for name in columns.values()):
        row = dict(unfold(row))  # whose columns are named by the messages of launch
    own_names = {known: _own_name(row, name) for known, name in columns.items()}
    known_names = {own: known for known, own in own_names.items() if own}
    renamed: dict[str, object] = {}
    for name, value in row.items():
        usual_name = _usual_form(name)
        if name in known_names:
            renamed[known_names[name]] = value
        elif usual_name in KNOWN and usual_name not in (*row, *renamed):
            renamed[usual_name] = value
        elif name not in columns:  # `columns` names another one for it
            renamed[name] = value
    for known, own in own_names.items():
        if own:
            continue
        renamed.pop(known, None)
        for value in _values_at(row, columns[known]):
            renamed[known] = value
    if columns and renamed.keys().isdisjoint(columns):
        name = next(iter(columns.values()))
        listed = ", ".join(map(repr, row))
        raise RowError(
            f"there is no column {name!r}, which data.columns names; the row has {listed}"
        )
    return renamed


def own_paths(row: object, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the row's own names and paths of columns, by those that launch knows, where they differ."""
    if not isinstance(row, dict):
        return {}
    own = {_usual_form(name): name for name in row if _usual_form(name) in KNOWN}
    own |= {known: _own_name(row, name) or name for known, name in columns.items()}
    return {known: name for known, name in own.items() if known != name}


def _own_name(row: Mapping[str, object], name: str) -> str:
    """Return the row's column of this name, whatever its case; "" without one."""
    if name in row:
        return name
    return next((column for column in row if _usual_form(column) == _usual_form(name)), "")


def _values_at(row: Mapping[str, object], path: str) -> list[object]:
    """Return a list with the value at a path of keys and of places in lists; [] without one.

    A text on the way may hold the object or the list as JSON.
    """
    value: object = row
    for key in path.split("."):
        if isinstance(value, str):
            value = read_json(value, path)
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return []
    return [value]


def rename_path(path: KeyPath, columns: Mapping[str, str]) -> KeyPath | None:
    """Return the path of a key with the column's name that launch knows; None if it knows none."""
    column = _usual_form(path[0])
    for known, name in columns.items():
        # the elements of a list have the list's path
        keys = tuple(key for key in name.split(".") if not key.isdigit())
        if _usual_form(name) == column:
            return (known, *path[1:])
        if path[: len(keys)] == keys:
            return (known, *path[len(keys) :])
    return (column, *path[1:]) if column in KNOWN else None


def _usual_form(name: str) -> str:
    """Return a name in lower case, with an underscore for each space and hyphen in it."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def unfold(
    row: Mapping[str, object], columns: Mapping[str, str] | None = None
) -> Mapping[str, object]:
    """Return a row whose conversation stands in an object with `messages`, such as OpenAI's `input`,
    with the object's keys as columns; and turns that stand as JSON in a text as turns.

    A key that the row has as well keeps the object's name before its own, as in `input.tools`; so does
    one that `columns` names by its path.

    Raises RowError: data_row.
    """
    row = _read_cells(row)
    named = set(columns.values()) if columns else set()
    for column in (*CHATS, *ASKING):
        value = row.get(column)
        if isinstance(value, dict) and isinstance(value.get("messages"), list):
            rest = {name: each for name, each in row.items() if name != column}
            return {**dict(_inner_columns(value, column, rest, named)), **rest}
    return row


def _read_cells(row: Mapping[str, object]) -> Mapping[str, object]:
    """Return a row whose prompts and answers are turns where a text holds turns as JSON."""
    read = {}
    for name, value in row.items():
        is_cell = isinstance(value, str) and value.lstrip()[:1] in ("[", "{")
        if is_cell and _is_of_turns(name, row):
            read[name] = read_cell(value, name)
    return {**row, **read} if read else row


def _is_of_turns(name: str, row: Mapping[str, object]) -> bool:
    """Return whether a column may have turns: it asks, answers, or is one of two answers."""
    if name in ASKING or name in _ANSWERS:
        return True
    verdict = find_verdict(row.keys())
    return verdict is not None and name in verdict.answers


def _inner_columns(
    value: Mapping[str, object], column: str, rest: Mapping[str, object], named: Set[str]
) -> Iterator[tuple[str, object]]:
    for key, inner in value.items():
        path = f"{column}.{key}"
        is_column = key in KNOWN and key not in rest and path not in named
        yield (key if is_column else path), inner
