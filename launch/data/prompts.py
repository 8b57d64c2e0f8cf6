"""The columns of a row that hold what is asked: the system prompt, earlier turns and the prompt."""

from __future__ import annotations

from collections.abc import Mapping

from launch.data.row_errors import RowError, parse_list, read_text
from launch.data.transcripts import is_transcript, read_continuation, read_transcript
from launch.data.turns import Message, join_parts, read_history, read_messages, read_turns

CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog")
PROMPTS = ("prompt", "question", "query", "input")
SYSTEMS = ("system", "system_prompt")
EMPTY: tuple[object, ...] = (None, "", [], {})  # values of a column that is not filled
CONTEXTS = ("input", "context")  # what stands below an instruction


def read_start(row: Mapping[str, object]) -> list[Message]:
    """Return what comes before the prompt: the system prompt and the turns of `history`."""
    return [*read_system(row), *read_history(row.get("history"))]


def read_system(row: Mapping[str, object]) -> list[Message]:
    """Return the system turn of a row; none if it has none."""
    column = find_filled(row, SYSTEMS)
    if not column:
        return []
    value = row[column]
    if isinstance(value, list):  # Bedrock's parts
        value = join_parts(value, column)
    return [{"role": "system", "content": read_text(value, column)}]


def read_chat(row: Mapping[str, object]) -> list[Message]:
    """Return the conversation of a row, with its system prompt."""
    value, column = first_value(row, CHATS)
    if isinstance(value, str) and is_transcript(value):
        messages = read_transcript(value, column)
    else:
        _refuse_text(row, column)
        messages = read_messages(value, column)
    system = read_system(row)
    return messages if messages[:1] == system else [*system, *messages]


def _refuse_text(row: Mapping[str, object], column: str) -> None:
    """Refuse a conversation that is a text, beside which an answer to it may stand.

    Raises RowError: data_row.
    """
    value = row[column]
    if not isinstance(value, str) or isinstance(parse_list(value), list):
        return
    if value.lstrip().startswith(("[{'", "[['")):
        cure = "it is a list as Python prints it: write it with json.dumps"
        raise RowError(f"{column} is a text; a list of messages is expected", cure)
    texts = [name for name, text in row.items() if isinstance(text, str) and " " in text.strip()]
    others = [name for name in texts if name != column]
    answer = others[0] if len(others) == 1 else "MY_COLUMN"
    cure = (
        "split it into turns, or learn another column as the answer to it: "
        f"data.columns.prompt={column} data.columns.completion={answer}"
    )
    raise RowError(f"{column} is a text; a list of messages is expected", cure)


def read_prompt_turns(value: object, column: str, answer: object = None) -> list[Message]:
    """Return a prompt: a text, a transcript of several turns, or messages. `answer` is what answers
    it.
    """
    if isinstance(value, str) and is_transcript(value, answer):
        return read_transcript(value, column)
    return read_turns("user", value, column)


def read_answer(row: Mapping[str, object], column: str, prompt: object) -> list[Message]:
    """Return an answer: a text or messages. Behind a transcript it may have the speaker's name in
    front, and further turns.
    """
    value = row.get(column)
    if isinstance(value, str) and isinstance(prompt, str) and is_transcript(prompt, value):
        return read_continuation(value, prompt, column)
    return read_turns("assistant", value, column)


def read_instruction(row: Mapping[str, object], answer: object = None) -> list[Message]:
    """Return the prompt of an Alpaca row: its instruction, and its input below it. An instruction
    may be a transcript of several turns; `answer` is what answers it.
    """
    content = read_text(row.get("instruction"), "instruction")
    context = find_filled(row, CONTEXTS)
    if context:
        content += f"\n\n{read_text(row[context], context)}"
    return read_prompt_turns(content, "instruction", answer)


def prompt_of(row: Mapping[str, object]) -> object:
    """Return what a row asks, as it is written; None where it stands in a conversation."""
    if row.get("instruction") is not None:
        return row["instruction"]
    return row.get(find_column(row, PROMPTS))


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


def find_filled(row: Mapping[str, object], columns: tuple[str, ...]) -> str:
    """Return the first of the columns whose value is not empty; "" if none is filled."""
    return next((name for name in columns if row.get(name) not in EMPTY), "")
