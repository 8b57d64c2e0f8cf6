"""Reads the tokenised samples that the trainer's process wrote.

The worker's side is launch/worker/samples.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.data.mixture_share import MixtureShare
from launch.worker.finding import Finding
from launch.worker.json_codec import from_json
from launch.worker.wording import count_of


@dataclass(frozen=True)
class PairSide:
    """One sequence of a sample, token by token: a chat, or one side of a pair."""

    name: str  # messages, chosen, rejected or completion
    ids: tuple[int, ...]
    pieces: tuple[str, ...]  # the text of each token
    loss: tuple[bool, ...] | None  # None where the loss is not on tokens (reward models)
    # the number of the message that each token belongs to; None for the template's own text
    turns: tuple[int | None, ...]
    messages: tuple[tuple[str, bool], ...]  # role, and whether the template renders its content
    hidden: tuple[int, ...]  # positions of the sample's own tokens that the batch takes for padding
    untruncated: int  # number of tokens before truncation
    drops_calls: bool = False  # whether the template leaves tools, calls or results out
    # the last answer and the text that is trained in its place; empty where it is trained
    changed_answer: tuple[str, ...] = ()
    dropped_fields: tuple[str, ...] = ()  # of the messages: `reasoning_content`
    has_null_keys: bool = False  # whether tools or their calls have keys with a null
    # For a chat with several answers, before truncation: the number of the message that each
    # sequence of tokens with loss belongs to; None for a sequence that is not an answer.
    learnt: tuple[int | None, ...] | None = None
    only_learnt_cut: bool = False  # whether one answer is learnt of several, and is cut off

    @property
    def answers(self) -> tuple[tuple[int, bool], ...]:
        """The number of each message of the assistant, and whether it is learnt; none where the
        chat has a single one.
        """
        if self.learnt is None:
            return ()
        turns = enumerate(self.messages)
        return tuple((n, n in self.learnt) for n, (role, _) in turns if role == "assistant")

    @property
    def is_truncated(self) -> bool:
        return self.untruncated > len(self.ids)

    def json_fields(self) -> dict[str, Any]:
        """Return the tokens one by one, as `preview --json` prints them."""
        loss = self.loss or (None,) * len(self.ids)
        tokens = []
        for token, text, carries_loss in zip(self.ids, self.pieces, loss, strict=True):
            tokens.append({"id": token, "text": text, "loss": carries_loss})
        return {
            "name": self.name,
            "text": "".join(self.pieces),
            "tokens": tokens,
            "untruncated": self.untruncated,
            "answers": [{"turn": n + 1, "learnt": is_learnt} for n, is_learnt in self.answers],
        }


@dataclass(frozen=True)
class Sample:
    """One sample."""

    place: str  # `/data/chats.jsonl:12`, or `allenai/x, row 3`
    kept: bool  # False: the trainer drops it
    sides: tuple[PairSide, ...]

    @property
    def is_of_hub(self) -> bool:
        return ", row " in self.place

    @property
    def has_null_keys(self) -> bool:
        return any(side.has_null_keys for side in self.sides)


@dataclass(frozen=True)
class LengthsBySide:
    """The lengths of all samples of a data set, in order."""

    places: tuple[str, ...]
    kept: tuple[bool, ...]
    tokens: Mapping[str, tuple[int, ...]]  # side -> tokens of each sample
    untruncated: Mapping[str, tuple[int, ...]]
    loss: Mapping[str, tuple[int | None, ...]]  # side -> tokens of each sample that carry loss
    duplicates: tuple[str, ...] = ()  # places of rows that are equal to an earlier one

    def truncated(self) -> list[int]:
        """Return the numbers of the samples that are truncated."""
        numbers: set[int] = set()
        for side, kept_tokens in self.tokens.items():
            pairs = zip(kept_tokens, self.untruncated[side], strict=True)
            numbers.update(number for number, (kept, whole) in enumerate(pairs) if whole > kept)
        return sorted(numbers)

    def without_loss(self) -> list[int]:
        """Return the numbers of the samples with a side on which no token carries loss."""
        numbers: set[int] = set()
        for loss_tokens in self.loss.values():
            numbers.update(number for number, count in enumerate(loss_tokens) if count == 0)
        return sorted(numbers)

    def describe(self) -> str:
        """Describe the samples in a line.

        The line has their lengths, and how many are truncated, carry no loss or are duplicates.
        """
        rows = len(self.kept)
        # the length of a pair is that of its longer side
        sides = zip(*self.untruncated.values(), strict=True)
        lengths = sorted(max(tokens) for tokens in sides)
        median = lengths[rows // 2]
        of_lengths = f"{lengths[0]:,} to {lengths[-1]:,} tokens, median {median:,}"
        facts = [f"1 row of {median:,} tokens" if rows == 1 else f"{rows:,} rows of {of_lengths}"]
        truncated = len(self.truncated()) / rows
        facts.append(f"{truncated:.1%} truncated")
        # a reward model has no loss on tokens
        has_token_loss = any(set(counts) != {None} for counts in self.loss.values() if counts)
        if has_token_loss:
            without_loss = self.without_loss()
            first = _first_of([self.places[number] for number in without_loss])
            facts.append(f"{len(without_loss):,} without a token that carries loss{first}")
        duplicates = count_of(len(self.duplicates), "duplicate")
        facts.append(f"{duplicates}{_first_of(self.duplicates)}")
        return "; ".join(facts)


def _first_of(places: Sequence[str]) -> str:
    return f" (first: {places[0]})" if places else ""


@dataclass(frozen=True)
class SampleBatch:
    """The layout of a micro batch of the first samples."""

    rows: int
    width: int  # number of tokens in a row
    padding: int  # number of padding tokens in the batch
    documents: int

    def describe(self) -> str:
        share = self.padding / max(1, self.rows * self.width)
        packed = f"{self.documents} documents in " if self.documents > self.rows else ""
        rows = count_of(self.rows, "row")
        return f"{packed}{rows} of {self.width} tokens, {share:.0%} padding"


@dataclass(frozen=True)
class TokenizedSamples:
    """The data as the trainer tokenises it."""

    samples: tuple[Sample, ...]  # the samples that are shown token by token
    lengths: tuple[LengthsBySide, ...]  # lengths of all samples, for each data set
    special: Sequence[int]  # ids of special tokens
    bos: int | None
    eos: int | None
    pad: int | None
    batch: SampleBatch | None
    refusal: Finding | None = None  # the error that the trainer raises for a sample
    template: str = "the tokenizer's own"  # chat template
    shares: tuple[MixtureShare, ...] = ()  # of several data sets in the mixture


def parse_samples(
    content: Mapping[str, Any],
    places: Sequence[Sequence[str]],
    duplicates: Sequence[tuple[str, ...]] = (),
) -> TokenizedSamples:
    """Parse the content of the worker's file.

    `places` are those of the rows of each data set, `duplicates` those of its rows that are equal
    to an earlier one.
    """
    samples = []
    for item in content["samples"]:
        place = places[item["dataset"]][item["row"]]
        samples.append({**item, "place": place})
    # after a refusal there are no lengths
    lengths = []
    for number, item in enumerate(content["lengths"]):
        equal_rows = duplicates[number] if duplicates else ()
        lengths.append({**item, "places": places[number], "duplicates": equal_rows})
    refusal = content["refusal"]
    fields = {**content, "samples": samples, "lengths": lengths, "refusal": None}
    parsed = from_json(TokenizedSamples, fields)
    if refusal is None:
        return parsed
    message = f"the trainer stops here: {refusal['message']}"
    where = places[0][refusal["row"]]
    return replace(parsed, refusal=Finding.error("no_loss_tokens", message, where))
