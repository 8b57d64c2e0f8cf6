"""Reads conversations that stand in one text, each turn behind the name of its speaker."""

from __future__ import annotations

import re

from launch.data.row_errors import read_text
from launch.data.turns import Message

_USER = "Human|HUMAN|User|USER"
_ASSISTANT = "Assistant|ASSISTANT|AI|Bot"
_ASKING = (*_USER.split("|"), "Q", "Question")
_BEGINS = re.compile(rf"\s*(?:{_USER}):")
_ANSWERS = re.compile(rf"\s*(?:{_ASSISTANT}):")
_ANSWER_LINE = re.compile(rf"\n(?:{_ASSISTANT}):")
_ANSWER_PARAGRAPH = re.compile(rf"\n\n(?:{_ASSISTANT}):")
# Speakers of questions and answers. A prompt may show several of them as examples, and end with the
# name of the answer: it stays a prompt, and a conversation with such speakers becomes turns.
_QUESTION = re.compile(r"\s*(?:Q|Question):")
_ANSWER_TO_IT = re.compile(r"\n(?:A|Answer):")
_OPTIONS = re.compile(r"\n\(?B[:.)]")  # below which `A:` is one of several choices
_EXCHANGES = re.compile(r"(?:^|\n)(Q|Question|A|Answer):")
_PARAGRAPHS = re.compile(rf"(?:^|\n\n)({_USER}|{_ASSISTANT}):")  # of Anthropic's transcripts
_LINES = re.compile(rf"(?:^|\n)({_USER}|{_ASSISTANT}):")  # of BELLE's


def is_transcript(text: object, answer: object = None) -> bool:
    """Return whether a text has paragraphs or lines that begin with `Human:` and `Assistant:`, or
    `User:` and `AI:`. The assistant's name may stand in front of the answer to the text instead.
    """
    if not isinstance(text, str) or not _BEGINS.match(text):
        return False
    is_answered = isinstance(answer, str) and _ANSWERS.match(answer)
    return bool(is_answered or _ANSWER_LINE.search(text))


def is_question_and_answer(text: object) -> bool:
    """Return whether a text has lines that begin with `Q:` and `A:`, or `Question:` and `Answer:`."""
    if not isinstance(text, str) or not _QUESTION.match(text):
        return False
    return bool(_ANSWER_TO_IT.search(text)) and not _OPTIONS.search(text)


def is_dialogue(text: object) -> bool:
    """Return whether a text, which stands where a conversation belongs, has the lines of one."""
    return is_transcript(text) or is_question_and_answer(text)


def read_transcript(text: str, column: str) -> list[Message]:
    """Return a transcript as messages. Its turns are paragraphs if an answer begins one, or else
    lines. A last turn without words, which a prompt ends with, is left out.

    Raises RowError: data_row.
    """
    messages = _split(text.lstrip(), _pattern_of(text))
    if messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
        messages.pop()
    return _checked(messages, column)


def read_continuation(answer: str, prompt: str, column: str) -> list[Message]:
    """Return the answer to a transcript as messages: the assistant's turn, and others that follow in
    the same form.

    Raises RowError: data_row.
    """
    text = _ANSWERS.sub("", answer, count=1) if _ANSWERS.match(answer) else answer
    return _checked(_split(f"Assistant: {text.strip()}", _pattern_of(prompt)), column)


def _pattern_of(text: str) -> re.Pattern[str]:
    if is_question_and_answer(text):
        return _EXCHANGES
    return _PARAGRAPHS if _ANSWER_PARAGRAPH.search(text) else _LINES


def _split(text: str, pattern: re.Pattern[str]) -> list[Message]:
    parts = pattern.split(text)
    messages = []
    for speaker, words in zip(parts[1::2], parts[2::2], strict=True):
        role = "user" if speaker in _ASKING else "assistant"
        messages.append({"role": role, "content": words.strip()})
    return messages


def _checked(messages: list[Message], column: str) -> list[Message]:
    for message in messages:
        read_text(message["content"], column)
    return messages
