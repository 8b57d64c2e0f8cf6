"""Finds the choices of a row, and refuses an answer that names one of them which the prompt hides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launch.data.prompts import column_of_question, columns_of_question, find_filled
from launch.data.row_errors import RowError, parse_list

_COLUMNS = ("choices", "options")
# a column for each choice: `A` and `B` of MMLU as a table, `opa`, `option1`, `ending0`
_SIBLING = re.compile(r"(|(?:option|choice|op|opt|ending|sol)[_ ]?)([A-Ja-j]|\d)")
_LETTER = re.compile("[A-Ja-j]")
_CURE = "write the choices into the prompt, and the text of the right one as the answer"


@dataclass(frozen=True)
class Choices:
    """The choices of a row."""

    columns: tuple[str, ...]
    texts: tuple[str, ...]
    keys: tuple[str, ...]  # what names each; () where that is its position
    listed: str  # jq's expression of the list of texts
    by_key: str  # jq's expression of the text that `$key` names; "" where that is its position

    @property
    def name(self) -> str:
        """What has the choices, in a sentence."""
        return ", ".join(self.columns)


def find_choices(row: Mapping[str, object]) -> Choices | None:
    """Return the choices of a row; None without any."""
    column = find_filled(row, _COLUMNS)
    value = row.get(column)
    if isinstance(value, str):
        value = parse_list(value)
    if isinstance(value, list):
        return Choices((column,), tuple(map(str, value)), (), f".{column}", "")
    if not isinstance(value, dict):
        return _find_siblings(row)
    texts = value.get("text")
    if isinstance(texts, list):  # ARC's lists of texts and labels
        keys = tuple(map(str, value.get("label") or ()))
        by_key = f".{column}.text[.{column}.label | index($key)]"
        return Choices((column,), tuple(map(str, texts)), keys, f".{column}.text", by_key)
    texts = tuple(map(str, value.values()))
    return Choices((column,), texts, tuple(map(str, value)), f"[.{column}[]]", f".{column}[$key]")


def _find_siblings(row: Mapping[str, object]) -> Choices | None:
    """Return the choices that have a column each."""
    columns: dict[str, dict[str, str]] = {}  # by what the names begin with: key -> text
    for name, value in row.items():
        match = _SIBLING.fullmatch(name)
        if match and isinstance(value, str) and (match[1] or match[2].isupper()):
            columns.setdefault(match[1], {})[match[2]] = value
    for start, texts in columns.items():
        if len(texts) > 1:
            names = [f"{start}{key}" for key in texts]
            listed = ", ".join(f'.["{name}"]' for name in names)
            return Choices(
                tuple(names),
                tuple(texts.values()),
                tuple(texts),
                f"[{listed}]",
                f'.["{start}" + $key]',
            )
    return None


def refuse_choices(row: Mapping[str, object], answer: str) -> None:
    """Refuse a row whose answer names one of several choices, by its number or letter, that the
    prompt does not show.

    Raises RowError: data_row.
    """
    choices = find_choices(row)
    if choices is None or _are_shown(choices, row):
        return
    chosen = _choose(choices, row.get(answer), answer)
    if chosen is None:
        return
    asked = ", ".join(f".{name}" for name in columns_of_question(row))
    key = answer if answer == "ground_truth" else "completion"
    written = f'{{prompt: ([{asked}] + {choices.listed} | join("\\n")), {key}: {chosen}}}'
    rest = ", ".join((asked, *(f'.["{name}"]' for name in choices.columns), f".{answer}"))
    program = f"del({rest}) + {written}"
    message = f"{answer} names one of {choices.name}, which {column_of_question(row)} does not show"
    cure = f"write both out, of JSON lines with: jq -c '{program}'" if chosen else _CURE
    raise RowError(message, cure)


def refuse_hidden_choices(row: Mapping[str, object]) -> None:
    """Refuse a prompt that does not show the choices beside it. Raises RowError: data_row."""
    choices = find_choices(row)
    if choices is not None and not _are_shown(choices, row):
        message = f"{column_of_question(row)} does not show its choices ({choices.name})"
        raise RowError(message, f"{_CURE}; or take the prompts as they are (--kind rlvr)")


def _are_shown(choices: Choices, row: Mapping[str, object]) -> bool:
    """Return whether the question has the choices; a passage above it has them by chance."""
    columns = [name for name in columns_of_question(row) if name != "context"]
    question = "\n".join(str(row[name]) for name in columns)
    return all(text in question for text in choices.texts)


def _choose(choices: Choices, value: object, answer: str) -> str | None:
    """Return jq's expression of the text that an answer names; "" where it is not clear which one
    that is, and None where it names none.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    key = str(value).strip()
    if key in choices.keys:
        return f"((.{answer} | tostring) as $key | {choices.by_key})"
    is_letter = bool(_LETTER.fullmatch(key))
    is_number = key.isdecimal() and int(key) <= len(choices.texts)
    if choices.keys:
        return "" if is_letter or is_number else None
    if is_letter:
        return f"{choices.listed}[(.{answer} | ascii_upcase | explode[0]) - 65]"
    if is_number and int(key) < len(choices.texts):
        return f"{choices.listed}[.{answer} | tonumber]"
    return None
