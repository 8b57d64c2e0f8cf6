"""Compares the last answer of a sample with the tokens that carry loss, and finds what a chat
template leaves out of the messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

# The markers around the reasoning at the beginning of an answer. The templates of reasoning models
# remove it or rewrite it (trl/chat_templates/qwen3.jinja, deepseekv3.jinja, gemma4.jinja).
_ENDS_OF_THINKING = ("</think>", "<channel|>", "<|END_THINKING|>", "[/THINK]", "</thinking>")
_STARTS_OF_THINKING = ("<think>", "<|channel>", "<|START_THINKING|>", "[THINK]", "<thinking>")
# Keys of a message that have findings of their own, or that no template should render.
_OTHER_KEYS = frozenset(
    ("role", "content", "tool_calls", "name", "id", "tool_call_id", "weight", "train")
)
_THINKING_KEYS = frozenset(("reasoning_content", "reasoning", "thinking"))
_SHOWN = 160  # characters of a text that a finding shows

Message = Mapping[str, Any]


def find_changed_answer(
    tokenizer: Any,
    messages: Sequence[Message],
    rendered: str,
    ids: Sequence[int],
    loss: Sequence[bool] | None,
) -> list[str] | None:
    """Compare the text of the last answer with the tokens that carry loss, before any is cut off.

    `rendered` is the text that the chat template makes of the messages. Where the loss is not on
    tokens (`loss` is None), all tokens count. Both texts go through the tokenizer, so that its
    normalisation makes no difference.

    Returns None if the answer is trained, else the answer and the text that is trained in its
    place.
    """
    position = _find_last_answer(messages)
    if position is None:
        return None
    runs = _decode_runs(tokenizer, ids, [True] * len(ids) if loss is None else loss)
    everything = "\0".join(text for text, is_trained in runs if is_trained)
    if not everything.strip():  # launch/data/samples.py reports a sample without trained tokens
        return None
    following = _text_after_question(tokenizer, runs, messages[:position])
    before = [part for message in messages[:position] for part in answer_parts(message)]
    for part in answer_parts(messages[position]):
        expected = round_trip(tokenizer, part)
        if _contains_answer(following, expected, part, rendered):
            continue
        # An earlier answer may have the same text. If the last one is trained too, the text occurs
        # once more than in the earlier answers.
        earlier = sum(round_trip(tokenizer, text).count(expected) for text in before)
        if everything.count(expected) > earlier:
            continue
        return [_shorten(expected), _shorten(following.replace("\0", " "))]
    return None


def find_dropped_fields(messages: Sequence[Message], rendered: str) -> list[str]:
    """Return the names of what the chat template omits from the messages: fields of an answer, the
    reasoning of the last answer, and turns of the user.

    The reasoning of earlier answers is not checked, because templates omit it on purpose.
    """
    answers = [message for message in messages if message.get("role") == "assistant"]
    dropped = []
    for message in messages:
        texts = _texts(message.get("content"))
        if message.get("role") == "user" and not _are_rendered(texts, rendered):
            dropped.append("the user's turn")
    for message in answers:
        is_last = message is answers[-1]
        for name, value in message.items():
            is_earlier_thinking = not is_last and name in _THINKING_KEYS
            if name in _OTHER_KEYS or is_earlier_thinking:
                continue
            if not _are_rendered(_texts(value), rendered):
                dropped.append(name)
        thinking = _thinking_of(message)
        if is_last and not _are_rendered([thinking], rendered):
            dropped.append("thinking")
    return list(dict.fromkeys(dropped))


def _find_last_answer(messages: Sequence[Message]) -> int | None:
    """Return the index of the last message of the assistant; None if it has no text.

    A tool call may have a text beside it, which some templates omit, so that it does not count.
    """
    for position in reversed(range(len(messages))):
        message = messages[position]
        if message.get("role") == "assistant":
            has_text = not message.get("tool_calls") and any(answer_parts(message))
            return position if has_text else None
    return None


def answer_parts(message: Message) -> list[str]:
    """Return the texts of an answer, without its thinking."""
    if message.get("role") != "assistant":
        return []
    parts = [part.strip() for part in _texts(message.get("content"))]
    if len(parts) == 1:
        answer = _split_thinking(parts[0])[1]
        parts = [answer or parts[0]]
    return [part for part in parts if part]


def _thinking_of(message: Message) -> str:
    content = message.get("content")
    return _split_thinking(content)[0] if isinstance(content, str) else ""


def _split_thinking(content: str) -> tuple[str, str]:
    """Return the thinking at the beginning of an answer, and what follows it."""
    for start, end in zip(_STARTS_OF_THINKING, _ENDS_OF_THINKING, strict=True):
        before, found, after = content.rpartition(end)
        if found:
            return before.rpartition(start)[2].strip(), after.strip()
    opening = next((start for start in _STARTS_OF_THINKING if content.startswith(start)), "")
    return "", content[len(opening) :].strip()


def _decode_runs(
    tokenizer: Any, ids: Sequence[int], loss: Sequence[bool]
) -> list[tuple[str, bool]]:
    """Return the text of each run of tokens that all carry loss, or that all carry none."""
    runs = []
    for is_trained, group in groupby(zip(ids, loss, strict=True), key=lambda token: token[1]):
        runs.append((decode_tokens(tokenizer, [token for token, _ in group]), is_trained))
    return runs


def _text_after_question(
    tokenizer: Any, runs: Sequence[tuple[str, bool]], earlier: Sequence[Message]
) -> str:
    """Return the trained text after the last turn that is not an answer.

    All trained text is returned if that turn is not among the tokens without loss.
    """
    turns = (message for message in reversed(earlier) if message.get("role") != "assistant")
    question = next((text for turn in turns for text in _texts(turn.get("content"))), "")
    question = squeeze(round_trip(tokenizer, question))
    start = 0
    for number, (text, is_trained) in enumerate(runs):
        follows = any(is_later for _, is_later in runs[number:])
        if question and follows and not is_trained and question in squeeze(text):
            start = number
    return "\0".join(text for text, is_trained in runs[start:] if is_trained)


def _contains_answer(trained: str, expected: str, part: str, rendered: str) -> bool:
    """Whether a trained text contains the answer `part`, which the tokenizer turns into `expected`."""
    # transformers' mask may omit the last bytes of a character that has several tokens.
    if expected in trained or f"{expected[:-1]}\ufffd" in trained:
        return True
    # A tokenizer may add a space at the beginning of a text that it does not add within one.
    return part in rendered and squeeze(expected) in squeeze(trained)


def contains_text(text: str, expected: str) -> bool:
    """Whether a decoded text contains another one; white space is ignored."""
    return squeeze(expected) in squeeze(text)


def decode_tokens(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of tokens."""
    text: str = tokenizer.decode(list(ids))
    return text


def round_trip(tokenizer: Any, text: str) -> str:
    """Return a text as the tokenizer encodes and decodes it, without white space around it."""
    ids = tokenizer(text.strip(), add_special_tokens=False)["input_ids"]
    return decode_tokens(tokenizer, ids).strip()


def squeeze(text: str) -> str:
    """Return a text without white space."""
    return "".join(text.split())


def _are_rendered(texts: Iterable[str], rendered: str) -> bool:
    """Whether a template renders texts, each as it is or as JSON."""
    return all(
        text.strip() in rendered or json.dumps(text.strip())[1:-1] in rendered for text in texts
    )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value: itself, or those of its lists and objects."""
    if isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
        if value.get("type") == "text":
            parts = (value.get("text"),)
        for part in parts:
            yield from _texts(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"
