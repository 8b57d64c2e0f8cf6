"""Conversations in one text become turns; other texts with the same words stay texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.data.transcripts import is_transcript, read_continuation, read_transcript
from tests.data.files import chat, converted, problems, write_lines


def turns(text: str) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in read_transcript(text, "prompt")]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("User: a\nAssistant: b", [("user", "a"), ("assistant", "b")]),
        ("\nHUMAN: a\n\nAI: b\nBot: c", [("user", "a"), ("assistant", "b\nBot: c")]),
        ("User: a\nBot:", [("user", "a")]),
        ("Human: a\nUser: b\nAssistant: c", [("user", "a"), ("user", "b"), ("assistant", "c")]),
    ],
)
def test_a_transcript_becomes_turns(text: str, read: list[tuple[str, str]]) -> None:
    assert is_transcript(text)
    assert turns(text) == read


@pytest.mark.parametrize(
    "text", ["User: a", "Tell me.\nUser: a\nAssistant: b", "user: a\nassistant: b", "", None, 4]
)
def test_other_texts_are_no_transcripts(text: object) -> None:
    assert not is_transcript(text)


def test_an_answer_begins_with_the_speaker_or_goes_on() -> None:
    assert is_transcript("User: a", "Assistant: b") and not is_transcript("User: a", "b")
    read = read_continuation("Assistant: b\nUser: c\nAssistant: d", "User: a", "response")
    assert [turn["content"] for turn in read] == ["b", "c", "d"]


@pytest.mark.parametrize("name", ["Assistant:", "User:"])
def test_a_text_that_asks_for_a_dialogue_stays_a_text(tmp_path: Path, name: str) -> None:
    answer = f"Ann said:\n{name} no."
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "Write a talk.", "response": answer}])
    assert converted(path) == [chat("Write a talk.", answer)]


def test_a_turn_without_words_is_named(tmp_path: Path) -> None:
    row = {"prompt": "User: a\nAssistant:\nUser: b\nAssistant:", "response": "c"}
    [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]))
    assert problem.id == "data_row"
