"""Explains why a row fits no format, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from launch.config.kinds import KINDS, Kind
from launch.data.columns import COMPLETIONS, KNOWN, TEXT, VERIFIER_COLUMNS
from launch.data.pairs import is_pair
from launch.data.prompts import CHATS, PROMPTS, find_column, find_filled
from launch.data.rendered import find_mark
from launch.data.row_errors import RowError
from launch.data.turns import ROLE_KEYS, role_of

_CHOICES = ("choices", "options")
_LETTER = re.compile("[A-J]")


def explain_unknown(row: Mapping[str, object], kind: Kind) -> RowError:
    """Return the error of a row whose columns are in no format that trains this kind of stage."""
    if KINDS[kind].has_answers and is_pair(set(row)):
        message = f"preference pairs can't train {kind} stages"
        return RowError(message, "use a dpo or rm stage", "data_columns")
    columns = [f"{name!r} (null)" if value is None else repr(name) for name, value in row.items()]
    names = ", ".join(columns) or "none"
    has_conversation = not set(row).isdisjoint((*CHATS, *COMPLETIONS))
    if has_conversation and KINDS[kind].is_paired:
        message = f"a {kind} stage needs pairs, and the columns are {names}"
        return RowError(message, f"expected are {KINDS[kind].expected}", "data_columns")
    rows = _find_nested_rows(row, kind)
    transcript = _find_transcript(row)
    if find_column(row, ROLE_KEYS):
        cure = "each row is one turn: write the turns of a conversation as the list messages of one row"
    elif kind == Kind.sft and isinstance(row.get(TEXT), str):
        cure = "data.format=text learns plain text; conversations have columns of their own: "
        cure += KINDS[kind].expected
    elif transcript:
        cure = f"{transcript!r} is a conversation in one text: split it into a list of messages"
    elif rows:
        cure = f"if {rows!r} is the list of rows, write it alone: jq -c '.{rows}[]'"
    else:
        example = _example_of_columns(row, kind)
        cure = f"expected are {KINDS[kind].expected}; name yours, as in {example}"
    return RowError(f"the columns {names} fit no known format", cure, "data_columns")


def _find_transcript(row: Mapping[str, object]) -> str | None:
    """Return the first column whose text has the marks of several turns; None without one."""
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    return next((name for name, text in texts.items() if find_mark(text)), None)


def _example_of_columns(row: Mapping[str, object], kind: Kind) -> str:
    """Return overrides that name the columns, with the row's own names if there are as many texts
    and launch knows none of them.
    """
    known = ("chosen", "rejected")
    if KINDS[kind].has_answers:
        known = ("prompt", "completion")
    elif kind == Kind.rlvr:
        known = ("prompt", "ground_truth")
    names = ["MY_COLUMN", "OTHER_COLUMN"]
    leaves = dict(_leaves(row))
    conversations = [path for path, value in leaves.items() if _is_conversation(value)]
    if KINDS[kind].has_answers and conversations:
        return f"data.columns.messages={conversations[0]}"
    texts = [path for path, value in leaves.items() if isinstance(value, str)]
    is_named = all(map(str.isidentifier, ".".join(texts).split(".")))
    is_clear = is_named and len(leaves) == len(texts) == len(known)
    if is_clear and KNOWN.isdisjoint(map(str.lower, row)):
        names = texts
    overrides = [f"data.columns.{column}={name}" for column, name in zip(known, names, strict=True)]
    return " ".join(overrides)


def _is_conversation(value: object) -> bool:
    return isinstance(value, list) and bool(value) and role_of(value[0]) is not None


def _leaves(value: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the path and the value of each column, and of each key of the objects in it."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{above}{key}.")
        else:
            yield f"{above}{key}", inner


def _find_nested_rows(row: Mapping[str, object], kind: Kind) -> str | None:
    """Return the only column with a list of rows of a known format; None without one.

    Such a file is one object around its rows.
    """
    columns = []
    for name, value in row.items():
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, dict) and _is_row(first, kind):
            columns.append(name)
    return columns[0] if len(columns) == 1 else None


def _is_row(value: Mapping[str, object], kind: Kind) -> bool:
    names = {str(name).strip().lower() for name in value}
    if KINDS[kind].is_paired:
        return is_pair(names)
    is_chat = not names.isdisjoint(CHATS)
    return is_chat or (not names.isdisjoint(("instruction", *PROMPTS)) and _has_answer(names, kind))


def _has_answer(names: set[str], kind: Kind) -> bool:
    return not names.isdisjoint(VERIFIER_COLUMNS if kind == Kind.rlvr else COMPLETIONS)


def refuse_choices(row: Mapping[str, object], answer: str) -> None:
    """Refuse a row whose answer names one of several choices, by its number or letter, that the
    prompt does not show.

    Raises RowError: data_row.
    """
    column = find_filled(row, _CHOICES)
    prompt = find_column(row, ("instruction", *PROMPTS))
    choices = row.get(column)
    texts = choices.get("text") if isinstance(choices, dict) else choices
    labels = choices.get("label") if isinstance(choices, dict) else None
    if not isinstance(texts, list) or not texts or str(texts[0]) in str(row.get(prompt)):
        return
    value = row.get(answer)
    is_number = isinstance(value, int) and not isinstance(value, bool) and value < len(texts)
    is_letter = isinstance(value, str) and bool(_LETTER.fullmatch(value.strip()))
    if not is_number and not is_letter:
        return
    listed = f".{column}.text" if isinstance(choices, dict) else f".{column}"
    index = f".{answer}" if is_number else f"((.{answer} | explode[0]) - 65)"
    if labels:
        index = f"(.{answer} as $key | .{column}.label | index($key))"
    key = answer if answer in VERIFIER_COLUMNS else "completion"
    program = f'{{prompt: ([.{prompt}] + {listed} | join("\\n")), {key}: {listed}[{index}]}}'
    message = f"{answer} names one of {column}, which {prompt} does not show"
    raise RowError(message, f"write both out: jq -c '{program}'")
