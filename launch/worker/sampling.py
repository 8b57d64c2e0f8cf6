"""Replaces the sampler of the data loader that accelerate prepares with a `GlobalBatchSampler`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import columns
from .global_batches import BatchLayout, GlobalBatchSampler
from .replacing import replaces

_on_prepared: list[Callable[[GlobalBatchSampler, Any, columns.SampleLengths], None]] = []


def when_prepared(configure: Callable[[GlobalBatchSampler, Any, columns.SampleLengths], None]) -> None:
    """Register `configure(sampler, loader, lengths)`, called for the prepared data loader before it is iterated.

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
    """Return the GlobalBatchSampler of a prepared loader, below any wrapper that skips the first batches."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    while batch_sampler is not None:
        sampler = getattr(batch_sampler, "sampler", None)
        if isinstance(sampler, GlobalBatchSampler):
            return sampler
        batch_sampler = getattr(batch_sampler, "batch_sampler", None)
    return None


def _build_sampler(accelerator: Any, loader: Any) -> tuple[GlobalBatchSampler, columns.SampleLengths]:
    lengths = columns.read_lengths(loader.dataset)
    padded = "Flattening" not in type(loader.collate_fn).__name__
    layout = BatchLayout(
        ranks=accelerator.num_processes,
        rank=accelerator.process_index,
        per_device=loader.batch_sampler.batch_size,
        accumulation=accelerator.gradient_accumulation_steps,
        padded=padded,
    )
    batches = GlobalBatchSampler(loader.get_sampler(), layout, lengths.padded() if padded else lengths.tokens())
    batches.has_pairs = len(lengths.halves) == len(columns.PAIRS)
    return batches, lengths
