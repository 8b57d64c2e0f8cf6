"""Deals the samples of each global batch to ranks and accumulation steps by length, so that ranks wait less."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from .. import columns, sampling
from ..channel import EventWriter
from ..global_batches import GlobalBatchSampler, StepLoad
from .logged_step import StepListener
from .patch import PatchContext, PatchError, PatchInfo

_ID = "balanced_batches"
_MAX_PENDING = 1000  # steps that wait to be logged; bounds the memory for a trainer that logs none


class BalanceReport:
    """Reports the effect of the dealing over the logged steps, each time their number has doubled."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._steps: deque[StepLoad] = deque(maxlen=_MAX_PENDING)
        self._count = 0
        self._dealt_sum = self._upstream_sum = 0.0
        self._largest = self._upstream_largest = 0

    def follow(self, batches: GlobalBatchSampler) -> None:
        """Follow a sampler. Steps not logged by the end of an epoch, such as in a reference pass, do not count."""
        batches.on_epoch, batches.on_step = self._steps.clear, self._steps.append

    def _report(self) -> None:
        value = f"{self._dealt_sum / self._count:.3f}, upstream's order {self._upstream_sum / self._count:.3f}"
        steps = "1 step" if self._count == 1 else f"{self._count} steps"
        note = f"largest micro batch {self._largest}, upstream's order {self._upstream_largest} tokens; {steps}"
        how = "tokens per rank and accumulation step: the largest, with padding, over the mean without padding"
        self._events.emit("evidence", what="balance", value=value, how=how, note=note)

    def add_logged(self, local: Mapping[str, Any]) -> None:
        """Add the means over the steps since the last logged one to the trainer's metrics."""
        steps = [self._steps.popleft() for _ in range(min(len(self._steps), local["args"].logging_steps))]
        if not steps:
            return
        dealt, upstream = sum(step.dealt.imbalance for step in steps), sum(step.upstream.imbalance for step in steps)
        means = {"imbalance": dealt / len(steps), "imbalance_upstream": upstream / len(steps)}
        local["metrics_to_log"].update({name: round(mean, 4) for name, mean in means.items()})
        doubled = (self._count + len(steps)).bit_length() > self._count.bit_length()
        self._count += len(steps)
        self._dealt_sum += dealt
        self._upstream_sum += upstream
        self._largest = max(self._largest, *(step.dealt.largest for step in steps))
        self._upstream_largest = max(self._upstream_largest, *(step.upstream.largest for step in steps))
        if doubled:
            self._report()


def _balance_batches(context: PatchContext) -> None:
    refuse_sequence_parallel(_ID, context)
    balance = BalanceReport(context.events)

    def configure(batches: GlobalBatchSampler, loader: Any, lengths: columns.SampleLengths) -> None:
        batches.balanced = True
        if context.events.rank == 0:
            balance.follow(batches)

    sampling.when_prepared(configure)
    if context.events.rank == 0:
        logging.getLogger("__main__").addHandler(StepListener(_ID, context.events, balance.add_logged))


def refuse_sequence_parallel(patch: str, context: PatchContext) -> None:
    """Raise PatchError for sequence parallelism: its ranks share samples, which the dealing does not support."""
    if int(context.trainer.flag("sequence_parallel_size") or 1) > 1:
        raise PatchError(patch, "--sequence_parallel_size makes ranks share samples; remove one of the two")


PATCH = PatchInfo(
    id=_ID,
    reason="ranks wait for the longest micro batch; this balances the samples of a global batch across them by length",
    wanted=lambda facts: facts.balanced,
    condition="recipe.balanced is true",
    lines={
        "open_instruct/finetune.py": {
            (663, 664): "train_dataloader = DataLoader( train_dataset, shuffle=True, collate_fn=collate_fn,",
            377: "dataloader_config = DataLoaderConfiguration(use_seedable_sampler=True)",
        },
        "open_instruct/dpo_tune_cache.py": {
            413: "train_dataset, sampler=train_sampler, collate_fn=collate_fn,",
            580: "loss = losses.mean()",
        },
        "accelerate/data_loader.py": {
            226: "if idx % self.num_processes == self.process_index:",
            266: "batch += initial_data[cycle_index:end_index]",
            1326: "dataloader.set_sampler(sampler)",
        },
        "datasets/arrow_dataset.py": {725: "self._indices: Optional[Table] = "},
        "accelerate/accelerator.py": {4344: "return skip_first_batches(dataloader, num_batches=num_batches)"},
    },
    apply=_balance_batches,
)
