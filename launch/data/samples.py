"""Reads tokenised samples that the trainer's process wrote, and finds what is wrong with them.

The worker's side is launch/worker/samples.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
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


def find_sample_problems(data: TokenizedSamples, above: float = 0.0) -> list[Finding]:
    """Find problems of the template, the masks and the special tokens.

    Each kind of problem is reported once, with its first place, if more than the share `above` of
    the samples has it; answer_changed, which no data can cause, if any sample has it. The ids are
    no_loss_tokens, answer_changed, equal_pairs, loss_on_user, no_end_of_turn, double_bos,
    pad_is_end, learnt_answer_cut, system_dropped, calls_dropped, padded_tools, and of a warning fields_dropped.
    """
    problems = [data.refusal] if data.refusal else []
    problems += _find_samples_without_loss(data, above)
    kept = [sample for sample in data.samples if sample.kept]
    problems += _find_changed_answers(data.samples, data.template)
    problems += _find_equal_pairs(kept, above)
    problems += _find_padded_tools(kept, above)
    for rule in _RULES:
        places = [sample.place for sample in kept if rule.is_broken_by(sample, data)]
        if len(places) <= above * len(kept):
            continue
        message = rule.message
        if len(kept) > 1:
            message += f" ({len(set(places))} of {len(kept)} samples)"
        if "template" in rule.cure:
            message += f", chat template: {data.template}"
        problems.append(Finding.error(rule.id, message, places[0], rule.cure))
    return [*problems, *_find_dropped_fields(kept, data.template)]


def _find_samples_without_loss(data: TokenizedSamples, above: float) -> Iterator[Finding]:
    for lengths in data.lengths:
        without_loss = lengths.without_loss()
        if len(without_loss) <= above * len(lengths.kept):
            continue
        cut = len(set(without_loss) & set(lengths.truncated()))
        message = f"no token carries loss in {len(without_loss)} of {len(lengths.kept)} samples"
        cure = "check the chat template and the roles"
        if cut:
            message += f", {cut} of them because they are cut off before the answer"
            cure = "raise recipe.max_seq_length, or remove the rows"
        where = lengths.places[without_loss[0]]
        yield Finding.error("no_loss_tokens", message, where, cure)


def _find_changed_answers(samples: Sequence[Sample], template: str) -> Iterator[Finding]:
    """Yield the problem of answers that are not trained as they are, with the first one.

    They are compared before truncation, so those that the trainer drops count, too.
    """
    changed = _collect(samples, lambda side: side.changed_answer)
    if not changed:
        return
    where, (answer, trained) = changed[0]
    count = len({place for place, _ in changed})
    message = (
        f"the last answer is not what is trained: its text is {answer!r}, and that of the tokens "
        f"is {trained!r} ({count} of {len(samples)} samples), chat template: {template}"
    )
    yield Finding.error("answer_changed", message, where, _TEMPLATE)


def _collect(
    samples: Sequence[Sample], texts_of: Callable[[PairSide], tuple[str, ...]]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return what `texts_of` returns of each side, with the sample's place, where it is not empty."""
    found = []
    for sample in samples:
        for side in sample.sides:
            texts = texts_of(side)
            if texts:
                found.append((sample.place, texts))
    return found


def _find_dropped_fields(kept: Sequence[Sample], template: str) -> Iterator[Finding]:
    """Yield a warning that names the fields which the chat template leaves out."""
    dropped = _collect(kept, lambda side: side.dropped_fields)
    if not dropped:
        return
    names = dict.fromkeys(name for _, fields in dropped for name in fields)
    count = len({place for place, _ in dropped})
    message = (
        f"the chat template leaves fields of the messages out, so they are not learned: "
        f"{', '.join(names)} ({count} of {len(kept)} samples), chat template: {template}"
    )
    cure = "set recipe.chat_template to one that renders it, if the model is to learn it"
    yield Finding.warning("fields_dropped", message, dropped[0][0], cure)


def _find_equal_pairs(kept: Sequence[Sample], above: float) -> list[Finding]:
    """Return the problem of pairs whose two sides have the same tokens."""
    pairs = [sample for sample in kept if len(sample.sides) == 2]
    equal = [sample.place for sample in pairs if sample.sides[0].ids == sample.sides[1].ids]
    if len(equal) <= above * len(pairs):
        return []
    message = (
        f"chosen and rejected have the same tokens in {len(equal)} of {len(pairs)} "
        "pairs: nothing is learned"
    )
    cure = "raise recipe.max_seq_length if they are cut off before they differ, or remove the pairs"
    return [Finding.error("equal_pairs", message, equal[0], cure)]


def _find_padded_tools(kept: Sequence[Sample], above: float) -> list[Finding]:
    """Return the problem of hub data whose tools have the keys of other rows.

    Local rows have lost such keys: each null that is left is the row's own.
    """
    samples = [sample for sample in kept if sample.is_of_hub]
    padded = [sample.place for sample in samples if sample.has_null_keys]
    if len(padded) <= above * len(samples):
        return []
    message = (
        f"tools or their calls have null keys in {len(padded)} of {len(samples)} samples of the "
        "hub: the files pad them, and the template writes them"
    )
    cure = "download the data set and name its files in data.mix: they are read without padding"
    return [Finding.error("padded_tools", message, padded[0], cure)]


def _has_loss_on_user(side: PairSide, data: TokenizedSamples) -> bool:
    if side.loss is None:
        return False
    for carries_loss, turn in zip(side.loss, side.turns, strict=True):
        if carries_loss and turn is not None and side.messages[turn][0] in ("user", "system"):
            return True
    return False


def _lacks_end_of_turn(side: PairSide, data: TokenizedSamples) -> bool:
    """Return whether no special token that carries loss follows the last answer that is learnt.

    For a reward model, any special token suffices.
    """
    last = len(side.messages) - 1
    learnt = [number for number, is_learnt in side.answers if is_learnt]
    if learnt:
        last = learnt[-1]
    if side.is_truncated or last < 0 or side.messages[last][0] != "assistant":
        return False
    answer = [position for position, turn in enumerate(side.turns) if turn == last]
    if not answer:
        return False
    for position in range(answer[-1] + 1, len(side.ids)):
        is_trained = side.loss is None or side.loss[position]
        if side.ids[position] in data.special and is_trained:
            return False
    return True


def _begins_with_two_bos(side: PairSide, data: TokenizedSamples) -> bool:
    return data.bos is not None and side.ids[:2] == (data.bos, data.bos)


def _hides_end(side: PairSide, data: TokenizedSamples) -> bool:
    """Return whether the pad token is the end token, and the sample's own end tokens are masked."""
    if data.pad is None or data.pad != data.eos:
        return False
    if any(side.ids[position] == data.eos for position in side.hidden):
        return True
    if side.loss is None or data.eos not in side.ids:
        return False
    tokens = zip(side.ids, side.loss, strict=True)
    return not any(carries_loss for token, carries_loss in tokens if token == data.eos)


def _drops_system_turn(side: PairSide, data: TokenizedSamples) -> bool:
    return any(role == "system" and not is_rendered for role, is_rendered in side.messages)


def _cuts_only_learnt_answer(side: PairSide, data: TokenizedSamples) -> bool:
    return side.only_learnt_cut


def _drops_tool_calls(side: PairSide, data: TokenizedSamples) -> bool:
    return side.drops_calls


@dataclass(frozen=True)
class _Rule:
    """A rule that each side of a sample has to keep."""

    id: str
    is_broken: Callable[[PairSide, TokenizedSamples], bool]
    message: str
    cure: str

    def is_broken_by(self, sample: Sample, data: TokenizedSamples) -> bool:
        return any(self.is_broken(side, data) for side in sample.sides)


_TEMPLATE = "set recipe.chat_template, or repair the tokenizer's template"
_RULES = (
    _Rule(
        "loss_on_user",
        _has_loss_on_user,
        "tokens of a user or system turn carry loss: the model learns to write them",
        _TEMPLATE,
    ),
    _Rule(
        "no_end_of_turn",
        _lacks_end_of_turn,
        "no end token that is trained follows the answer: the model does not learn to stop",
        _TEMPLATE,
    ),
    _Rule(
        "double_bos",
        _begins_with_two_bos,
        "the sample begins with two BOS tokens",
        "remove flags.add_bos, or the template's own BOS",
    ),
    _Rule(
        "pad_is_end",
        _hides_end,
        "the pad token is the end token, and the end of the answers is masked",
        "use another pad token",
    ),
    _Rule(
        "learnt_answer_cut",
        _cuts_only_learnt_answer,
        "the only answer that is learnt is cut off",
        "raise recipe.max_seq_length, or remove the rows",
    ),
    _Rule(
        "system_dropped",
        _drops_system_turn,
        "the chat template leaves the system turn out",
        "set recipe.chat_template, or remove the turn",
    ),
    _Rule(
        "calls_dropped",
        _drops_tool_calls,
        "the chat template leaves tools, their calls or their results out",
        _TEMPLATE,
    ),
)
