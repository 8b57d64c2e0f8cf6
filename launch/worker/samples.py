"""Describes tokenised samples: their text, which tokens carry loss, and the layout of a batch.

The patch `preview` and trl_preview.py hand them over; launch/data/samples.py reads the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .answers import find_changed_answer, find_dropped_fields
from .columns import MASKED
from .json_codec import decode, encode
from .turns import TokenSpan, answers_of, find_learnt, find_spans

PAIR = ("chosen", "rejected")
ANSWER = "completion"  # the column of the labelled answer of KTO
_OF_KL_TERM = "KL_"  # the keys of KTO's mismatched answers (trl/trainer/kto_trainer.py:98-99)


@dataclass(frozen=True)
class SamplesRequest:
    """What the launcher requests."""

    out: Path  # the file to write
    detail: int  # samples of each data set that are described token by token
    rows: int | None  # rows of a hub data set; the others are read completely
    # The machine's folder of prepared data sets; HF_DATASETS_CACHE is the preview's own folder.
    hub_data: Path
    per_device: int  # samples of one micro batch
    # For each data set, the files with all its rows, which must all render in the chat template;
    # empty if the rows that the trainer is given are all rows.
    whole: tuple[tuple[Path, ...], ...] = ()
    starts: tuple[int, ...] = (0,)  # the number of each data set's first row, where they are joined

    @classmethod
    def read(cls, path: str) -> SamplesRequest:
        return decode(cls, Path(path).read_bytes())


@dataclass(frozen=True)
class TokenizedSide:
    """One sequence of a sample: a chat, or one side of a pair."""

    name: str  # messages, chosen, rejected or completion
    messages: Sequence[Mapping[str, Any]]
    ids: Sequence[int]  # the tokens that the trainer trains on, after truncation
    # Whether each token carries loss; None if the loss is not on tokens.
    loss: Sequence[bool] | None
    tools: Any = None  # a list of definitions, or one in JSON
    # The positions that the trainer's batch masks although they are not padding.
    hidden: Sequence[int] = ()
    # The ids and the loss before truncation; None if they equal those above, or are not known.
    whole: tuple[Sequence[int], Sequence[bool] | None] | None = None
    drops_tools: bool = False  # whether the trainer leaves the tools of the row out
    due: Sequence[int] | None = (
        None  # numbers of the messages that are to be learnt; None: all answers
    )


@dataclass
class SampleReport:
    """Collects the samples and writes the launcher's file."""

    request: SamplesRequest
    tokenizer: Any
    template: str | None = None  # instead of the tokenizer's own
    samples: list[dict[str, Any]] = field(default_factory=list)
    lengths: list[dict[str, Any]] = field(default_factory=list)  # the lengths of each data set

    def begin_dataset(self) -> None:
        self.lengths.append({"kept": [], "tokens": {}, "untruncated": {}, "loss": {}})

    def add(self, sides: Sequence[TokenizedSide], *, kept: bool, limit: int | None) -> None:
        """Add the next sample of the data set. `kept` is False for one that the trainer drops;
        `limit` is the length that it truncates at.
        """
        dataset = self.lengths[-1]
        row = len(dataset["kept"])
        dataset["kept"].append(kept)
        described = []
        for side in sides:
            is_full = limit is not None and len(side.ids) >= limit
            wants_detail = row < self.request.detail
            detail = self._describe(side) if wants_detail or is_full else None
            counts = {
                "tokens": len(side.ids),
                "untruncated": max(len(side.ids), detail["untruncated"] if detail else 0),
                "loss": None if side.loss is None else sum(side.loss),
            }
            for name, count in counts.items():
                dataset[name].setdefault(side.name, []).append(count)
            if detail and wants_detail:
                described.append(detail)
        if described:
            self.samples.append(
                {"dataset": len(self.lengths) - 1, "row": row, "kept": kept, "sides": described}
            )

    def write(
        self, *, batch: Mapping[str, Any] | None = None, refusal: Mapping[str, Any] | None = None
    ) -> None:
        """Write the file. `refusal` is what the trainer raised about a sample: its message and the
        sample's number.
        """
        content = {
            **_describe_tokenizer(self.tokenizer),
            "samples": self.samples,
            "lengths": self.lengths,
            "batch": batch,
            "refusal": refusal,
        }
        self.request.out.write_text(encode(content), encoding="utf-8")

    def _describe(self, side: TokenizedSide) -> dict[str, Any]:
        if not side.messages:
            return self._describe_text(side)
        tools = parse_tools(side.tools)
        rendered = self.tokenizer.apply_chat_template(
            side.messages, tools=tools, chat_template=self.template, tokenize=False
        )
        text = str(rendered)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        whole = list(encoded["input_ids"])
        start = _find_part(list(side.ids), whole)
        contents = _find_contents(text, side.messages)
        answer = None
        learnt = None
        if side.whole is not None or len(side.ids) >= len(whole):
            ids, loss = side.whole or (side.ids, side.loss)
            answers = answers_of(side.messages)
            if loss is not None and len(answers) > 1:
                learnt = find_learnt(self.tokenizer, side.messages, ids, loss, tools)
            if side.due is None or set(answers[-1:]) <= set(side.due):
                answer = find_changed_answer(self.tokenizer, side.messages, text, ids, loss)
        if start is None:  # the trainer tokenises differently, so the text is decoded by token
            pieces = [self.tokenizer.decode([token]) for token in side.ids]
            turns: list[int | None] = [None] * len(pieces)
        else:
            spans = encoded["offset_mapping"][start : start + len(side.ids)]
            pieces = _split_by_token(text, spans)
            turns = [_turn_at(span, contents) for span in spans]
        return {
            "name": side.name,
            "ids": list(side.ids),
            "pieces": pieces,
            "loss": None if side.loss is None else [bool(carries) for carries in side.loss],
            "turns": turns,
            "messages": [[str(message["role"]), span is not None] for message, span in contents],
            "drops_calls": side.drops_tools or _drops_calls(text, side, tools),
            "changed_answer": answer or [],
            "dropped_fields": find_dropped_fields(side.messages, text),
            "learnt": learnt,
            "only_learnt_cut": _is_only_learnt_cut(side, learnt),
            "has_null_keys": _has_null_keys(tools)
            or any(_has_null_keys(message.get("tool_calls")) for message in side.messages),
            "hidden": list(side.hidden),
            "untruncated": len(whole),
        }

    def _describe_text(self, side: TokenizedSide) -> dict[str, Any]:
        """Describe plain text, which has no turns."""
        assert side.loss is not None
        return {
            "name": side.name,
            "ids": list(side.ids),
            "pieces": [self.tokenizer.decode([token]) for token in side.ids],
            "loss": [bool(carries) for carries in side.loss],
            "turns": [None] * len(side.ids),
            "messages": [],
            "hidden": list(side.hidden),
            "untruncated": len(side.whole[0] if side.whole else side.ids),
        }


def _is_only_learnt_cut(side: TokenizedSide, learnt: Sequence[int | None] | None) -> bool:
    """Whether one of several answers is learnt, and truncation cuts it off, at least in part."""
    if side.whole is None or learnt is None or len(learnt) != 1:
        return False
    ids, loss = side.whole
    [(start, end)] = find_spans(loss or ())
    is_end = list(side.ids) != list(ids[: len(side.ids)])
    return start < len(ids) - len(side.ids) if is_end else end > len(side.ids)


def parse_tools(tools: Any) -> Any:
    """Return the definitions of a sample's tools as a template is given them; None without any."""
    read = json.loads(tools) if isinstance(tools, str) and tools else tools
    return read or None


def loss_of_labels(labels: Iterable[int]) -> list[bool]:
    """Return which tokens carry loss."""
    return [int(label) != MASKED for label in labels]


def describe_batch(batch: Mapping[str, Any], pad: int | None) -> dict[str, int]:
    """Describe a micro batch: rows, tokens in a row, padding tokens and documents (more than rows
    if it is packed).

    The two halves of pairs count together. The mismatched answers of KTO, which are not trained on,
    do not count.
    """
    rows = width = padding = documents = 0
    for key, ids in batch.items():
        if not key.endswith("input_ids") or key.startswith(_OF_KL_TERM):
            continue
        mask = batch.get(key.replace("input_ids", "attention_mask"))
        positions = batch.get(key.replace("input_ids", "position_ids"))
        rows += int(ids.shape[0])
        width = max(width, int(ids.shape[1]))
        if positions is not None:
            documents += int((positions == 0).sum())
        else:
            documents += int(ids.shape[0])
            is_padding = mask == 0 if mask is not None else ids == pad
            padding += int(is_padding.sum())
    return {"rows": rows, "width": width, "padding": padding, "documents": documents}


def stream_rows(path: str, split: str, request: SamplesRequest, **options: Any) -> Any:
    """Return the first rows of a hub data set as a `datasets.Dataset`, without downloading the
    rest.
    """
    import datasets

    stream = datasets.load_dataset(
        path, split=split, streaming=True, cache_dir=str(request.hub_data), **options
    )
    return datasets.Dataset.from_list(list(stream.take(request.rows)))


def _describe_tokenizer(tokenizer: Any) -> dict[str, Any]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = set(tokenizer.all_special_ids)
    special.update(number for number, token in added.items() if token.special)
    return {
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "pad": tokenizer.pad_token_id,
        "special": sorted(special),
    }


def _find_part(part: list[int], whole: list[int]) -> int | None:
    """Return where `part` starts in `whole`: its beginning or its end; None if it is neither."""
    if whole[: len(part)] == part:
        return 0
    return len(whole) - len(part) if whole[-len(part) :] == part else None


def _split_by_token(text: str, spans: Sequence[TokenSpan]) -> list[str]:
    """Return the text of each token; a character of several tokens belongs to the first of them."""
    pieces = []
    done = spans[0][0] if spans else 0
    for start, end in spans:
        pieces.append(text[max(start, done) : end])
        done = max(done, end)
    return pieces


def _find_contents(
    text: str, messages: Sequence[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], TokenSpan | None]]:
    """Return each message with the place of its content in the text; None where the template leaves
    it out.
    """
    places: list[tuple[Mapping[str, Any], TokenSpan | None]] = []
    cursor = 0
    for message in messages:
        content = str(message.get("content") or "").strip()
        start = text.find(content, cursor)
        if start < 0:
            places.append((message, None))
            continue
        cursor = start + len(content)
        places.append((message, (start, cursor)))
    return places


def _drops_calls(text: str, side: TokenizedSide, tools: Any) -> bool:
    """Return whether the template leaves tools, their calls or their results out."""
    called = _called_tools(side.messages)
    defined = [_name_of(tool) for tool in tools or ()]
    if any(
        name not in called and name not in _without_answers(text, side, name) for name in defined
    ):
        return True
    names = [*called, *defined]
    results = [
        str(message.get("content") or "").strip()
        for message in side.messages
        if message["role"] in ("tool", "environment")
    ]
    # Some templates write a result as JSON, with its quotes escaped.
    escaped = {part: json.dumps(part, ensure_ascii=False)[1:-1] for part in (*names, *results)}
    return any(part not in text and form not in text for part, form in escaped.items())


def _without_answers(text: str, side: TokenizedSide, name: str) -> str:
    """Return the text without the answers that have a name: the text of a call defines no tool."""
    for message in side.messages:
        content = str(message.get("content") or "").strip()
        if message["role"] == "assistant" and name in content:
            text = text.replace(content, "")
    return text


def _called_tools(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the tools that are called, and the calls that are texts."""
    names = []
    for message in messages:
        names += [_name_of(call) for call in message.get("tool_calls") or ()]
        for key in ("functions", "function_calls"):
            if isinstance(message.get(key), str):
                names.append(message[key].strip())
    return names


def _name_of(tool: Any) -> str:
    """Return the name in a definition or a call of a tool; "" without one."""
    if not isinstance(tool, Mapping):
        return ""
    function = tool.get("function") or tool
    name = function.get("name") if isinstance(function, Mapping) else None
    return str(name or "")


def has_padded_tools(row: Mapping[str, Any]) -> bool:
    """Return whether the tools of a row, or the calls of its turns, have keys with a null."""
    turns: list[Any] = []
    for name in ("messages", *PAIR):
        turns += row.get(name) or ()
    calls = [turn.get("tool_calls") for turn in turns if isinstance(turn, Mapping)]
    return any(map(_has_null_keys, (row.get("tools"), *calls)))


def _has_null_keys(value: Any) -> bool:
    """Return whether an object in definitions or calls of tools has a key with a null."""
    if isinstance(value, Mapping):
        return any(inner is None or _has_null_keys(inner) for inner in value.values())
    return isinstance(value, list) and any(_has_null_keys(element) for element in value)


def _turn_at(
    span: TokenSpan, contents: Sequence[tuple[Mapping[str, Any], TokenSpan | None]]
) -> int | None:
    """Return the number of the message that the token is completely inside of."""
    for number, (_, place) in enumerate(contents):
        if place is not None and place[0] <= span[0] < span[1] <= place[1]:
            return number
    return None
