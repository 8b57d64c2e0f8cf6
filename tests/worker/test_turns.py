"""Which answers the labels of a conversation learn, with a real tokenizer and real templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the `train` dependencies are not installed")

from launch.resources import ROOT
from launch.worker.columns import MASKED
from launch.worker.samples import SampleReport, SamplesRequest, TokenizedSide
from launch.worker.turns import TRAINED_TURNS, choose_answers, find_learnt, find_spans, keep_answers
from tests.chat_tokenizer import make_tokenizer
from tests.integration.tiny_stage import marked_template

TEMPLATES = {
    name: (ROOT / "launch" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    for name in ("tulu", "chatml", "zephyr")
}
CHATS = {
    "different": ("Question", "First.", "And?", "Second.", "And?", "Third."),
    "equal": ("Question", "Yes.", "And?", "Yes.", "Sure?", "Yes."),
    # letters that the template has, too
    "short": ("a", "s", "s", "a", "a", "s"),
}


def chat(texts: Sequence[str]) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def tokenise(tokenizer: Any, messages: Sequence[dict[str, str]]) -> tuple[list[int], list[int]]:
    """The tokens, and the labels of all answers."""
    encoded = tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    ids = encoded["input_ids"]
    pairs = zip(ids, encoded["assistant_masks"], strict=True)
    return ids, [token if is_answer else MASKED for token, is_answer in pairs]


def learnt_by(labels: Sequence[int]) -> list[bool]:
    return [label != MASKED for label in labels]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("texts", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("kept", [[1], [3], [5], [1, 5], [3, 5], [1, 3, 5]], ids=str)
def test_the_answers_that_are_kept_are_found_again(
    template: str, texts: tuple[str, ...], kept: list[int]
) -> None:
    tokenizer = make_tokenizer(TEMPLATES[template])
    messages = chat(texts)
    ids, labels = tokenise(tokenizer, messages)
    chosen = keep_answers(tokenizer, messages, ids, labels, kept)
    decoded = [tokenizer.decode(ids[a:b]) for a, b in find_spans(learnt_by(chosen))]
    assert [text.partition("<")[0].strip() for text in decoded] == [texts[n] for n in kept]
    assert find_learnt(tokenizer, messages, ids, learnt_by(chosen)) == kept
    # what is cut off is not learnt, and nothing else takes its place
    end = find_spans(learnt_by(chosen))[0][1]
    assert find_learnt(tokenizer, messages, ids[:end], learnt_by(chosen[:end])) == kept[:1]


def test_what_is_no_answer_is_not_taken_for_one() -> None:
    tokenizer = make_tokenizer(TEMPLATES["tulu"])
    messages = chat(CHATS["different"])
    ids, labels = tokenise(tokenizer, messages)
    (start, _), *_ = find_spans(learnt_by(labels))
    loss = [position < start for position in range(len(ids))]  # the question
    assert find_learnt(tokenizer, messages, ids, loss) == [None]


def test_marks_that_join_two_answers_are_refused() -> None:
    joined = marked_template(answer="{% generation %}{{ message['content'] }}{% endgeneration %}")
    tokenizer = make_tokenizer(joined)
    messages = chat(("Question", "First."))
    messages += [{"role": "assistant", "content": "Second."}]
    ids, labels = tokenise(tokenizer, messages)
    with pytest.raises(ValueError, match="1 answers of 2"):
        keep_answers(tokenizer, messages, ids, labels, [2])


@pytest.mark.parametrize(
    ("kept", "length", "is_cut"),
    [([3], 0, False), ([3], 1, True), ([1], 1, False), ([1, 3], 1, False), ([3], 99, True)],
)
def test_the_only_learnt_answer_is_cut(
    tmp_path: Path, kept: list[int], length: int, is_cut: bool
) -> None:
    """`length`: how many of the tokens up to the end of the last answer are cut off."""
    tokenizer = make_tokenizer(TEMPLATES["tulu"])
    messages = chat(CHATS["different"][:4])
    ids, labels = tokenise(tokenizer, messages)
    chosen = keep_answers(tokenizer, messages, ids, labels, kept)
    loss = learnt_by(chosen)
    end = max(find_spans(learnt_by(labels))[-1][1] - length, 40)
    request = SamplesRequest(tmp_path / "out.json", 1, None, tmp_path, 1)
    report = SampleReport(request, tokenizer)
    report.begin_dataset()
    side = TokenizedSide("messages", messages, ids[:end], loss[:end], whole=(ids, loss), due=kept)
    report.add([side], kept=True, limit=None)
    [described] = report.samples[0]["sides"]
    assert described["learnt"] == kept
    assert described["only_learnt_cut"] == is_cut
    assert described["changed_answer"] == []


def test_which_answers_a_row_learns() -> None:
    row = {
        "messages": chat(CHATS["equal"]),
        TRAINED_TURNS: [False, True, False, False, False, True],
    }
    assert choose_answers(row, "last") == [5]
    assert choose_answers(row, "marked") == [1, 5]
