"""The order of one global batch, balanced by length: always a permutation, never worse than
upstream's order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.worker.length_balancing import (
    BatchLoad,
    balance_by_length,
    compute_load,
    fill_epoch,
    micro_batch_cost,
)


@dataclass(frozen=True)
class Case:
    lengths: list[int]
    ranks: int
    per_device: int
    padded: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ranks, per_device = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    size = draw(st.integers(1, 5)) * ranks * per_device
    if ranks == 1:
        size += draw(st.integers(0, per_device - 1))  # at the end of an epoch
    lengths = draw(st.lists(st.integers(1, 200), min_size=size, max_size=size))
    return Case(lengths, ranks, per_device, draw(st.booleans()))


def loads(case: Case) -> tuple[BatchLoad, BatchLoad]:
    order = balance_by_length(case.lengths, case.ranks, case.per_device, padded=case.padded)
    dealt = [case.lengths[position] for position in order]
    return (
        compute_load(case.lengths, case.ranks, case.per_device, padded=case.padded),
        compute_load(dealt, case.ranks, case.per_device, padded=case.padded),
    )


@settings(max_examples=300, deadline=None)
@given(cases())
def test_it_is_a_permutation_and_the_same_each_time(case: Case) -> None:
    order = balance_by_length(case.lengths, case.ranks, case.per_device, padded=case.padded)
    assert sorted(order) == list(range(len(case.lengths)))
    assert order == balance_by_length(case.lengths, case.ranks, case.per_device, padded=case.padded)
    partial = len(case.lengths) % case.per_device
    if partial:
        assert order[-partial:] == list(range(len(case.lengths) - partial, len(case.lengths)))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_nobody_waits_longer_than_in_upstreams_order(case: Case) -> None:
    upstream, balanced = loads(case)
    assert balanced.waited <= upstream.waited
    assert balanced.tokens == upstream.tokens
    assert balanced.imbalance <= upstream.imbalance
    if not case.padded:
        assert balanced.computed == upstream.computed
    if balanced.waited == upstream.waited:
        assert balanced.largest <= upstream.largest


def test_known_points() -> None:
    assert balance_by_length([9, 8, 1, 2], 2, 2) == [0, 2, 1, 3]  # 10 and 10
    assert balance_by_length([5, 5, 5, 5], 2, 2) == [
        0,
        1,
        2,
        3,
    ]  # nothing to gain: upstream's order
    # steps of 9 and 8, 4 and 3; the rank that had more gets less
    assert balance_by_length([3, 9, 4, 8], 2, 1) == [1, 3, 0, 2]
    assert balance_by_length([1, 9, 1, 9], 1, 2, padded=True) == [
        1,
        3,
        0,
        2,
    ]  # 18 + 2 tokens instead of 18 + 18
    assert balance_by_length([], 1, 4) == []
    assert balance_by_length([7, 8], 1, 4) == [0, 1]


def test_a_batch_that_does_not_fill_the_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="5 samples do not fill 2 ranks x 2 samples"):
        balance_by_length([1] * 5, 2, 2)
    with pytest.raises(ValueError, match="6 samples"):
        balance_by_length([1] * 6, 2, 2)


def test_the_load() -> None:
    load = compute_load([4, 2, 6, 8], 2, 1, padded=False)
    assert (load.waited, load.computed, load.largest) == (12.0, 10.0, 8)
    assert load.imbalance == pytest.approx(1.2)
    padded = compute_load([4, 2, 6, 8], 2, 2, padded=True)
    assert (padded.waited, padded.computed, padded.tokens) == (16.0, 12.0, 10.0)
    assert padded.imbalance == pytest.approx(1.6)
    assert padded.padding == pytest.approx(1 / 6)
    assert (
        micro_batch_cost([3, 5], padded=False) == 8 and micro_batch_cost([3, 5], padded=True) == 10
    )


def test_chats_of_real_lengths_are_nearly_even() -> None:
    """Log-normal lengths, 8 ranks of 8 samples, two accumulation steps."""
    draw = random.Random(0)
    before = after = 0.0
    for _ in range(20):
        lengths = [min(4096, max(8, int(draw.lognormvariate(6.0, 0.95)))) for _ in range(128)]
        upstream, balanced = loads(Case(lengths, 8, 8, padded=False))
        before += upstream.imbalance / 20
        after += balanced.imbalance / 20
    assert before > 1.5
    assert after < 1.02


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4))
def test_an_epoch_is_completed_as_accelerate_does(
    samples: int, ranks: int, per_device: int
) -> None:
    data_loader = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import BatchSampler, SequentialSampler

    batches = BatchSampler(SequentialSampler(range(samples)), per_device, drop_last=False)
    dealt = [list(batches)]
    if ranks > 1:
        dealt = [list(data_loader.BatchSamplerShard(batches, ranks, rank)) for rank in range(ranks)]
    order = [sample for step in zip(*dealt, strict=True) for batch in step for sample in batch]
    assert order == fill_epoch(range(samples), ranks, per_device)
