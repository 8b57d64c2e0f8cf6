"""Explains why a row fits no format, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from launch.config.kinds import KINDS, Kind
from launch.data.columns import COMPLETIONS, KNOWN, TEXT, TOOLS
from launch.data.labels import NAMES as LABELS
from launch.data.nested_rows import explain_nested
from launch.data.pairs import is_pair
from launch.data.prompts import CHATS, PROMPTS, SYSTEMS, columns_of_question, find_column
from launch.data.rendered import find_mark
from launch.data.row_errors import RowError, path_of_text
from launch.data.turns import ROLE_KEYS, role_of

# words in the name of a column that may hold an answer, where launch does not know the name
_ANSWER = re.compile(
    "answer(?!_choices|_options)|assistant|attempt|completion|continuation|correct(?!ness)|expected|generat(ed|ion)|gold|"
    "highlights|ideal|labels?$|output|rationale|(?<!p)reference|repl(y|ies)|response|solution|summary|"
    "target|^code$|^sql$",
    re.IGNORECASE,
)
# words in the name of a column that is about a text
_ABOUT = re.compile(
    r"(?:^|_|\.)(?:id|uuid|title|url|lang|language|source|path|date)$", re.IGNORECASE
)
# a name that an override has as it is, where an underscore stands for a space
_NAME = re.compile(r"\w[\w. -]*")
_QUESTION = re.compile(
    "article|document|human|^inputs?|instruction|passage|problem|prompt|query|question|source_text|"
    "^user",
    re.IGNORECASE,
)
_TOKENS = ("input_ids", "tokens")
# columns of rows of which each is one turn: who speaks, or what is said
_OF_TURNS = (*ROLE_KEYS, "speaker", "speaker_id", "speaker_idx", "utterance")
_OF_ONE_TURN = (
    "each row is one turn: write the turns of a conversation as the list messages of one row"
)
# words in the names of a better and of a worse answer
_SIDES = (
    *(("chosen", "rejected"), ("preferred", "dispreferred"), ("preferred", "rejected")),
    *(("better", "worse"), ("good", "bad"), ("best", "worst"), ("positive", "negative")),
    *(("winning", "losing"), ("correct", "incorrect"), ("response_j", "response_k")),
)


def may_be_answer(name: str, value: object) -> bool:
    """Return whether a column has an answer by its name, and holds a text."""
    return bool(_ANSWER.search(name)) and path_of_text(value) is not None


def find_numbered(row: Mapping[str, object]) -> list[str]:
    """Return the columns with a number that may be the place of the answer in a list."""
    numbers = [name for name, value in row.items() if isinstance(value, int | float)]
    return [name for name in numbers if _ANSWER.search(name)]


def find_answers_beside(row: Mapping[str, object]) -> list[str]:
    """Return the columns beside a conversation that may have the answer to it, the known names first."""
    read = (*CHATS, *LABELS, *TOOLS)
    names = [name for name in row if name not in read and may_be_answer(name, row[name])]
    return sorted(names, key=lambda name: name not in COMPLETIONS)


def is_one_turn(row: Mapping[str, object]) -> bool:
    """Return whether a row is one turn of a conversation, whose other turns are rows too."""
    return bool(find_column(row, _OF_TURNS)) and not find_column(row, CHATS)


def explain_turn() -> RowError:
    """Return the error of a row that is one turn."""
    return RowError("the row is one turn of a conversation", _OF_ONE_TURN, "data_columns")


def name_sides(row: Mapping[str, object]) -> str:
    """Return the overrides that name a better and a worse answer, which the columns' own names tell;
    "" without them.
    """
    paths = {name: path_of_text(value) for name, value in row.items()}
    for better, worse in _SIDES:
        for name, path in paths.items():
            other = name.replace(better, worse)
            is_pair = path is not None and other != name and paths.get(other) is not None
            if is_pair and _NAME.fullmatch(name):
                sides = (f"{name}{path}", f"{other}{paths[other]}")
                return _name_columns(("chosen", "rejected"), sides)
    return ""


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
    nested = explain_nested(row)
    if nested is not None:
        return nested
    transcript = _find_transcript(row)
    if is_one_turn(row):
        cure = _OF_ONE_TURN
    elif find_column(row, _TOKENS):
        cure = "the rows are tokens: name the texts that they were made of, which trainers tokenise"
    elif kind == Kind.sft and isinstance(row.get(TEXT), str):
        cure = "data.format=text learns plain text; conversations have columns of their own: "
        cure += KINDS[kind].expected
        if transcript == TEXT:
            cure = f"{TEXT!r} is a conversation in one text: split it into a list of messages; "
            cure += "data.format=text learns all of it, questions too"
        answer = _find_named(row, _ANSWER)
        if answer:
            cure += f"; an answer to it is learnt with {_name_columns(('prompt', 'completion'), (TEXT, answer))}"
    elif transcript:
        cure = f"{transcript!r} is a conversation in one text: split it into a list of messages"
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
    sides = name_sides(row)
    if sides and kind in (Kind.sft, Kind.dpo, Kind.rm):
        return sides
    leaves = dict(_leaves(row))
    conversations = [path for path, value in leaves.items() if _is_conversation(value)]
    if KINDS[kind].has_answers and conversations:
        return _name_conversation(row, conversations[0], leaves[conversations[0]])
    if known[0] == "prompt":
        names = (_find_named(row, _QUESTION), _find_named(row, _ANSWER))
        if all(names):
            return _name_columns(known, names)
        answer = _find_answer(row)
        if answer:
            return _name_columns(known[1:], (answer,))
    texts = [path for path, value in leaves.items() if isinstance(value, str)]
    texts = [path for path in texts if not _ABOUT.search(path)]
    is_named = all(map(_NAME.fullmatch, texts))
    is_clear = is_named and len(leaves) == len(texts) == len(known)
    if is_clear and KNOWN.isdisjoint(map(str.lower, row)):
        return _name_columns(known, texts)
    example = _name_columns(known, ("MY_COLUMN", "OTHER_COLUMN"))
    if kind == Kind.sft and texts:
        [text] = texts if len(texts) == 1 and is_named else ["MY_COLUMN"]
        example += f"; plain text is learnt with data.format=text data.columns.text={text}"
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


def _find_answer(row: Mapping[str, object]) -> str:
    """Return where the only text stands that may answer a question with a known name; "" where there
    is none, or several.
    """
    question = find_column(row, ("instruction", *PROMPTS))
    if not isinstance(row.get(question), str | list):
        return ""
    names = [name for name in row if may_be_answer(name, row[name])] or find_sentences(row)
    is_clear = len(names) == 1 and _NAME.fullmatch(names[0])
    return f"{names[0]}{path_of_text(row[names[0]])}" if is_clear else ""


def _name_columns(known: Sequence[str], names: Sequence[str]) -> str:
    pairs = zip(known, names, strict=True)
    return " ".join(f"data.columns.{column}={_word(name)}" for column, name in pairs)


def _word(name: str) -> str:
    """Return a name that needs no quotes on the command line."""
    return name.replace(" ", "_")


def _find_named(row: Mapping[str, object], words: re.Pattern[str]) -> str:
    """Return where the only text stands whose column's name has one of the words; "" where there is
    none, or several. A text of several words goes before a single one.
    """
    paths = {}
    for name, value in row.items():
        path = path_of_text(value)
        if path is not None and _NAME.fullmatch(name) and words.search(name):
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
