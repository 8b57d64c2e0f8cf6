"""The lengths of tokenised data: the reader, and what is predicted from them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.config.kinds import Kind
from launch.config.recipe_keys import Packing
from launch.planning.lengths import Histogram, Lengths, draw_batches, load_lengths


def lengths_of(*tokens: int) -> Lengths:
    return Lengths(Kind.sft, Histogram.of(tokens), label_tokens=len(tokens))


def file_with(folder: Path, **changed: Any) -> Path:
    payload = {"schema_version": 1, "kind": "sft", "label_tokens": 7, "tokens": {"10": 2, "3": 1}}
    path = folder / "lengths.json"
    path.write_text(json.dumps({**payload, **changed}), encoding="utf-8")
    return path


def test_the_reader(tmp_path: Path) -> None:
    loaded = load_lengths(file_with(tmp_path))
    assert loaded is not None
    assert (loaded.kind, loaded.samples, loaded.label_tokens) == (Kind.sft, 3, 7)
    assert (loaded.tokens.total, loaded.tokens.mean, loaded.tokens.longest) == (23, 23 / 3, 10)
    assert loaded.tokens_of_step(6) == pytest.approx(46)


def test_the_reader_of_pairs(tmp_path: Path) -> None:
    halves = {"chosen": {"4": 1}, "rejected": {"6": 1}, "longer": {"6": 1}, "pairs": [[4, 6]]}
    loaded = load_lengths(file_with(tmp_path, kind="dpo", tokens={"10": 1}, **halves))
    assert loaded is not None and loaded.longer is not None
    assert (loaded.pairs, loaded.longer.longest) == (((4, 6),), 6)
    assert loaded.padded_tokens(1) == 12  # both halves to the longer one's length
    assert loaded.expected_padding_share(1) == pytest.approx(2 / 12)


@pytest.mark.parametrize(
    "changed",
    [
        {"schema_version": 2},
        {"tokens": {}},
        {"tokens": {"x": 1}},
        {"tokens": {"3": 0}},
        {"kind": "odd"},
        {"pairs": [[1]]},
    ],
)
def test_what_is_no_such_file_is_unknown(changed: dict[str, Any], tmp_path: Path) -> None:
    assert load_lengths(file_with(tmp_path, **changed)) is None


def test_a_missing_and_a_broken_file_are_unknown(tmp_path: Path) -> None:
    assert load_lengths(tmp_path / "none.json") is None
    (tmp_path / "cut.json").write_text('{"schema_version": 1, "tok', encoding="utf-8")
    assert load_lengths(tmp_path / "cut.json") is None


def test_quantiles() -> None:
    loaded = Histogram.of([1, 2, 3, 4, 100])
    assert [loaded.longest_of_quantile(1, share) for share in (0, 0.2, 0.5, 0.8, 0.81, 1)] == [
        1,
        1,
        3,
        4,
        100,
        100,
    ]
    assert loaded.longest_of_quantile(2, 0.5) == 4  # of ten pairs three are within 3, six within 4
    assert loaded.longest_of_quantile(2, 0.3) == 3
    assert loaded.longest_of_quantile(50, 0.01) == 100


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 4))
def test_the_expected_longest_is_that_of_all_draws(lengths: list[int], samples: int) -> None:
    samples = min(samples, len(lengths))
    draws = list(itertools.combinations(lengths, samples))
    assert Histogram.of(lengths).longest_of(samples) == pytest.approx(
        sum(map(max, draws)) / len(draws)
    )


def test_padding_share() -> None:
    assert lengths_of(5, 5, 5).expected_padding_share(2) == 0
    assert lengths_of(1, 3).expected_padding_share(1) == 0
    assert lengths_of(1, 3).expected_padding_share(2) == pytest.approx(1 / 3)
    assert lengths_of(1, 3).expected_padding_share(8) == pytest.approx(
        1 / 3
    )  # there are no more than two


def test_micro_batches() -> None:
    same = lengths_of(*[7] * 20)
    assert same.micro_batch_quantile(4, Packing.flatten, 0.99) == 28
    assert same.micro_batch_quantile(4, Packing.none, 0.99) == 28
    mixed = lengths_of(*range(1, 101))
    mean = sum(map(sum, draw_batches(mixed.tokens, 8, 4000))) / 4000
    assert mean == pytest.approx(8 * 50.5, rel=0.02)
    assert 404 < mixed.micro_batch_quantile(8, Packing.flatten, 0.99) < 800
    assert mixed.micro_batch_quantile(1, Packing.none, 0.99) == 99
    assert mixed.micro_batch_quantile(8, Packing.none, 1.0) == 800
    assert list(draw_batches(mixed.tokens, 8, 3)) == list(draw_batches(mixed.tokens, 8, 3))
    with pytest.raises(ValueError, match="bins"):
        mixed.micro_batch_quantile(8, Packing.bins, 0.99)
