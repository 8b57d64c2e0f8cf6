"""Reorders the samples of a prepared data loader within each global batch (optimizer step).

The sampler sits between the trainer's own random sampler and torch's BatchSampler and is the same
on every rank. Every optimizer step gets the same samples as upstream's, only their order within the
step differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import columns
from .hooks import replaces
from .length_balancing import (
    BatchLoad,
    balance_by_length,
    compute_load,
    fill_epoch,
    micro_batch_cost,
)


@dataclass(frozen=True)
class BatchLayout:
    """How an epoch is divided into micro batches."""

    ranks: int
    rank: int
    per_device: int  # samples per micro batch
    # The micro batches of a rank per optimizer step; the last step of an epoch may have fewer.
    accumulation: int
    padded: bool = False  # micro batches are padded to their longest sample


@dataclass(frozen=True)
class StepLoad:
    """The load of one optimizer step, in upstream's order and as assigned to the ranks."""

    upstream: BatchLoad
    balanced: BatchLoad


@dataclass(frozen=True)
class MicroBatch:
    """One micro batch of this rank."""

    lengths: tuple[int, ...]  # tokens of each sample
    # The factor on its mean loss that makes the loss of the optimizer step the mean over all tokens
    # that carry loss; None if the tokens were not counted.
    weight: float | None
    # The factor on the gradient of that weighted loss that makes the optimizer step's gradient that
    # of the sum over all tokens that carry loss, divided by the samples of a global batch; None if
    # the tokens were not counted.
    scale: float | None


class GlobalBatchSampler:
    """Yields the indices of `inner`, one epoch per iteration.

    `lengths`: the tokens of each sample of the dataset.
    """

    def __init__(self, inner: Any, layout: BatchLayout, lengths: Sequence[int]) -> None:
        self.inner = inner
        self.layout = layout
        self.lengths = lengths
        # Whether samples are assigned to ranks by length, not in upstream's order.
        self.balanced = False
        self.has_pairs = False  # each sample is a preference pair
        self.on_epoch: Callable[[], None] = lambda: None  # called when an epoch starts
        # This function is called when a step's first sample is drawn.
        self.on_step: Callable[[StepLoad], None] = lambda step: None
        self.loss_tokens: Sequence[int] | None = None  # tokens of each sample that carry loss
        # This rank's micro batches that are not collated yet.
        self.pending: deque[MicroBatch] = deque()
        self.first_batch: MicroBatch | None = None  # the first micro batch of this rank and process
        self._skipped = 0

    def __len__(self) -> int:
        return len(fill_epoch(range(len(self.inner)), self.layout.ranks, self.layout.per_device))

    def set_epoch(self, epoch: int) -> None:
        self.inner.set_epoch(epoch)

    def tokens_of(self, batch: MicroBatch) -> int:
        """Return the tokens that the model gets for a micro batch, padding included."""
        return micro_batch_cost(batch.lengths, self.layout.padded)

    def skip(self, batches: int) -> None:
        """Skip the first `batches` micro batches of this rank in the next epoch, as a resumed run
        does.
        """
        self._skipped = batches

    def __iter__(self) -> Iterator[int]:
        layout = self.layout
        order = fill_epoch(list(self.inner), layout.ranks, layout.per_device)
        size = layout.ranks * layout.per_device * layout.accumulation
        skipped = self._skipped
        self._skipped = 0
        self.pending.clear()
        self.on_epoch()
        for start in range(0, len(order), size):
            samples = order[start : start + size]
            lengths = [self.lengths[sample] for sample in samples]
            if skipped >= layout.accumulation:
                skipped -= layout.accumulation
                yield from samples  # accelerate skips them
                continue
            upstream = self._load(lengths)
            if self.balanced:
                slots = balance_by_length(
                    lengths, layout.ranks, layout.per_device, padded=layout.padded
                )
                samples = [samples[slot] for slot in slots]
                lengths = [lengths[slot] for slot in slots]
            own_batches = self._own_batches(samples, lengths)[skipped:]
            skipped = 0
            self.first_batch = self.first_batch or own_batches[0]
            if self.loss_tokens is not None:
                self.pending += own_batches
            self.on_step(StepLoad(upstream, self._load(lengths)))
            yield from samples

    def _load(self, lengths: Sequence[int]) -> BatchLoad:
        return compute_load(
            lengths, self.layout.ranks, self.layout.per_device, padded=self.layout.padded
        )

    def _own_batches(self, samples: Sequence[int], lengths: Sequence[int]) -> list[MicroBatch]:
        layout = self.layout
        size = layout.per_device
        counts = None
        if self.loss_tokens is not None:
            counts = [self.loss_tokens[sample] for sample in samples]
        batches = []
        for start in range(layout.rank * size, len(samples), layout.ranks * size):
            weight = scale = None
            if counts is not None:
                # The trainer averages over the ranks and divides by the accumulation steps, even in
                # a shorter step.
                micro_batches = layout.ranks * layout.accumulation
                weight = sum(counts[start : start + size]) * micro_batches / max(1, sum(counts))
                scale = sum(counts) / (micro_batches * size)
            batches.append(MicroBatch(tuple(lengths[start : start + size]), weight, scale))
        return batches


_on_prepared: list[Callable[[GlobalBatchSampler, Any, columns.SampleLengths], None]] = []


def when_loader_prepared(
    configure: Callable[[GlobalBatchSampler, Any, columns.SampleLengths], None],
) -> None:
    """Register `configure(sampler, loader, lengths)`, called for the prepared data loader before it
    is iterated.

    Its arguments: the new sampler, accelerate's loader, the lengths of the samples.
    """
    from accelerate import Accelerator
    from accelerate import accelerator as module

    _on_prepared.append(configure)
    if getattr(Accelerator.prepare_data_loader, "deals_for_launch", False):
        return

    @replaces(Accelerator, "prepare_data_loader")
    def prepare_and_deal(prepare: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        loader = prepare(self, *arguments, **options)
        batches, lengths = _build_sampler(self, loader)
        for registered in _on_prepared:
            registered(batches, loader, lengths)
        loader.set_sampler(batches)
        return loader

    @replaces(module, "skip_first_batches")
    def skip_and_notify(skip: Any, dataloader: Any, num_batches: int = 0) -> Any:
        batches = find_sampler(dataloader)
        if batches is not None:
            batches.skip(num_batches)
        return skip(dataloader, num_batches)

    prepare_and_deal.deals_for_launch = True  # type: ignore[attr-defined]


def find_sampler(loader: Any) -> GlobalBatchSampler | None:
    """Return the GlobalBatchSampler of a prepared loader, below any wrapper that skips the first
    batches.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    while batch_sampler is not None:
        sampler = getattr(batch_sampler, "sampler", None)
        if isinstance(sampler, GlobalBatchSampler):
            return sampler
        batch_sampler = getattr(batch_sampler, "batch_sampler", None)
    return None


def _build_sampler(
    accelerator: Any, loader: Any
) -> tuple[GlobalBatchSampler, columns.SampleLengths]:
    lengths = columns.read_lengths(loader.dataset)
    padded = "Flattening" not in type(loader.collate_fn).__name__
    layout = BatchLayout(
        ranks=accelerator.num_processes,
        rank=accelerator.process_index,
        per_device=loader.batch_sampler.batch_size,
        accumulation=accelerator.gradient_accumulation_steps,
        padded=padded,
    )
    tokens = lengths.padded() if padded else lengths.tokens()
    batches = GlobalBatchSampler(loader.get_sampler(), layout, tokens)
    batches.has_pairs = len(lengths.halves) == len(columns.PAIRS)
    return batches, lengths
