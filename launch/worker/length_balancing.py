"""Assigns the samples of a global batch to ranks and accumulation steps, so that no rank waits long
for another.

Everything here works on positions in one global batch in upstream's order. accelerate assigns
batches round robin (data_loader.py, BatchSamplerShard): micro batch `step * ranks + rank`, of `per_device`
consecutive samples, goes to `rank` in accumulation step `step`. An order is a permutation of the
positions, divided like that.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_EXCHANGES = 64  # maximum number of exchanges of two samples; a few are usually enough
_TOLERANCE = 1.002  # fullest micro batch over the mean at which exchanging stops
_PARTNERS = 8  # the emptiest micro batches, with which the fullest one exchanges samples


@dataclass(frozen=True)
class BatchLoad:
    """The cost of one global batch in some order, in tokens that the ranks compute, padding
    included.
    """

    # The sum over the accumulation steps of the slowest rank's tokens, for which all ranks wait.
    waited: float
    computed: float  # mean over the ranks
    tokens: float  # mean over the ranks, without padding
    largest: int  # tokens of the largest micro batch, which determines the memory

    @property
    def imbalance(self) -> float:
        """Largest tokens of a rank in an accumulation step, with padding, over the mean without
        padding.

        1.0 if no rank waits and nothing is padded.
        """
        return self.waited / self.tokens if self.tokens else 1.0

    @property
    def padding(self) -> float:
        """The fraction of padding, from 0 to below 1."""
        return 1 - self.tokens / self.computed if self.computed else 0.0


def fill_epoch(order: Sequence[int], ranks: int, per_device: int) -> list[int]:
    """Fill an epoch up as accelerate does (data_loader.py, BatchSamplerShard, even_batches).

    With several ranks the first samples are repeated until every rank has the same number of full
    micro batches; a single rank gets a shorter last micro batch.

    >>> fill_epoch([5, 6, 7], 2, 2)
    [5, 6, 7, 5]
    """
    missing = -len(order) % (ranks * per_device) if ranks > 1 else 0
    beginning = order[: ranks * per_device]
    repeats = -(-missing // len(beginning)) if missing else 0
    return [*order, *(list(beginning) * repeats)[:missing]]


def compute_load(lengths: Sequence[int], ranks: int, per_device: int, *, padded: bool) -> BatchLoad:
    """Compute the cost of samples of these `lengths` in this order.

    `padded`: each micro batch is padded to its longest sample.
    """
    batches = [lengths[start : start + per_device] for start in range(0, len(lengths), per_device)]
    costs = [micro_batch_cost(batch, padded) for batch in batches]
    steps = [costs[start : start + ranks] for start in range(0, len(costs), ranks)]
    return BatchLoad(
        waited=float(sum(max(step) for step in steps)),
        computed=sum(costs) / ranks,
        tokens=sum(lengths) / ranks,
        largest=max(costs, default=0),
    )


def balance_by_length(
    lengths: Sequence[int], ranks: int, per_device: int, *, padded: bool = False
) -> list[int]:
    """Find a balanced order of one global batch whose samples have these `lengths` (tokens), in
    upstream's order.

    Returns a permutation of range(len(lengths)), deterministic in its arguments. By `compute_load`
    its ranks never wait longer than in upstream's own order, which is kept if nothing is gained. A
    last micro batch that is not full (only a single rank has one, at the end of an epoch) is left
    as it is.

    Raises ValueError if the samples do not fill the ranks.

    >>> balance_by_length([9, 8, 1, 2], ranks=2, per_device=2)
    [0, 2, 1, 3]
    """
    full = len(lengths) // per_device
    if ranks > 1 and (full % ranks or full * per_device != len(lengths)):
        raise ValueError(f"{len(lengths)} samples do not fill {ranks} ranks x {per_device} samples")
    if full == 0:
        return list(range(len(lengths)))
    last = list(range(full * per_device, len(lengths)))
    positions = sorted(range(full * per_device), key=lambda position: -lengths[position])
    by_length = [
        positions[start : start + per_device] for start in range(0, len(positions), per_device)
    ]
    groupings = [by_length]
    if not padded and per_device > 1:
        groupings.insert(0, _group_evenly(lengths, positions, per_device))
    orders = [list(range(len(lengths)))]
    orders += [[*_assign_to_steps(lengths, batches, ranks, padded), *last] for batches in groupings]

    def cost(order: Sequence[int]) -> tuple[float, int]:
        load = compute_load(
            [lengths[position] for position in order], ranks, per_device, padded=padded
        )
        return load.waited, load.largest

    return min(orders, key=cost)


def micro_batch_cost(lengths: Sequence[int], padded: bool) -> int:
    """Return the tokens of a micro batch of samples of these `lengths`; with padding if
    `padded`.
    """
    return max(lengths) * len(lengths) if padded else sum(lengths)


def _group_evenly(
    lengths: Sequence[int], positions: Sequence[int], per_device: int
) -> list[list[int]]:
    """Group the samples into micro batches of `per_device` samples with nearly equal token counts.

    The longest remaining sample goes to the emptiest micro batch with room; then the fullest one
    exchanges samples.
    """
    count = len(positions) // per_device
    batches: list[list[int]] = [[] for _ in range(count)]
    with_room = [(0, index) for index in range(count)]
    for position in positions:
        tokens, index = heapq.heappop(with_room)
        batches[index].append(position)
        if len(batches[index]) < per_device:
            heapq.heappush(with_room, (tokens + lengths[position], index))
    sums = [sum(_lengths_at(batch, lengths)) for batch in batches]
    for _ in range(_MAX_EXCHANGES):
        if max(sums) * count <= _TOLERANCE * sum(sums):
            break
        if not _exchange_samples(lengths, batches, sums):
            break
    return batches


def _lengths_at(positions: Sequence[int], lengths: Sequence[int]) -> list[int]:
    return [lengths[position] for position in positions]


def _exchange_samples(lengths: Sequence[int], batches: list[list[int]], sums: list[int]) -> bool:
    """Exchange one sample of the fullest micro batch for one of another so that the fuller of the
    two shrinks most.

    `sums`: the tokens of each micro batch. Returns False if no exchange helps.
    """
    fullest = max(range(len(batches)), key=lambda index: sums[index])
    best: tuple[int, int, int, int, int] | None = None
    for other in heapq.nsmallest(_PARTNERS, range(len(batches)), key=lambda index: sums[index]):
        gap = sums[fullest] - sums[other]
        for longer_index, longer in enumerate(batches[fullest]):
            for shorter_index, shorter in enumerate(batches[other]):
                moved = lengths[longer] - lengths[shorter]
                if 0 < moved < gap:
                    fuller = max(sums[fullest] - moved, sums[other] + moved)
                    if best is None or fuller < best[0]:
                        best = (fuller, moved, other, longer_index, shorter_index)
    if best is None:
        return False
    _, moved, other, longer_index, shorter_index = best
    longer = batches[fullest][longer_index]
    batches[fullest][longer_index] = batches[other][shorter_index]
    batches[other][shorter_index] = longer
    sums[fullest] -= moved
    sums[other] += moved
    return True


def _assign_to_steps(
    lengths: Sequence[int], batches: list[list[int]], ranks: int, padded: bool
) -> list[int]:
    """Assign micro batches to accumulation steps and ranks; return the positions in that order.

    The micro batches of one step cost nearly the same. Over all steps every rank gets nearly the
    same total, which matters to ranks that synchronise only at the end of the global batch (plain
    DDP).
    """
    costs = [micro_batch_cost(_lengths_at(batch, lengths), padded) for batch in batches]
    by_cost = sorted(range(len(batches)), key=lambda index: -costs[index])
    totals = [0] * ranks
    order: list[int] = []
    for start in range(0, len(by_cost), ranks):
        step = [0] * ranks
        costliest_first = by_cost[start : start + ranks]
        least_loaded_first = sorted(range(ranks), key=lambda rank: totals[rank])
        for index, rank in zip(costliest_first, least_loaded_first, strict=True):
            step[rank] = index
        for rank, index in enumerate(step):
            totals[rank] += costs[index]
            order += batches[index]
    return order
