"""Warnings about tokenised samples, and the numbers of all of them; tests/integration/test_preview.py has real ones."""

from __future__ import annotations

from dataclasses import replace

from launch.data.samples import Batch, Lengths, Sample, Side, TokenizedSamples, find_sample_problems

BOS, EOS, USER, ANSWER = 1, 2, 10, 11
GOOD = Side(
    "messages",
    ids=(BOS, USER, ANSWER, EOS),
    pieces=("<s>", "hi", "hello", "</s>"),
    loss=(False, False, True, True),
    turns=(None, 0, 1, None),
    messages=(("user", True), ("assistant", True)),
    hidden=(),
    untruncated=4,
)


def samples(*sides: Side, kept: bool = True, pad: int = 0, bos: int = BOS) -> TokenizedSamples:
    found = tuple(Sample(f"/data.jsonl:{number}", kept, (side,)) for number, side in enumerate(sides, 1))
    counts = {
        name: {"messages": tuple(values)}
        for name, values in {
            "tokens": [len(side.ids) for side in sides],
            "untruncated": [side.untruncated for side in sides],
            "loss": [None if side.loss is None else sum(side.loss) for side in sides],
        }.items()
    }
    lengths = Lengths(tuple(sample.place for sample in found), (kept,) * len(found), **counts)
    return TokenizedSamples(found, (lengths,), (BOS, EOS), bos, EOS, pad, None)


def problems(data: TokenizedSamples) -> list[str]:
    return [str(problem) for problem in find_sample_problems(data)]


def test_a_good_sample_has_no_problem() -> None:
    assert problems(samples(GOOD)) == []


def test_each_kind_is_reported_once_with_its_first_place() -> None:
    leaky = replace(GOOD, loss=(False, True, True, True))
    [problem] = problems(samples(GOOD, leaky, leaky))
    assert problem.startswith("/data.jsonl:2: tokens of a user or system turn carry loss")
    assert "(2 of 3 samples)" in problem and problem.endswith("[loss_on_user]")


def test_an_end_of_turn_has_to_carry_loss() -> None:
    assert "[no_end_of_turn]" in problems(samples(replace(GOOD, loss=(False, False, True, False))))[0]
    assert problems(samples(replace(GOOD, loss=None))) == []  # a reward model: it only has to be there
    assert problems(samples(replace(GOOD, loss=(False, False, True, False), untruncated=9))) == []  # it is cut off
    ends_with_user = replace(GOOD, messages=(("assistant", True), ("user", True)), turns=(None, 0, 1, None))
    assert "[no_end_of_turn]" not in "".join(problems(samples(ends_with_user)))


def test_samples_without_loss_are_counted_and_why() -> None:
    cut = replace(GOOD, loss=(False,) * 4, untruncated=9)
    [problem] = problems(samples(GOOD, cut, kept=False))
    assert problem.startswith("/data.jsonl:2: no token carries loss in 1 of 2 samples, 1 of them because they are cut")
    [problem] = problems(samples(replace(GOOD, loss=(False,) * 4), kept=False))
    assert "check the chat template" in problem


def test_a_pad_token_that_is_the_end_token_is_a_problem_only_if_the_end_is_masked() -> None:
    assert problems(samples(GOOD, pad=EOS)) == []
    masked = replace(GOOD, loss=(False, False, True, False))
    assert "[pad_is_end]" in "".join(problems(samples(masked, pad=EOS)))
    hidden = replace(GOOD, loss=None, hidden=(3,))
    assert [problem.rpartition("[")[2] for problem in problems(samples(hidden, pad=EOS))] == ["pad_is_end]"]


def test_bos_twice_and_a_dropped_system_turn() -> None:
    twice = replace(GOOD, ids=(BOS, BOS, ANSWER, EOS))
    assert "[double_bos]" in problems(samples(twice))[0]
    dropped = replace(GOOD, messages=(("system", False), *GOOD.messages), turns=(None, 1, 2, None))
    assert problems(samples(dropped))[0].endswith("[system_dropped]")


def test_calls_of_tools_that_the_template_leaves_out() -> None:
    assert problems(samples(replace(GOOD, drops_calls=True)))[0].endswith("[calls_dropped]")


def test_what_the_trainer_drops_is_not_judged_by_its_template() -> None:
    assert problems(samples(replace(GOOD, ids=(BOS, BOS, ANSWER, EOS)), kept=False)) == []


def test_all_samples_are_described_in_a_line() -> None:
    cut = replace(GOOD, loss=(False,) * 4, untruncated=9)
    [lengths] = samples(GOOD, GOOD, cut).lengths
    assert replace(lengths, duplicates=("/data.jsonl:2",)).describe() == (
        "3 rows of 4 to 9 tokens, median 4; 33.3% cut off; 1 without a token that carries loss (first: /data.jsonl:3); "
        "1 duplicates (first: /data.jsonl:2)"
    )
    [scored] = samples(replace(GOOD, loss=None)).lengths
    assert scored.describe() == "1 rows of 4 to 4 tokens, median 4; 0.0% cut off; 0 duplicates"


def test_batches_are_described() -> None:
    assert Batch(2, 10, 5, 2).describe() == "2 rows of 10 tokens, 25% padding"
    assert Batch(1, 30, 0, 3).describe() == "3 documents in 1 row of 30 tokens, 0% padding"


def test_pairs_that_are_equal_after_truncation() -> None:
    chosen, other = replace(GOOD, name="chosen"), replace(GOOD, name="rejected", ids=(BOS, USER, 12, EOS))
    pair = Sample("/pairs.jsonl:1", True, (chosen, replace(GOOD, name="rejected", untruncated=9)))
    data = replace(samples(), samples=(pair, replace(pair, sides=(chosen, other))), lengths=())
    [problem] = [str(problem) for problem in find_sample_problems(data)]
    assert "same tokens in 1 of 2 pairs" in problem and "raise recipe.max_seq_length" in problem
    assert find_sample_problems(data, 0.5) == []


def test_what_most_samples_have_is_told_from_what_some_have() -> None:
    leaky = replace(GOOD, loss=(False, True, True, True))
    silent = replace(GOOD, loss=(False,) * 4, untruncated=9)
    kinds = {
        "loss_on_user": leaky,
        "no_end_of_turn": replace(GOOD, loss=(False, False, True, False)),
        "double_bos": replace(GOOD, ids=(BOS, BOS, ANSWER, EOS)),
        "system_dropped": replace(GOOD, messages=(("system", False), ("assistant", True))),
        "calls_dropped": replace(GOOD, drops_calls=True),
        "no_loss_tokens": silent,
    }
    for id, side in kinds.items():
        assert id in {problem.id for problem in find_sample_problems(samples(GOOD, side, side), 0.5)}, id
        assert find_sample_problems(samples(GOOD, GOOD, side), 0.5) == [], id
