"""Finds what is wrong with tokenised samples: with their template, masks and special tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from launch.data.samples import PairSide, Sample, TokenizedSamples
from launch.worker.finding import Finding


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
