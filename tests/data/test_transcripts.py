"""Conversations in one text become turns; other texts with the same words stay texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.kinds import Kind
from launch.data.structure import read_structure
from launch.data.transcripts import is_transcript, read_continuation, read_transcript
from tests.data.files import chat, converted, local, problems, write_lines


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


@pytest.mark.parametrize(
    ("prompt", "is_named"),
    [
        ("Q: a?\nA: b\nQ: c?\nA:", True),
        ("Question: a?\n\nAnswer:", True),
        ("Q: a?", False),
        ("Q: Which?\nA: red\nB: blue", False),  # choices
        ("Tell me.\nQ: a?\nA: b", False),
    ],
)
def test_a_prompt_of_questions_and_answers_stays_one_and_is_named(
    tmp_path: Path, prompt: str, is_named: bool
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": prompt, "completion": "d"}])
    assert converted(path) == [chat(prompt, "d")]
    assert ("'A:' in" in read_structure(local(path)).describe()) == is_named


def test_a_side_that_answers_a_prompt_stays_a_text(tmp_path: Path) -> None:
    cards = "Q: a?\nA: b"
    asked = chat("Cards.", cards)["messages"][:1]
    for prompt in ({"prompt": "Cards."}, {"messages": asked}):
        row = {**prompt, "chosen": cards, "rejected": "c"}
        [pair] = converted(write_lines(tmp_path / "a.jsonl", [row]), kind=Kind.dpo)
        assert pair["chosen"] == chat("Cards.", cards)["messages"]


def test_choices_are_no_answer(tmp_path: Path) -> None:
    row = {"conversation": "Q: Which?\nA: red\nB: blue"}
    [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]))
    assert problem.id == "data_row"


def test_a_turn_without_words_is_named(tmp_path: Path) -> None:
    row = {"prompt": "User: a\nAssistant:\nUser: b\nAssistant:", "response": "c"}
    [problem] = problems(write_lines(tmp_path / "a.jsonl", [row]))
    assert problem.id == "data_row"
