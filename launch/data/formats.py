"""Recognises the format of a row, and converts it to `messages`, or `chosen` and `rejected`.

The converted rows are what open-instruct reads (dataset_transformation.py:
sft_tulu_tokenize_and_truncate_v1, preference_tulu_tokenize_and_truncate_v1) and what TRL calls the
conversational format.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from launch.config.kinds import KINDS
from launch.config.schema import DataFormat, Kind, TrainOn
from launch.data import labels
from launch.data.labels import LabelColumn
from launch.data.marks import take_marks
from launch.data.pairs import CHOSEN, PAIR, REJECTED, convert_pair, is_pair
from launch.data.prompts import (
    CHATS,
    PROMPTS,
    SYSTEMS,
    find_column,
    first_value,
    read_answer,
    read_chat,
    read_instruction,
    read_prompt_turns,
    read_start,
)
from launch.data.rendered import find_mark
from launch.data.row_errors import RowError, describe_type, read_text
from launch.data.tools import read_tools
from launch.data.turns import ROLE_KEYS, Message, check_messages

_COMPLETIONS = ("completion", "response", "answer", "output")
_VERIFIER_COLUMNS = ("ground_truth", "dataset")
TEXT = "text"  # the column of plain text
_TOOLS = ("tools", "functions")  # the definitions of tools, which chat templates read
_REASONING = ("reasoning_content", "thinking")  # what the model thinks before its answer
_START = (*SYSTEMS, "history")
_OTHERS = ("instruction", "context")
# columns of other tools that a stage may not learn from, and those that it has no use for
_MEDIA = ("images", "videos", "audios")
KNOWN = frozenset(
    (
        *CHATS,
        *PROMPTS,
        *_COMPLETIONS,
        *_TOOLS,
        *_REASONING,
        *_START,
        *_OTHERS,
        *PAIR,
        *CHOSEN,
        *REJECTED,
        *_MEDIA,
        *labels.NAMES,
        *_VERIFIER_COLUMNS,
        "chat_template_kwargs",
        TEXT,
    )
)
# the columns that the conversion of a format reads
_COLUMNS = {
    DataFormat.chat: (*CHATS, *SYSTEMS, *_TOOLS),
    DataFormat.sharegpt: (*CHATS, *SYSTEMS, *_TOOLS),
    DataFormat.alpaca: (
        *_START,
        "instruction",
        "input",
        "context",
        *_COMPLETIONS,
        *_REASONING,
        *_TOOLS,
    ),
    DataFormat.prompt_completion: (*_START, *PROMPTS, *_COMPLETIONS, *_REASONING, *_TOOLS),
    DataFormat.preference: (
        *_START,
        "instruction",
        "context",
        *CHATS,
        *PROMPTS,
        *PAIR,
        *CHOSEN,
        *REJECTED,
        *_TOOLS,
    ),
    DataFormat.prompts: (*SYSTEMS, *CHATS, *PROMPTS, *_VERIFIER_COLUMNS),
    DataFormat.text: (TEXT,),
}
# the kinds of stage that a format trains; a format that is not listed trains those of answers
_OF_ANSWERS = (Kind.sft, Kind.kto)
_TRAINED_KINDS = {
    DataFormat.preference: (Kind.dpo, Kind.rm),
    DataFormat.prompts: (Kind.rlvr,),
    DataFormat.text: (Kind.sft,),
}


def recognise(row: Mapping[str, object], kind: Kind) -> DataFormat:
    """Return the format of a row by its columns. Raises RowError: data_columns."""
    names = {name for name, value in row.items() if value is not None}
    if kind == Kind.rlvr and not names.isdisjoint((*PROMPTS, *CHATS)):
        return DataFormat.prompts
    if KINDS[kind].data == Kind.dpo and is_pair(names):
        return DataFormat.preference
    if kind not in _OF_ANSWERS:
        raise _no_format(row, kind)
    chat_column = find_column(row, CHATS)
    if chat_column:
        return DataFormat.sharegpt if _is_sharegpt(row[chat_column]) else DataFormat.chat
    if "instruction" in names and not names.isdisjoint(_COMPLETIONS):
        return DataFormat.alpaca
    if not names.isdisjoint(PROMPTS) and not names.isdisjoint(_COMPLETIONS):
        return DataFormat.prompt_completion
    raise _no_format(row, kind)


def is_prompts(names: Collection[str]) -> bool:
    """Return whether a row with these columns has a prompt and no answer to learn from.

    A ground truth beside a conversation is what answers are verified with.
    """
    if "ground_truth" in names and not set(names).isdisjoint(CHATS):
        return True
    has_prompt = not set(names).isdisjoint(PROMPTS)
    return has_prompt and set(names).isdisjoint((*CHATS, *_COMPLETIONS, "instruction"))


def _is_sharegpt(turns: object) -> bool:
    """Return whether the first turn of a chat names its role as ShareGPT does."""
    if not isinstance(turns, list) or not turns:
        return False
    return isinstance(turns[0], dict) and "from" in turns[0]


def convert(
    row: object,
    form: DataFormat,
    kind: Kind,
    train_on: TrainOn = TrainOn.all,
    *,
    needs_truth: bool = True,
    label: LabelColumn | None = None,
) -> dict[str, Any]:
    """Return the row as a trainer of `kind` reads it.

    It has `messages`, `chosen` and `rejected`, or `prompt`, each a list of messages; or a `text`.
    With `train_on` marked it also says of each message whether it is learnt. For KTO it also has a
    `label`, which `label` describes. A row of prompts is refused without a ground truth where
    `needs_truth`.

    Raises RowError: data_columns, data_row, data_roles, data_marks, data_no_answer, data_pair,
    data_label, no_ground_truth.
    """
    if not isinstance(row, Mapping):
        raise RowError(f"the row is {describe_type(row)}; an object with named columns is expected")
    _refuse_media(row)
    if kind not in _TRAINED_KINDS.get(form, _OF_ANSWERS):
        message = f"{form} rows can't train {kind} stages"
        raise RowError(message, f"they need {KINDS[kind].expected}", "data_columns")
    if form == DataFormat.preference:
        return {**convert_pair(row), **_read_tools(row)}
    if form == DataFormat.prompts:
        return _convert_prompt(row, needs_truth=needs_truth)
    if form == DataFormat.text:
        value, column = first_value(row, (TEXT,))
        return {TEXT: read_text(value, column)}
    if kind == Kind.sft:
        labels.refuse_bad_answer(row)
    messages = _CONVERTERS[form](row)
    check_messages(messages)
    if kind == Kind.kto:
        labels.check_labelled(messages)
        is_good = labels.read_label(row, label or LabelColumn())
        return {"messages": messages, labels.LABEL: is_good, **_read_tools(row)}
    if not any(message["role"] == "assistant" for message in messages):
        reason = "no turn of the assistant: nothing in this row carries loss"
        raise RowError(reason, None, "data_no_answer")
    trained_turns = take_marks(messages, train_on)
    return {"messages": messages, **trained_turns, **_read_tools(row)}


def _refuse_media(row: Mapping[str, object]) -> None:
    """Refuse a row with pictures, films or sounds. Raises RowError: data_row."""
    for name in _MEDIA:
        if row.get(name):
            raise RowError(f"the row has {name}", "only text can be trained on")


def _read_tools(row: Mapping[str, object]) -> dict[str, str]:
    """Return the column `tools`, in JSON; nothing for a row without tools.

    Both open-instruct (dataset_transformation.py:951) and TRL (trl/trainer/sft_trainer.py:1316)
    read JSON. A list would come back changed: the loader of their files writes the keys of other
    rows' tools into it, and dates for texts that look like one.

    Raises RowError: data_row.
    """
    column = find_column(row, _TOOLS)
    tools = read_tools(row[column], column) if column else []
    return {"tools": json.dumps(tools, ensure_ascii=False)} if tools else {}


def describe_conversion(form: DataFormat, columns: tuple[str, ...], kind: Kind) -> str:
    """Describe in a few words what is converted into what."""
    if form == DataFormat.chat and columns == ("messages",):
        return "chat (messages), taken as it is"
    if form == DataFormat.text:
        return "text, every token of which is learnt"
    return f"{form} ({', '.join(columns)}), converted to {KINDS[kind].converted}"


def columns_of(row: Mapping[str, object], form: DataFormat, kind: Kind) -> tuple[str, ...]:
    """Return the columns that the conversion of this row reads; of several chats the first."""
    chat = find_column(row, CHATS)
    label = find_column(row, labels.NAMES) if kind == Kind.kto else ""
    names = (name for name in row if name in _COLUMNS[form] or name == label)
    return tuple(name for name in names if name == chat or name not in CHATS)


def normalise_names(row: Mapping[str, object]) -> Mapping[str, object]:
    """Return the row with names of columns such as `Prompt` and ` Completion` in their usual form.

    The order of the columns stays.
    """
    if KNOWN.issuperset(row):
        return row
    renamed = {}
    for name, value in row.items():
        usual_name = name.strip().lower()
        is_usual = usual_name in KNOWN and usual_name not in row
        renamed[usual_name if is_usual else name] = value
    return renamed


def _no_format(row: Mapping[str, object], kind: Kind) -> RowError:
    """Return the error of a row whose columns are in no format that trains this kind of stage."""
    if kind in _OF_ANSWERS and {"chosen", "rejected"} <= set(row):
        message = f"preference pairs can't train {kind} stages"
        return RowError(message, "use a dpo or rm stage", "data_columns")
    columns = [f"{name!r} (null)" if value is None else repr(name) for name, value in row.items()]
    names = ", ".join(columns) or "none"
    has_conversation = not set(row).isdisjoint((*CHATS, *_COMPLETIONS))
    if has_conversation and KINDS[kind].data == Kind.dpo:
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
    if kind in _OF_ANSWERS:
        known = ("prompt", "completion")
    elif kind == Kind.rlvr:
        known = ("prompt", "ground_truth")
    names = ["MY_COLUMN", "OTHER_COLUMN"]
    texts = [name for name, value in row.items() if isinstance(value, str) and name.isidentifier()]
    if len(row) == len(texts) == len(known) and KNOWN.isdisjoint(map(str.lower, row)):
        names = texts
    overrides = [f"data.columns.{column}={name}" for column, name in zip(known, names, strict=True)]
    return " ".join(overrides)


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
    if KINDS[kind].data == Kind.dpo:
        return is_pair(names)
    is_chat = not names.isdisjoint(CHATS)
    return is_chat or (not names.isdisjoint(("instruction", *PROMPTS)) and _has_answer(names, kind))


def _has_answer(names: set[str], kind: Kind) -> bool:
    return not names.isdisjoint(_VERIFIER_COLUMNS if kind == Kind.rlvr else _COMPLETIONS)


def _from_alpaca(row: Mapping[str, object]) -> list[Message]:
    value, column = first_value(row, _COMPLETIONS)
    answer = {"role": "assistant", "content": read_text(value, column), **_read_reasoning(row)}
    return [*read_start(row), *read_instruction(row), answer]


def _from_prompt_completion(row: Mapping[str, object]) -> list[Message]:
    prompt, prompt_column = first_value(row, PROMPTS)
    prompt_turns = read_prompt_turns(prompt, prompt_column)
    start = read_start(row)
    if prompt_turns[:1] == start:  # the system prompt stands in both
        start = []
    _, completion_column = first_value(row, _COMPLETIONS)
    answer_turns = read_answer(row, completion_column)
    answer_turns[-1] |= _read_reasoning(row)
    return [*start, *prompt_turns, *answer_turns]


def _read_reasoning(row: Mapping[str, object]) -> dict[str, str]:
    """Return what a row's answer thinks first, under the names that templates read."""
    column = find_column(row, _REASONING)
    value = row[column] if column else None
    if not isinstance(value, str) or not value.strip():
        return {}
    return dict.fromkeys(_REASONING, value)


_CONVERTERS = {
    DataFormat.chat: read_chat,
    DataFormat.sharegpt: read_chat,
    DataFormat.alpaca: _from_alpaca,
    DataFormat.prompt_completion: _from_prompt_completion,
}


def _convert_prompt(row: Mapping[str, object], *, needs_truth: bool) -> dict[str, Any]:
    """Convert a prompt with its ground truth. The verifier gets every other column unchanged.

    Without `needs_truth` a prompt may stand alone: a function of the user's judges its answers. A
    final answer in `messages` is left out. Raises RowError: no_ground_truth, data_row, data_roles,
    data_no_answer.
    """
    messages = read_prompt(row)
    truth = row.get("ground_truth")
    has_truth = truth is not None and truth not in ("", [], {})
    if needs_truth and not has_truth:
        message = "the row has no ground_truth, so nothing can verify an answer"
        cure = (
            "add the column ground_truth, name yours with data.columns.ground_truth=MY_COLUMN or "
            "judge answers without one by a function of your own (recipe.verifier=PATH.py:FUNCTION)"
        )
        raise RowError(message, cure, "no_ground_truth")
    prompt_column = find_column(row, (*CHATS, *PROMPTS))
    converted = (prompt_column, *_START, "ground_truth", "prompt")
    others = {name: value for name, value in row.items() if name not in converted}
    if not has_truth:
        return {"prompt": messages, **others}
    text = truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    return {"prompt": messages, "ground_truth": text, **others}


def read_prompt(row: Mapping[str, object]) -> list[Message]:
    """Return the conversation that a model is to continue, without a final answer.

    Raises RowError: data_columns, data_row, data_roles, data_no_answer.
    """
    start = read_start(row)
    value, column = first_value(row, (*CHATS, *PROMPTS))
    messages = read_prompt_turns(value, column)
    if messages[:1] != start:
        messages = [*start, *messages]
    check_messages(messages)
    if messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system":
        raise RowError(f"{column} has no turn to answer", None, "data_no_answer")
    return messages
