"""The columns of a row that hold what is asked: the system prompt, earlier turns and the prompt."""

from __future__ import annotations

from collections.abc import Mapping

from launch.data.row_errors import RowError, read_text
from launch.data.turns import (
    Message,
    is_transcript,
    read_history,
    read_messages,
    read_transcript,
    read_turns,
)

CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog")
PROMPTS = ("prompt", "question", "query", "input")
SYSTEMS = ("system", "system_prompt")


def read_start(row: Mapping[str, object]) -> list[Message]:
    """Return what comes before the prompt: the system prompt and the turns of `history`."""
    return [*read_system(row), *read_history(row.get("history"))]


def read_system(row: Mapping[str, object]) -> list[Message]:
    """Return the system turn of a row; none if it has none."""
    column = next((name for name in SYSTEMS if row.get(name)), None)
    if column is None:
        return []
    return [{"role": "system", "content": read_text(row[column], column)}]


def read_chat(row: Mapping[str, object]) -> list[Message]:
    """Return the conversation of a row, with its system prompt."""
    value, column = first_value(row, CHATS)
    messages = read_messages(value, column)
    system = read_system(row)
    return messages if messages[:1] == system else [*system, *messages]


def read_prompt_turns(value: object, column: str) -> list[Message]:
    """Return a prompt: a text, a transcript of several turns, or messages."""
    return read_transcript(value, column) or read_turns("user", value, column)


def read_answer(row: Mapping[str, object], column: str) -> list[Message]:
    """Return an answer: a text or messages. Behind a transcript, the text begins with a space that
    belongs to the transcript.
    """
    value = row.get(column)
    if isinstance(value, str) and is_transcript(row.get(find_column(row, PROMPTS))):
        value = value.strip()
    return read_turns("assistant", value, column)


def read_instruction(row: Mapping[str, object]) -> list[Message]:
    """Return the prompt of an Alpaca row: its instruction, and its input below it. An instruction
    may be a transcript of several turns.
    """
    content = read_text(row.get("instruction"), "instruction")
    context = row.get("input") or row.get("context")
    if context:
        content += f"\n\n{read_text(context, 'input')}"
    return read_prompt_turns(content, "instruction")


def first_value(row: Mapping[str, object], columns: tuple[str, ...]) -> tuple[object, str]:
    """Return the value and the name of the first of the columns that has a value.

    Raises RowError: data_columns.
    """
    name = find_column(row, columns)
    if not name:
        message = f"the column {' or '.join(columns)} is missing or null"
        raise RowError(message, None, "data_columns")
    return row[name], name


def find_column(row: Mapping[str, object], columns: tuple[str, ...]) -> str:
    """Return the first of the columns that has a value; "" if none has."""
    return next((name for name in columns if row.get(name) is not None), "")
