"""Tokenised samples as the trainer's process describes them (launch/worker/samples.py), and what is
wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.worker.finding import Finding
from launch.worker.json_codec import from_json


@dataclass(frozen=True)
class PairSide:
    """One sequence of a sample, token by token: a chat, or one side of a pair."""

    name: str  # messages, chosen or rejected
    ids: tuple[int, ...]
    pieces: tuple[str, ...]  # the text of each token
    loss: tuple[bool, ...] | None  # None where the loss is not on tokens (reward models)
    # the message that a token is inside of; None for the template's own text
    turns: tuple[int | None, ...]
    messages: tuple[tuple[str, bool], ...]  # role, and whether the template renders its content
    hidden: tuple[int, ...]  # positions of the sample's own tokens that the batch takes for padding
    untruncated: int  # tokens before truncation
    drops_calls: bool = False  # whether the template leaves calls of tools out

    @property
    def is_truncated(self) -> bool:
        return self.untruncated > len(self.ids)

    def as_json(self) -> dict[str, Any]:
        loss = self.loss or (None,) * len(self.ids)
        tokens = [
            {"id": token, "text": text, "loss": carries}
            for token, text, carries in zip(self.ids, self.pieces, loss, strict=True)
        ]
        return {
            "name": self.name,
            "text": "".join(self.pieces),
            "tokens": tokens,
            "untruncated": self.untruncated,
        }


@dataclass(frozen=True)
class Sample:
    """One sample."""

    place: str  # `/data/chats.jsonl:12`, or `allenai/x, row 3`
    kept: bool  # False: the trainer drops it
    sides: tuple[PairSide, ...]


@dataclass(frozen=True)
class SampleLengths:
    """The lengths of all samples of a data set, in order."""

    places: tuple[str, ...]
    kept: tuple[bool, ...]
    tokens: Mapping[str, tuple[int, ...]]  # side -> tokens of each sample
    untruncated: Mapping[str, tuple[int, ...]]
    loss: Mapping[str, tuple[int | None, ...]]  # side -> tokens of each sample that carry loss
    duplicates: tuple[str, ...] = ()  # places of rows that are equal to an earlier one

    def truncated(self) -> list[int]:
        """Return the numbers of the samples that are cut off."""
        return [
            number
            for number in range(len(self.kept))
            if any(
                self.untruncated[side][number] > self.tokens[side][number] for side in self.tokens
            )
        ]

    def without_loss(self) -> list[int]:
        """Return the numbers of the samples with a side on which no token carries loss."""
        return [
            number
            for number in range(len(self.kept))
            if any(loss[number] == 0 for loss in self.loss.values())
        ]

    def describe(self) -> str:
        """Describe the samples in a line: lengths, what is cut off, what carries no loss, what is
        there twice.
        """
        rows, empty = len(self.kept), self.without_loss()
        lengths = sorted(max(values) for values in zip(*self.untruncated.values(), strict=True))
        facts = [
            (
                f"{rows:,} rows of {lengths[0]:,} to {lengths[-1]:,} tokens, median "
                f"{lengths[rows // 2]:,}"
            )
        ]
        facts.append(f"{len(self.truncated()) / rows:.1%} cut off")
        if any(value is not None for values in self.loss.values() for value in values):
            first = _first_of([self.places[number] for number in empty])
            facts.append(f"{len(empty):,} without a token that carries loss{first}")
        facts.append(f"{len(self.duplicates):,} duplicates{_first_of(self.duplicates)}")
        return "; ".join(facts)


def _first_of(places: Sequence[str]) -> str:
    return f" (first: {places[0]})" if places else ""


@dataclass(frozen=True)
class SampleBatch:
    """How a micro batch of the first samples is laid out."""

    rows: int
    width: int  # tokens in a row
    padding: int  # tokens
    documents: int

    def describe(self) -> str:
        share = self.padding / max(1, self.rows * self.width)
        packed = f"{self.documents} documents in " if self.documents > self.rows else ""
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"{packed}{rows} of {self.width} tokens, {share:.0%} padding"


@dataclass(frozen=True)
class TokenizedSamples:
    """What the trainer's tokenising made of the data."""

    samples: tuple[Sample, ...]  # in detail
    lengths: tuple[SampleLengths, ...]  # of each data set
    special: Sequence[int]  # ids of special tokens
    bos: int | None
    eos: int | None
    pad: int | None
    batch: SampleBatch | None
    refusal: Finding | None = None  # what the trainer raises about a sample
    template: str = "the tokenizer's own"  # chat template


def parse_samples(
    content: Mapping[str, Any],
    places: Sequence[Sequence[str]],
    duplicates: Sequence[tuple[str, ...]] = (),
) -> TokenizedSamples:
    """Parse the worker's file; `places` are those of the rows of each data set, `duplicates` those
    of equal rows.
    """
    samples = [
        {**item, "place": places[item["dataset"]][item["row"]]} for item in content["samples"]
    ]
    equal = duplicates or [()] * len(places)
    lengths = [
        {**item, "places": of_rows, "duplicates": of_equal}
        # none after a refusal
        for item, of_rows, of_equal in zip(content["lengths"], places, equal, strict=False)
    ]
    parsed = from_json(
        TokenizedSamples, {**content, "samples": samples, "lengths": lengths, "refusal": None}
    )
    refusal = content["refusal"]
    if refusal is None:
        return parsed
    message = f"the trainer stops here: {refusal['message']}"
    return replace(
        parsed, refusal=Finding.error("no_loss_tokens", message, places[0][refusal["row"]])
    )


def find_sample_problems(data: TokenizedSamples, above: float = 0.0) -> list[Finding]:
    """Find what is wrong with the template, the masks and the special tokens: each kind once, with
    its first place.

    Only kinds that concern more than the share `above` of the samples. The ids are no_loss_tokens,
    equal_pairs, loss_on_user, no_end_of_turn, double_bos, pad_is_end, system_dropped,
    calls_dropped.
    """
    problems = [data.refusal] if data.refusal else []
    problems += _without_loss(data, above)
    pairs = [sample for sample in data.samples if sample.kept and len(sample.sides) == 2]
    equal = [sample.place for sample in pairs if sample.sides[0].ids == sample.sides[1].ids]
    if len(equal) > above * len(pairs):
        message = (
            f"chosen and rejected have the same tokens in {len(equal)} of {len(pairs)} "
            "pairs: nothing is learned"
        )
        cure = (
            "raise recipe.max_seq_length if they are cut off before they differ, or remove the "
            "pairs"
        )
        problems.append(Finding.error("equal_pairs", message, equal[0], cure))
    for id, rule, message, cure in _RULES:
        kept = [sample for sample in data.samples if sample.kept]
        places = [sample.place for sample in kept if any(rule(side, data) for side in sample.sides)]
        if len(places) > above * len(kept):
            count = f" ({len(set(places))} of {len(kept)} samples)" if len(kept) > 1 else ""
            named = f", chat template: {data.template}" if "template" in cure else ""
            problems.append(Finding.error(id, f"{message}{count}{named}", places[0], cure))
    return problems


def _without_loss(data: TokenizedSamples, above: float) -> Iterator[Finding]:
    for lengths in data.lengths:
        empty = lengths.without_loss()
        if len(empty) > above * len(lengths.kept):
            truncated = set(lengths.truncated())
            cut = sum(number in truncated for number in empty)
            why = f", {cut} of them because they are cut off before the answer" if cut else ""
            message = f"no token carries loss in {len(empty)} of {len(lengths.kept)} samples{why}"
            cure = (
                "raise recipe.max_seq_length, or remove the rows"
                if cut
                else "check the chat template and the roles"
            )
            yield Finding.error("no_loss_tokens", message, lengths.places[empty[0]], cure)


def _has_loss_on_user(side: PairSide, data: TokenizedSamples) -> bool:
    if side.loss is None:
        return False
    return any(
        carries and turn is not None and side.messages[turn][0] in ("user", "system")
        for carries, turn in zip(side.loss, side.turns, strict=True)
    )


def _lacks_end_of_turn(side: PairSide, data: TokenizedSamples) -> bool:
    """Whether no special token follows the last answer, or (but for a reward model) none that
    carries loss.
    """
    last = len(side.messages) - 1
    if side.is_truncated or last < 0 or side.messages[last][0] != "assistant":
        return False
    inside = [position for position, turn in enumerate(side.turns) if turn == last]
    if not inside:
        return False
    after = range(inside[-1] + 1, len(side.ids))
    return not any(
        side.ids[at] in data.special and (side.loss is None or side.loss[at]) for at in after
    )


def _hides_end(side: PairSide, data: TokenizedSamples) -> bool:
    """Whether the pad token is the end token, and the sample's own end tokens are masked."""
    if data.pad is None or data.pad != data.eos:
        return False
    is_masked = (
        side.loss is not None
        and data.eos in side.ids
        and not any(
            carries for token, carries in zip(side.ids, side.loss, strict=True) if token == data.eos
        )
    )
    return is_masked or any(side.ids[position] == data.eos for position in side.hidden)


_TEMPLATE = "set recipe.chat_template, or repair the tokenizer's template"
# id, whether a side breaks the rule, message, cure
_RULES: tuple[tuple[str, Callable[[PairSide, TokenizedSamples], bool], str, str], ...] = (
    (
        "loss_on_user",
        _has_loss_on_user,
        "tokens of a user or system turn carry loss: the model learns to write them",
        _TEMPLATE,
    ),
    (
        "no_end_of_turn",
        _lacks_end_of_turn,
        "no end token that is trained follows the answer: the model does not learn to stop",
        _TEMPLATE,
    ),
    (
        "double_bos",
        lambda side, data: data.bos is not None and side.ids[:2] == (data.bos, data.bos),
        "the sample begins with two BOS tokens",
        "remove flags.add_bos, or the template's own BOS",
    ),
    (
        "pad_is_end",
        _hides_end,
        "the pad token is the end token, and the end of the answers is masked",
        "use another pad token",
    ),
    (
        "system_dropped",
        lambda side, data: any(
            role == "system" and not rendered for role, rendered in side.messages
        ),
        "the chat template leaves the system turn out",
        "set recipe.chat_template, or remove the turn",
    ),
    (
        "calls_dropped",
        lambda side, data: side.drops_calls,
        "the chat template leaves calls of tools out, so empty answers are learned",
        _TEMPLATE,
    ),
)
