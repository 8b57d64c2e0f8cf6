"""Finds the choices of a row, and refuses an answer that names one of them which the prompt hides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launch.data.prompts import column_of_question, columns_of_question, find_filled
from launch.data.row_errors import RowError, jq_path, parse_list

_COLUMNS = (
    *("choices", "options", "answer_choices", "answer_options", "endings", "alternatives"),
    "candidates",
)
# a column for each choice: `A` and `B` of MMLU as a table, `opa`, `option1`, `ending0`
_SIBLING = re.compile(r"(|(?:option|choice|op|opt|ending|sol|answer|ans)[_ ]?)([A-Ja-j]|\d)")
_QUOTED = re.compile("'([^']*)'|\"([^\"]*)\"")
_LETTERED = re.compile(r"[\s,;(\[]\(?([A-Ja-j])\s?[).:]\s?")
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
    listed = jq_path(column)
    if isinstance(value, str):
        value = parse_list(value)
        listed = f"({listed} | fromjson)"
    if isinstance(value, str):
        return _read_written(column, value)
    if isinstance(value, list):
        return Choices((column,), tuple(map(str, value)), (), listed, "")
    if not isinstance(value, dict):
        return _find_siblings(row)
    texts = value.get("text")
    if isinstance(texts, list):  # ARC's lists of texts and labels
        keys = tuple(map(str, value.get("label") or ()))
        path = jq_path(column)
        by_key = f"{path}.text[{path}.label | index($key)]"
        return Choices((column,), tuple(map(str, texts)), keys, f"{path}.text", by_key)
    texts = tuple(map(str, value.values()))
    return Choices(
        (column,),
        texts,
        tuple(map(str, value)),
        f"[{jq_path(column)}[]]",
        f"{jq_path(column)}[$key]",
    )


def _read_written(column: str, text: str) -> Choices | None:
    """Return the choices that a text lists, as Python or NumPy prints them or with letters in front
    (`A) salt, B) tea`); None without any. No program of jq can read them.
    """
    if text.strip().startswith("["):
        quoted = [first or second for first, second in _QUOTED.findall(text)]
        return Choices((column,), tuple(quoted), (), "", "") if len(quoted) > 1 else None
    parts = _LETTERED.split(f"\n{text}")
    keys = [key.lower() for key in parts[1::2]]
    if len(keys) < 2 or keys != list("abcdefghij"[: len(keys)]):
        return None
    texts = tuple(part.strip(" ,;\n") for part in parts[2::2])
    return Choices((column,), texts, tuple(parts[1::2]), "", "")


def _find_siblings(row: Mapping[str, object]) -> Choices | None:
    """Return the choices that have a column each."""
    columns: dict[str, dict[str, str]] = {}  # by what the names begin with: key -> text
    for name, value in row.items():
        match = _SIBLING.fullmatch(name)
        if match and isinstance(value, str):
            columns.setdefault(match[1], {})[match[2]] = value
    for start, texts in columns.items():
        # `a` and `b` alone may be anything
        is_list = start or "C" in texts or "c" in texts or "A" in texts
        if len(texts) > 1 and is_list:
            names = [f"{start}{key}" for key in texts]
            listed = ", ".join(map(jq_path, names))
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
    asked = ", ".join(map(jq_path, columns_of_question(row)))
    key = answer if answer == "ground_truth" else "completion"
    written = f'{{prompt: ([{asked}] + {choices.listed} | join("\\n")), {key}: {chosen}}}'
    rest = ", ".join((asked, *map(jq_path, choices.columns), jq_path(answer)))
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
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    key = str(value).strip()
    is_letter = bool(_LETTER.fullmatch(key))
    is_number = key.isdecimal() and int(key) <= len(choices.texts)
    chosen = None
    if choices.listed and key in choices.keys:
        chosen = f"(({jq_path(answer)} | tostring) as $key | {choices.by_key})"
    elif choices.keys or not choices.listed:
        chosen = "" if is_letter or is_number else None
    elif is_letter:
        chosen = f"{choices.listed}[({jq_path(answer)} | ascii_upcase | explode[0]) - 65]"
    elif is_number and int(key) < len(choices.texts):
        chosen = f"{choices.listed}[{jq_path(answer)} | tonumber]"
    return chosen
