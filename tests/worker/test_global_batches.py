"""The sampler in accelerate's own loaders: the same samples in the same optimizer step, on every
rank, when resumed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.worker.global_batches import (
    BatchLayout,
    GlobalBatchSampler,
    MicroBatch,
    StepLoad,
    find_sampler,
)

data_loader = pytest.importorskip(
    "accelerate.data_loader", reason="the `train` dependencies are not installed"
)
from accelerate.state import PartialState  # noqa: E402 - after the look for accelerate
from torch.utils.data import DataLoader  # noqa: E402

DRAW = random.Random(7)
LENGTHS = [DRAW.randrange(1, 90) for _ in range(200)]


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """What accelerate's loaders ask for; left as if it had never been asked."""
    PartialState(cpu=True)
    yield
    PartialState._reset_state()


def prepared(samples: int, dealing: BatchLayout, *, balanced: bool, wrapped: bool = True) -> Any:
    """accelerate's loader of one rank over range(samples), shuffled by seed; its batches are lists
    of samples.
    """
    plain = DataLoader(range(samples), batch_size=dealing.per_device, shuffle=True, collate_fn=list)  # type: ignore[arg-type]
    loader = data_loader.prepare_data_loader(
        plain,
        num_processes=dealing.ranks,
        process_index=dealing.rank,
        use_seedable_sampler=True,
        data_seed=3,
    )
    if wrapped:
        batches = GlobalBatchSampler(loader.get_sampler(), dealing, LENGTHS)
        batches.balanced = balanced
        loader.set_sampler(batches)
    return loader


def steps(
    samples: int, dealing: BatchLayout, *, epoch: int = 0, **how: bool
) -> list[list[list[list[int]]]]:
    """[step][rank][micro batch] of an epoch: its samples."""
    ranks = []
    for rank in range(dealing.ranks):
        loader = prepared(samples, replace(dealing, rank=rank), **how)  # type: ignore[arg-type]
        loader.set_epoch(epoch)
        ranks.append([list(batch) for batch in loader])
    size = dealing.accumulation
    return [[batches[at : at + size] for batches in ranks] for at in range(0, len(ranks[0]), size)]


def dealings() -> st.SearchStrategy[BatchLayout]:
    few = st.integers(1, 4)
    return st.builds(
        BatchLayout,
        ranks=few,
        rank=st.just(0),
        per_device=few,
        accumulation=few,
        padded=st.booleans(),
    )


def flat(step: list[list[list[int]]]) -> list[int]:
    return sorted(sample for batches in step for batch in batches for sample in batch)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), dealings(), st.integers(0, 2))
def test_each_step_has_the_samples_of_upstreams(
    samples: int, dealing: BatchLayout, epoch: int
) -> None:
    upstream = steps(samples, dealing, epoch=epoch, balanced=False, wrapped=False)
    unchanged = steps(samples, dealing, epoch=epoch, balanced=False)
    balanced = steps(samples, dealing, epoch=epoch, balanced=True)
    assert unchanged == upstream
    assert [flat(step) for step in balanced] == [flat(step) for step in upstream]
    shapes = [[[len(batch) for batch in batches] for batches in step] for step in upstream]
    assert [[[len(batch) for batch in batches] for batches in step] for step in balanced] == shapes


def test_epochs_differ_and_the_loader_counts_them() -> None:
    dealing = BatchLayout(2, 0, 2, 2)
    first, second = (steps(24, dealing, epoch=epoch, balanced=True) for epoch in (0, 1))
    assert [flat(step) for step in first] != [flat(step) for step in second]
    loader = prepared(24, dealing, balanced=True)
    assert [list(loader), list(loader)] == [
        [batch for step in epoch for batch in step[0]] for epoch in (first, second)
    ]
    assert len(loader) == 6
    assert (
        len(prepared(25, dealing, balanced=True))
        == len(prepared(25, dealing, balanced=True, wrapped=False))
        == 7
    )


def test_a_resumed_epoch_goes_on_where_it_was() -> None:
    dealing = BatchLayout(2, 1, 2, 2)
    whole = list(prepared(40, dealing, balanced=True))
    loader = prepared(40, dealing, balanced=True)
    batches = find_sampler(loader)
    assert batches is not None
    loads: list[StepLoad] = []
    batches.on_step, batches.loss_tokens = loads.append, LENGTHS
    rest = data_loader.skip_first_batches(loader, 4)
    assert find_sampler(rest) is batches
    batches.skip(4)
    assert list(rest) == whole[4:]
    assert len(loads) == 3  # of five steps
    assert [batch.lengths for batch in batches.pending] == [
        tuple(LENGTHS[s] for s in batch) for batch in whole[4:]
    ]
    assert batches.first_batch == batches.pending[0]
    assert list(loader) != whole[4:]  # the next epoch is whole
    assert len(loads) == 3 + 5


def test_the_weights_make_a_mean_over_all_tokens() -> None:
    """Mean losses times weights, averaged over ranks and divided by the accumulation steps as the
    trainer does.
    """
    dealing, samples = BatchLayout(2, 0, 3, 2), 30
    counts = [DRAW.randrange(1, 50) for _ in range(samples)]
    losses = [DRAW.random() for _ in range(samples)]  # of a sample's tokens, the mean
    for epoch_step, batches in _micro_batches(samples, dealing, counts):
        members = [sample for samples_of, _ in batches for sample in samples_of]
        wanted = sum(losses[s] * counts[s] for s in members) / sum(counts[s] for s in members)
        got = 0.0
        for samples_of, batch in batches:
            mean = sum(losses[s] * counts[s] for s in samples_of) / sum(
                counts[s] for s in samples_of
            )
            assert batch.weight is not None
            got += mean * batch.weight / dealing.ranks / dealing.accumulation
        assert got == pytest.approx(wanted), epoch_step


def _micro_batches(
    samples: int, dealing: BatchLayout, counts: list[int]
) -> Iterator[tuple[int, list[tuple[list[int], MicroBatch]]]]:
    """Yield each step's micro batches over all ranks (the last step is shorter) with what the
    sampler reported.
    """
    ranks = []
    for rank in range(dealing.ranks):
        loader = prepared(samples, replace(dealing, rank=rank), balanced=True)
        batches = find_sampler(loader)
        assert batches is not None
        batches.loss_tokens = counts
        ranks.append((list(loader), list(batches.pending)))
    size = dealing.accumulation
    assert len(ranks[0][0]) % size == 1
    for at in range(0, len(ranks[0][0]), size):
        yield (
            at,
            [
                pair
                for read, coming in ranks
                for pair in zip(read[at : at + size], coming[at : at + size], strict=True)
            ],
        )


def test_the_load_of_each_step_is_told() -> None:
    loader = prepared(64, BatchLayout(4, 0, 2, 2), balanced=True)
    batches = find_sampler(loader)
    assert batches is not None
    loads: list[StepLoad] = []
    batches.on_step = loads.append
    list(loader)
    assert len(loads) == 4
    assert any(step.balanced.waited < step.upstream.waited for step in loads)
    assert all(step.balanced.waited <= step.upstream.waited for step in loads)
    assert all(step.balanced.tokens == step.upstream.tokens for step in loads)
