"""Finds which answers of a conversation are learnt from its labels, and masks the labels of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .answers import Message, answer_parts, contains_text, decode_tokens, round_trip, squeeze
from .columns import MASKED
from .trl_options import LEARNS_LAST

TRAINED_TURNS = "trained_turns"  # the staged column with a boolean for each message: is it learnt?

TokenSpan = tuple[int, int]  # of tokens or characters: the first, and the one after the last


def choose_answers(row: Mapping[str, Any], learns: str) -> list[int]:
    """Return the numbers of the messages of a row that are to be learnt: the last answer, or those
    that are marked.
    """
    answers = answers_of(row["messages"])
    if learns == LEARNS_LAST:
        return answers[-1:]
    marks = row[TRAINED_TURNS]
    return [number for number in answers if marks[number]]


def answers_of(messages: Sequence[Message]) -> list[int]:
    """Return the numbers of the messages of the assistant."""
    return [number for number, turn in enumerate(messages) if turn["role"] == "assistant"]


def find_spans(loss: Sequence[bool]) -> list[TokenSpan]:
    """Return the spans of tokens that carry loss."""
    spans = []
    start = None
    for position, carries_loss in enumerate((*loss, False)):
        if carries_loss and start is None:
            start = position
        elif not carries_loss and start is not None:
            spans.append((start, position))
            start = None
    return spans


def keep_answers(
    tokenizer: Any,
    messages: Sequence[Message],
    ids: Sequence[int],
    labels: Sequence[int],
    kept: Sequence[int],
) -> list[int]:
    """Mask the labels of the answers that are not in `kept`, and return all labels of the row.

    The row is whole and its `labels` are those of all answers: each span of labels is one answer, in
    the order of the messages. Raises ValueError if there are more or fewer spans than answers, or if
    an answer is in the span of another one.
    """
    answers = answers_of(messages)
    spans = find_spans([label != MASKED for label in labels])
    if len(spans) != len(answers):
        raise ValueError(f"the chat template marks {len(spans)} answers of {len(answers)}")
    texts = [decode_tokens(tokenizer, ids[start:end]) for start, end in spans]
    chosen = list(labels)
    for number, (start, end), text in zip(answers, spans, texts, strict=True):
        content = _read_content(tokenizer, messages[number])
        is_elsewhere = any(contains_text(other, content) for other in texts)
        if not contains_text(text, content) and is_elsewhere:
            raise ValueError(f"turn {number + 1} is not the answer that the chat template marks")
        if number not in kept:
            chosen[start:end] = [MASKED] * (end - start)
    return chosen


def find_learnt(
    tokenizer: Any,
    messages: Sequence[Message],
    ids: Sequence[int],
    loss: Sequence[bool],
    tools: Any = None,
) -> list[int | None]:
    """Return, for each run of tokens with loss, the number of the message that it is the answer of.

    The answer is found by the decoded text of the run and by that of all tokens before it; None is
    returned for a run that is not an answer. Where several answers fit, for example single letters
    that occur in the template too, the one is taken before which the template writes as much text
    as stands before the run. `tools` are those of the conversation.
    """
    rendered = squeeze(decode_tokens(tokenizer, ids))
    contents = [squeeze(_read_content(tokenizer, message)) for message in messages]
    # The content of a turn that the template omits or rewrites can't be found.
    known = [content if content in rendered else "" for content in contents]
    learnt: list[int | None] = []
    for start, end in find_spans(loss):
        text = squeeze(decode_tokens(tokenizer, ids[start:end]))
        before = squeeze(decode_tokens(tokenizer, ids[:start])) if start else ""
        is_cut = end == len(ids)
        candidates = []
        for number in answers_of(messages):
            content = contents[number]
            is_text = content in text or (is_cut and bool(text) and content.startswith(text))
            if is_text and _occur_in_order(known[:number], before):
                candidates.append(number)
        if len(candidates) > 1:
            written = {n: _count_before(tokenizer, messages, tools, n) for n in candidates}
            distances = {abs(count - len(before)): n for n, count in written.items()}
            candidates = [distances[min(distances)]]
        learnt.append(candidates[0] if candidates else None)
    return learnt


def _count_before(tokenizer: Any, messages: Sequence[Message], tools: Any, number: int) -> int:
    """Return the characters that the template writes before the answer `number`, without white
    space; 0 where it can't write the beginning of a conversation.
    """
    from jinja2 import TemplateError

    if not number:
        return 0
    try:
        text = tokenizer.apply_chat_template(
            messages[:number], tools=tools, tokenize=False, add_generation_prompt=True
        )
    except TemplateError:
        return 0
    return len(squeeze(text))


def _occur_in_order(contents: Sequence[str], text: str) -> bool:
    """Whether a text contains all contents, one after the other."""
    cursor = 0
    for content in contents:
        place = text.find(content, cursor)
        if place < 0:
            return False
        cursor = place + len(content)
    return True


def _read_content(tokenizer: Any, message: Message) -> str:
    """Return the text of a turn as its tokens are decoded, without the reasoning that templates
    remove; "" for a turn of several parts, or without a text.
    """
    parts = answer_parts(message) if message["role"] == "assistant" else [message.get("content")]
    text = parts[0] if len(parts) == 1 else ""
    return round_trip(tokenizer, text) if isinstance(text, str) and text.strip() else ""
