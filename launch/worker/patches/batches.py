"""Patches for the samples of a global batch: their order by length, their weight by tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from .. import global_batches, hooks
from ..channel import EventWriter
from ..columns import SampleLengths
from ..evidence.batches import SUM, TOKENS
from ..global_batches import GlobalBatchSampler, StepLoad
from ..wording import count_of
from .patch import PatchContext, PatchError, PatchInfo, UpstreamLines
from .shared import StepListener, listen

_BALANCED = "balanced_batches"
_MAX_PENDING = 1000  # steps that wait to be logged; bounds the memory for a trainer that logs none


class BalanceReport:
    """Reports the effect of balancing by length, each time the number of logged steps has doubled."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._pending: deque[StepLoad] = deque(maxlen=_MAX_PENDING)
        self._logged: list[StepLoad] = []

    def follow(self, batches: GlobalBatchSampler) -> None:
        """Follow a sampler.

        Steps that are not logged by the end of an epoch belong to a reference pass, and do not
        count.
        """
        batches.on_epoch = self._pending.clear
        batches.on_step = self._pending.append

    def add_logged(self, local: Mapping[str, Any]) -> None:
        """Add the means over the steps since the last logged one to the trainer's metrics."""
        count = min(len(self._pending), local["args"].logging_steps)
        if count == 0:
            return
        steps = [self._pending.popleft() for _ in range(count)]
        balanced, upstream = _mean_imbalances(steps)
        metrics = local["metrics_to_log"]
        metrics["imbalance"] = round(balanced, 4)
        metrics["imbalance_upstream"] = round(upstream, 4)
        before = len(self._logged)
        self._logged += steps
        if len(self._logged).bit_length() > before.bit_length():
            self._report()

    def _report(self) -> None:
        balanced, upstream = _mean_imbalances(self._logged)
        largest = max(step.balanced.largest for step in self._logged)
        upstream_largest = max(step.upstream.largest for step in self._logged)
        steps = count_of(len(self._logged), "step")
        value = f"{balanced:.3f}, upstream's order {upstream:.3f}"
        note = f"largest micro batch {largest}, upstream's order {upstream_largest} tokens; {steps}"
        how = (
            "tokens per rank and accumulation step: the largest, with padding, over the mean "
            "without padding"
        )
        self._events.emit("evidence", what="balance", value=value, how=how, note=note)


def _mean_imbalances(steps: Sequence[StepLoad]) -> tuple[float, float]:
    """Return the mean imbalance of the steps as assigned, and in upstream's order."""
    balanced = sum(step.balanced.imbalance for step in steps) / len(steps)
    upstream = sum(step.upstream.imbalance for step in steps) / len(steps)
    return balanced, upstream


def _balance_batches(context: PatchContext) -> None:
    refuse_sequence_parallel(_BALANCED, context)
    balance = BalanceReport(context.events)

    def configure(batches: GlobalBatchSampler, loader: Any, lengths: SampleLengths) -> None:
        batches.balanced = True
        if context.events.rank == 0:
            balance.follow(batches)

    global_batches.when_loader_prepared(configure)
    if context.events.rank == 0:
        listen(StepListener(_BALANCED, context.events, balance.add_logged))


def refuse_sequence_parallel(patch: str, context: PatchContext) -> None:
    """Raise PatchError for sequence parallelism.

    Its ranks share samples, which balancing by length does not support.
    """
    if int(context.trainer.flag("sequence_parallel_size") or 1) > 1:
        raise PatchError(
            patch, "--sequence_parallel_size makes ranks share samples; remove one of the two"
        )


BALANCED = PatchInfo(
    id=_BALANCED,
    reason="reorders the samples of each global batch by length across the ranks, which would wait "
    "for the longest micro batch",
    lines={
        "open_instruct/finetune.py": {
            (
                663,
                664,
            ): "train_dataloader = DataLoader( train_dataset, shuffle=True, collate_fn=collate_fn,",
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
        "accelerate/accelerator.py": {
            4344: "return skip_first_batches(dataloader, num_batches=num_batches)"
        },
    },
    apply=_balance_batches,
)


# The ids of two patches.
_WEIGHTING = "token_weighting"
_SUMS = "token_sums"
# The key under which the collator passes the weight and the gradient's scale to the model.
_WEIGHT_KEY = "launch_weight"


class WeightingCollator:
    """Wraps the trainer's collator, and adds the weight of the batch's mean loss to the batch.

    With `sums` the gradient is that of the sum over the tokens, as MicroBatch.scale has it.
    """

    def __init__(self, collator: Any, batches: GlobalBatchSampler, *, sums: bool = False) -> None:
        self.data_collator = collator
        self._batches = batches
        self._sums = sums

    def __call__(self, features: Sequence[Any]) -> Any:
        """Collate a micro batch.

        Raises PatchError if its samples are not those whose tokens were counted.
        """
        import torch

        if not self._batches.pending:
            raise PatchError(
                _WEIGHTING,
                "unexpected micro batch: it was not assigned to this rank, so its weight is unknown",
            )
        micro = self._batches.pending.popleft()
        lengths = tuple(len(sample["input_ids"]) for sample in features)
        if lengths != micro.lengths:
            raise PatchError(
                _WEIGHTING,
                f"a micro batch has samples of {lengths} tokens, but {micro.lengths} were assigned",
            )
        batch = self.data_collator(features)
        scale = micro.scale if self._sums else 1.0
        batch[_WEIGHT_KEY] = torch.tensor([micro.weight, scale], dtype=torch.float32)
        return batch


class LossWeighter:
    """Removes the weight from the model's arguments, multiplies the loss by it and scales its
    gradient.

    `averaging` is what the loss of an optimizer step then is: a value of the evidence
    "loss_averaging".
    """

    def __init__(self, averaging: str) -> None:
        self._averaging = averaging
        self._weight: Any = None

    def follow(self, model: Any) -> None:
        model.register_forward_pre_hook(self._pop_weight, with_kwargs=True)
        model.register_forward_hook(self._apply_weight)

    def _pop_weight(self, model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._weight = named.pop(_WEIGHT_KEY, None)
        return arguments, named

    def _apply_weight(self, model: Any, arguments: tuple[Any, ...], output: Any) -> Any:
        if self._weight is None:
            return output
        if getattr(output, "loss", None) is None:
            raise PatchError(_WEIGHTING, f"{type(model).__name__} returned no loss to weight")
        import torch

        weight, scale = self._weight.to(output.loss.device)
        loss = output.loss
        # The mean over no tokens is NaN, and NaN * 0 is NaN too.
        weighted = torch.where(weight == 0, loss.nan_to_num(), loss) * weight
        scaled = weighted * scale
        # The logged value is the mean over the tokens, whatever the gradient is scaled by.
        output.loss = weighted.detach() + (scaled - scaled.detach())
        model.loss_averaging_for_launch = self._averaging  # checked by the evidence
        return output


def _weight_tokens(patch: str, context: PatchContext) -> None:
    """Weight the tokens of a global batch equally.

    The patch token_sums also makes the gradient that of their sum.
    """
    refuse_sequence_parallel(patch, context)
    if context.trainer.flag("load_balancing_loss") == "true":
        raise PatchError(
            patch,
            "--load_balancing_loss adds a loss that is not a mean over tokens; remove one of the "
            "two",
        )
    sums = patch == _SUMS

    def configure(batches: GlobalBatchSampler, loader: Any, lengths: SampleLengths) -> None:
        if lengths.loss_tokens is None or loader.num_workers:
            raise PatchError(
                patch, "needs the dataset's labels, and a data loader without worker processes"
            )
        batches.loss_tokens = lengths.loss_tokens
        loader.base_dataloader.collate_fn = WeightingCollator(loader.collate_fn, batches, sums=sums)

    global_batches.when_loader_prepared(configure)
    hooks.when_prepared(LossWeighter(SUM if sums else TOKENS).follow)


_WEIGHTED_LINES: UpstreamLines = {
    "open_instruct/finetune.py": {
        (
            663,
            664,
        ): "train_dataloader = DataLoader( train_dataset, shuffle=True, collate_fn=collate_fn,",
        822: "outputs = model(**batch, use_cache=False)",
        824: "loss = outputs.loss",
        844: "total_loss += loss.detach().float()",
        845: "accelerator.backward(loss)",
    },
    "datasets/arrow_dataset.py": {725: "self._indices: Optional[Table] = "},
    "accelerate/accelerator.py": {2851: "loss = loss / self.gradient_accumulation_steps"},
    "transformers/loss/loss_utils.py": {
        41: 'reduction = "sum" if num_items_in_batch is not None else "mean"'
    },
}
TOKEN_WEIGHTING = PatchInfo(
    id=_WEIGHTING,
    reason="weights every token of a global batch equally in finetune.py's loss, which averages the "
    "means of micro batches of different sizes",
    lines=_WEIGHTED_LINES,
    apply=partial(_weight_tokens, _WEIGHTING),
)
TOKEN_SUMS = PatchInfo(
    id=_SUMS,
    reason="makes finetune.py's gradient that of the loss summed over tokens before clipping, as "
    "Tulu 3 trained; upstream removed this in #1024",
    lines=_WEIGHTED_LINES,
    apply=partial(_weight_tokens, _SUMS),
)
