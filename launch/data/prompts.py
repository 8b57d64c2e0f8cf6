"""The columns of a row that hold what is asked: the system prompt, earlier turns and the prompt."""

from __future__ import annotations

from collections.abc import Mapping

from launch.data.row_errors import RowError, parse_list, read_text
from launch.data.transcripts import (
    is_dialogue,
    is_transcript,
    read_continuation,
    read_transcript,
)
from launch.data.turns import Message, join_parts, read_history, read_messages, read_turns

CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog", "contents")
PROMPTS = ("prompt", "question", "query", "input")
# the last two are Gemini's
SYSTEMS = ("system", "system_prompt", "system_message", "systeminstruction", "system_instruction")
EMPTY: tuple[object, ...] = (None, "", [], {})  # values of a column that is not filled
CONTEXTS = ("input", "context")  # what a question or an instruction is about
# the columns that ask, in the order in which their texts stand in one prompt
ASKING = ("instruction", "context", "prompt", "question", "query", "input")


def read_start(row: Mapping[str, object]) -> list[Message]:
    """Return what comes before the prompt: the system prompt and the turns of `history`."""
    return [*read_system(row), *read_history(row.get("history"))]


def read_system(row: Mapping[str, object]) -> list[Message]:
    """Return the system turn of a row; none if it has none."""
    column = find_filled(row, SYSTEMS)
    if not column:
        return []
    value = row[column]
    if isinstance(value, dict):  # Gemini's object
        value = value.get("parts")
    if isinstance(value, list):  # Bedrock's parts, and Gemini's
        value = join_parts(value, column)
    return [{"role": "system", "content": read_text(value, column)}]


def read_chat(row: Mapping[str, object]) -> list[Message]:
    """Return the conversation of a row, with its system prompt."""
    value, column = first_value(row, CHATS)
    if isinstance(value, str) and is_dialogue(value):
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
    if not others:
        cure += f"; plain text is learnt with data.format=text data.columns.text={column}"
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


def read_question(row: Mapping[str, object], answer: object = None) -> list[Message]:
    """Return what a row asks: its instruction or its prompt, with the texts that belong to it, such
    as `context` above a question and `input` below an instruction. `answer` is what answers it.

    Raises RowError: data_columns, data_row, data_roles, data_no_answer.
    """
    main = column_of_question(row)
    if not main:
        first_value(row, ("instruction", *PROMPTS))
    turns = read_prompt_turns(row[main], main, answer)
    asked = [turn for turn in turns if turn["role"] == "user"]
    if asked:
        texts = {name: row[name] for name in columns_of_question(row)}
        texts[main] = asked[-1]["content"]
        asked[-1]["content"] = "\n\n".join(read_text(text, name) for name, text in texts.items())
    return turns


def column_of_question(row: Mapping[str, object]) -> str:
    """Return the column with what a row asks, its instruction or its prompt; "" without one."""
    columns = ("instruction", *PROMPTS)
    return find_filled(row, columns) or find_column(row, columns)


def columns_of_question(row: Mapping[str, object]) -> tuple[str, ...]:
    """Return the columns whose texts make up the prompt of a row, in the order of their texts. A text
    that stands in the question already, or around it, is none of them.
    """
    main = column_of_question(row)
    others = [name for name in PROMPTS if name not in CONTEXTS and name != main]
    if main == "instruction":  # which a question may follow, and a second prompt does not
        questions = tuple(name for name in others if name != "prompt")
        others.remove(find_filled(row, questions) or questions[0])
    question = str(row.get(main))
    names = [name for name in ASKING if name not in others]
    return tuple(name for name in names if name == main or _adds_to(question, row.get(name)))


def _adds_to(question: str, text: object) -> bool:
    """Return whether a column's value is a text that a question does not repeat."""
    if not isinstance(text, str) or not text.strip():
        return False
    return text.strip() not in question and question.strip() not in text


def groups_of_question(row: Mapping[str, object]) -> tuple[tuple[str, ...], ...]:
    """Return what the reading of a question takes, in groups of which the first filled column is
    read: a context that is empty belongs to it too.
    """
    columns = columns_of_question(row)
    groups: list[tuple[str, ...]] = [(name,) for name in columns]
    if set(columns[1:]).isdisjoint(CONTEXTS):
        groups.append(tuple(name for name in CONTEXTS if row.get(name) in EMPTY))
    return tuple(groups)


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
