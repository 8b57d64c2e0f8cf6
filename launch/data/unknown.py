"""Explains why a row fits no format, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from launch.config.kinds import KINDS, Kind
from launch.data.columns import COMPLETIONS, KNOWN, TEXT, TOOLS, VERIFIER_COLUMNS
from launch.data.labels import NAMES as LABELS
from launch.data.pairs import is_pair
from launch.data.prompts import CHATS, PROMPTS, SYSTEMS, columns_of_question, find_column
from launch.data.rendered import find_mark
from launch.data.row_errors import RowError, path_of_text
from launch.data.turns import ROLE_KEYS, role_of

# words in the name of a column that may hold an answer, where launch does not know the name
_ANSWER = re.compile(
    "answer|assistant|attempt|completion|continuation|correct(?!ness)|expected|generat(ed|ion)|gold|"
    "highlights|ideal|labels?$|output|rationale|(?<!p)reference|repl(y|ies)|response|solution|summary|"
    "target|^code$|^sql$",
    re.IGNORECASE,
)
_QUESTION = re.compile(
    "article|document|human|^inputs?|instruction|passage|problem|prompt|query|question|source_text|"
    "^user",
    re.IGNORECASE,
)
_TOKENS = ("input_ids", "tokens")


def may_be_answer(name: str, value: object) -> bool:
    """Return whether a column has an answer by its name, and holds a text."""
    return bool(_ANSWER.search(name)) and path_of_text(value) is not None


def find_answers_beside(row: Mapping[str, object]) -> list[str]:
    """Return the columns beside a conversation that may have the answer to it, the known names first."""
    read = (*CHATS, *LABELS, *TOOLS)
    names = [name for name in row if name not in read and may_be_answer(name, row[name])]
    return sorted(names, key=lambda name: name not in COMPLETIONS)


def find_sentences(row: Mapping[str, object]) -> list[str]:
    """Return the columns that hold a text of several words and do not belong to the prompt."""
    asked = (*columns_of_question(row), *SYSTEMS, "history")
    return [name for name in row if name not in asked and _has_sentence(row[name])]


def _has_sentence(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(text, str) and " " in text.strip() for text in texts)


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
    elif find_column(row, _TOKENS):
        cure = "the rows are tokens: name the texts that they were made of, which trainers tokenise"
    elif kind == Kind.sft and isinstance(row.get(TEXT), str):
        cure = "data.format=text learns plain text; conversations have columns of their own: "
        cure += KINDS[kind].expected
        answer = _find_named(row, _ANSWER)
        if answer:
            cure += f"; an answer to it is learnt with {_name_columns(('prompt', 'completion'), (TEXT, answer))}"
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
    """Return overrides that name the columns, with the row's own names where it is clear which of
    them asks and which answers.
    """
    known = ("chosen", "rejected")
    if KINDS[kind].has_answers:
        known = ("prompt", "completion")
    elif kind == Kind.rlvr:
        known = ("prompt", "ground_truth")
    leaves = dict(_leaves(row))
    conversations = [path for path, value in leaves.items() if _is_conversation(value)]
    if KINDS[kind].has_answers and conversations:
        return _name_conversation(row, conversations[0], leaves[conversations[0]])
    if known[0] == "prompt":
        names = (_find_named(row, _QUESTION), _find_named(row, _ANSWER))
        if all(names):
            return _name_columns(known, names)
    texts = [path for path, value in leaves.items() if isinstance(value, str)]
    is_named = all(map(str.isidentifier, ".".join(texts).split(".")))
    is_clear = is_named and len(leaves) == len(texts) == len(known)
    if is_clear and KNOWN.isdisjoint(map(str.lower, row)):
        return _name_columns(known, texts)
    example = _name_columns(known, ("MY_COLUMN", "OTHER_COLUMN"))
    if kind == Kind.sft and texts:
        example += "; plain text is learnt with data.format=text data.columns.text=MY_COLUMN"
    return example


def _name_conversation(row: Mapping[str, object], path: str, turns: object) -> str:
    """Return overrides that name a conversation, and its answer where that stands beside it."""
    assert isinstance(turns, list)
    if role_of(turns[-1]) == "assistant":
        return _name_columns(("messages",), (path,))
    answers = [name for name in row if name not in path and may_be_answer(name, row[name])]
    if len(answers) != 1 or answers[0] in COMPLETIONS:
        return _name_columns(("prompt",), (path,))
    answer = f"{answers[0]}{path_of_text(row[answers[0]])}"
    return _name_columns(("prompt", "completion"), (path, answer))


def _name_columns(known: Sequence[str], names: Sequence[str]) -> str:
    pairs = zip(known, names, strict=True)
    return " ".join(f"data.columns.{column}={name}" for column, name in pairs)


def _find_named(row: Mapping[str, object], words: re.Pattern[str]) -> str:
    """Return where the only text stands whose column's name has one of the words; "" where there is
    none, or several. A text of several words goes before a single one.
    """
    paths = {}
    for name, value in row.items():
        path = path_of_text(value)
        if path is not None and name.isidentifier() and words.search(name):
            paths[f"{name}{path}"] = len(str(value).split()) > 1
    longer = [path for path, is_longer in paths.items() if is_longer]
    found = longer or list(paths)
    return found[0] if len(found) == 1 else ""


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
