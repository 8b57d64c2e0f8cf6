"""Warnings about tokenised samples, and the numbers of all of them;
tests/integration/test_preview.py has real ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from launch.data.sample_problems import find_sample_problems
from launch.data.samples import LengthsBySide, PairSide, Sample, SampleBatch, TokenizedSamples
from tests.messages import values_of

BOS, EOS, USER, ANSWER = 1, 2, 10, 11
GOOD = PairSide(
    "messages",
    ids=(BOS, USER, ANSWER, EOS),
    pieces=("<s>", "hi", "hello", "</s>"),
    loss=(False, False, True, True),
    turns=(None, 0, 1, None),
    messages=(("user", True), ("assistant", True)),
    hidden=(),
    untruncated=4,
)


def samples(*sides: PairSide, kept: bool = True, pad: int = 0, bos: int = BOS) -> TokenizedSamples:
    found = tuple(
        Sample(f"/data.jsonl:{number}", kept, (side,)) for number, side in enumerate(sides, 1)
    )
    counts = {
        name: {"messages": tuple(values)}
        for name, values in {
            "tokens": [len(side.ids) for side in sides],
            "untruncated": [side.untruncated for side in sides],
            "loss": [None if side.loss is None else sum(side.loss) for side in sides],
        }.items()
    }
    lengths = LengthsBySide(tuple(sample.place for sample in found), (kept,) * len(found), **counts)
    return TokenizedSamples(found, (lengths,), (BOS, EOS), bos, EOS, pad, None)


def of_hub(*sides: PairSide) -> TokenizedSamples:
    data = samples(*sides)
    found = [
        replace(sample, place=f"lab/tools, row {number}")
        for number, sample in enumerate(data.samples, 1)
    ]
    return replace(data, samples=tuple(found))


LEAKY = replace(GOOD, loss=(False, True, True, True))
MASKED = replace(GOOD, loss=(False, False, True, False))  # the end token carries none
SILENT, CUT = replace(GOOD, loss=(False,) * 4), replace(GOOD, loss=(False,) * 4, untruncated=9)
TWICE = replace(GOOD, ids=(BOS, BOS, ANSWER, EOS))
USER_LAST = replace(GOOD, messages=(("assistant", True), ("user", True)))
SYSTEM_DROPPED = replace(
    GOOD, messages=(("system", False), *GOOD.messages), turns=(None, 1, 2, None)
)
NO_CALLS = replace(GOOD, drops_calls=True)
ONE_CUT = replace(GOOD, learnt=(1,), only_learnt_cut=True, untruncated=9)
FIRST_LEARNT = replace(
    GOOD,
    ids=(USER, ANSWER, EOS, USER, ANSWER),
    pieces=("hi", "hello", "</s>", "hi", "hello"),
    loss=(False, True, True, False, False),
    turns=(0, 1, None, 2, 3),
    messages=(*GOOD.messages, *GOOD.messages),
    untruncated=5,
    learnt=(1,),
)
CHANGED = replace(GOOD, changed_answer=("hello", "</s>"))
NO_THINKING = replace(GOOD, dropped_fields=("reasoning_content", "the user's turn"))
ENDS_HIDDEN = replace(GOOD, loss=None, hidden=(3,))


class Case(NamedTuple):
    name: str
    data: TokenizedSamples
    ids: tuple[str, ...]
    place: str = ""  # of the first one
    values: tuple[str, ...] = ()  # of the first one


CASES = (
    Case("a good sample", samples(GOOD), ()),
    Case("the only answer that is learnt is cut", samples(GOOD, ONE_CUT), ("learnt_answer_cut",)),
    # its end is that of the last answer that is learnt
    Case("the first of two answers is learnt", samples(FIRST_LEARNT), ()),
    Case(
        "the end of the learnt answer is masked",
        samples(replace(FIRST_LEARNT, loss=(False, True, False, False, False))),
        ("no_end_of_turn",),
    ),
    # once, with its first place
    Case(
        "a user's tokens carry loss",
        samples(GOOD, LEAKY, LEAKY),
        ("loss_on_user",),
        "/data.jsonl:2",
        ("2", "3"),
    ),
    Case("the end carries no loss", samples(MASKED), ("no_end_of_turn",)),
    Case("a reward model", samples(replace(GOOD, loss=None)), ()),  # the end only has to be there
    Case("the end is cut off", samples(replace(MASKED, untruncated=9)), ()),
    Case("the user has the last word", samples(USER_LAST), ("loss_on_user",)),
    Case(
        "no loss, cut",
        samples(GOOD, CUT, kept=False),
        ("no_loss_tokens",),
        "/data.jsonl:2",
        ("1", "2"),
    ),
    Case("no loss", samples(SILENT, kept=False), ("no_loss_tokens",), "/data.jsonl:1", ("1",)),
    Case("the pad token is the end token", samples(GOOD, pad=EOS), ()),
    Case("and the end carries no loss", samples(MASKED, pad=EOS), ("no_end_of_turn", "pad_is_end")),
    Case("and the end is hidden", samples(ENDS_HIDDEN, pad=EOS), ("pad_is_end",)),
    Case("two begin tokens", samples(TWICE), ("double_bos",)),
    Case("two begin tokens in what the trainer drops", samples(TWICE, kept=False), ()),
    Case("the system turn is dropped", samples(SYSTEM_DROPPED), ("system_dropped",)),
    Case("calls of tools are dropped", samples(NO_CALLS), ("calls_dropped",)),
    Case(
        "an answer is not trained",
        samples(GOOD, CHANGED, CHANGED),
        ("answer_changed",),
        "/data.jsonl:2",
        ("2", "3", "</s>", "hello"),
    ),
    Case("nor in what the trainer drops", samples(CHANGED, kept=False), ("answer_changed",)),
    Case(
        "fields of answers are dropped",
        samples(GOOD, NO_THINKING),
        ("fields_dropped",),
        "/data.jsonl:2",
        ("1", "2", "reasoning_content"),
    ),
    Case("null keys of local rows are their own", samples(replace(GOOD, has_null_keys=True)), ()),
    Case(
        "null keys of the hub's rows are padding",
        of_hub(GOOD, replace(GOOD, has_null_keys=True)),
        ("padded_tools",),
        "lab/tools, row 2",
        ("1", "2"),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_problems_of_samples(case: Case) -> None:
    found = find_sample_problems(case.data)
    assert sorted(problem.id for problem in found) == sorted(case.ids)
    if case.place:
        assert found[0].where == case.place
        assert values_of(found[0].message) == list(case.values)


KINDS = {
    "loss_on_user": LEAKY,
    "no_end_of_turn": MASKED,
    "double_bos": TWICE,
    "system_dropped": SYSTEM_DROPPED,
    "calls_dropped": NO_CALLS,
    "no_loss_tokens": CUT,
}


@pytest.mark.parametrize("id", KINDS)
def test_what_most_samples_have_is_told_from_what_some_have(id: str) -> None:
    assert id in {
        problem.id for problem in find_sample_problems(samples(GOOD, KINDS[id], KINDS[id]), 0.5)
    }
    assert find_sample_problems(samples(GOOD, GOOD, KINDS[id]), 0.5) == []


def test_one_answer_that_a_template_changes_is_too_many() -> None:
    [problem] = find_sample_problems(samples(GOOD, GOOD, GOOD, CHANGED), 0.5)
    assert (problem.id, problem.stops) == ("answer_changed", True)


def test_a_field_that_a_template_drops_is_a_warning_that_names_it() -> None:
    [problem] = find_sample_problems(samples(NO_THINKING, NO_THINKING), 0.5)
    assert not problem.stops
    assert "reasoning_content, the user's turn" in problem.message


def test_all_samples_are_described_in_a_line() -> None:
    cut = replace(GOOD, loss=(False,) * 4, untruncated=9)
    [lengths] = samples(GOOD, GOOD, cut).lengths
    assert replace(lengths, duplicates=("/data.jsonl:2",)).describe() == (
        "3 rows of 4 to 9 tokens, median 4; 33.3% truncated; 1 without a token that carries loss "
        "(first: /data.jsonl:3); "
        "1 duplicate (first: /data.jsonl:2)"
    )
    [scored] = samples(replace(GOOD, loss=None)).lengths
    assert scored.describe() == "1 row of 4 tokens; 0.0% truncated; 0 duplicates"


def test_batches_are_described() -> None:
    assert SampleBatch(2, 10, 5, 2).describe() == "2 rows of 10 tokens, 25% padding"
    assert SampleBatch(1, 30, 0, 3).describe() == "3 documents in 1 row of 30 tokens, 0% padding"


def test_pairs_that_are_equal_after_truncation() -> None:
    chosen, other = (
        replace(GOOD, name="chosen"),
        replace(GOOD, name="rejected", ids=(BOS, USER, 12, EOS)),
    )
    pair = Sample("/pairs.jsonl:1", True, (chosen, replace(GOOD, name="rejected", untruncated=9)))
    data = replace(samples(), samples=(pair, replace(pair, sides=(chosen, other))), lengths=())
    [problem] = find_sample_problems(data)
    assert problem.id == "equal_pairs" and values_of(problem.message) == ["1", "2"]
    assert "recipe.max_seq_length" in values_of(str(problem.cure))
    assert find_sample_problems(data, 0.5) == []
