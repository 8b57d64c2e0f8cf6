"""Averages the loss of an optimizer step over all its tokens, instead of upstream's mean of micro-batch means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import accelerator, columns, sampling
from ..global_batches import GlobalBatchSampler
from .balanced_batches import refuse_sequence_parallel
from .patch import PatchContext, PatchError, PatchInfo

_ID = "token_weighting"
_WEIGHT_KEY = "launch_weight"  # key in the batch, from the collator to the model


class WeightingCollator:
    """Wraps the trainer's collator and adds the weight of the batch's mean loss to its batch."""

    def __init__(self, collator: Any, batches: GlobalBatchSampler) -> None:
        self.data_collator, self._batches = collator, batches

    def __call__(self, features: Sequence[Any]) -> Any:
        """Collate a micro batch. Raises PatchError if its samples are not those whose tokens were counted."""
        import torch

        if not self._batches.pending:
            raise PatchError(_ID, "unexpected micro batch: it was not dealt, so its weight is unknown")
        micro = self._batches.pending.popleft()
        lengths = tuple(len(sample["input_ids"]) for sample in features)
        if lengths != micro.lengths:
            raise PatchError(_ID, f"a micro batch has samples of {lengths} tokens, but {micro.lengths} were dealt")
        batch = self.data_collator(features)
        batch[_WEIGHT_KEY] = torch.tensor(micro.weight, dtype=torch.float32)
        return batch


class LossWeighter:
    """Removes the weight from the model's arguments and multiplies the model's loss by it."""

    def __init__(self) -> None:
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
            raise PatchError(_ID, f"{type(model).__name__} returned no loss to weight")
        import torch

        weight, loss = self._weight.to(output.loss.device), output.loss
        # the mean over no tokens is NaN, and NaN * 0 is NaN too
        output.loss = torch.where(weight == 0, loss.nan_to_num(), loss) * weight
        model.weighs_tokens_for_launch = True  # checked by the evidence
        return output


def _weight_tokens(context: PatchContext) -> None:
    refuse_sequence_parallel(_ID, context)
    if context.trainer.flag("load_balancing_loss") == "true":
        raise PatchError(_ID, "--load_balancing_loss adds a loss that is not a mean over tokens; remove one of the two")

    def configure(batches: GlobalBatchSampler, loader: Any, lengths: columns.SampleLengths) -> None:
        if lengths.loss_tokens is None or loader.num_workers:
            raise PatchError(_ID, "needs the dataset's labels, and a data loader without worker processes")
        batches.loss_tokens = lengths.loss_tokens
        loader.base_dataloader.collate_fn = WeightingCollator(loader.collate_fn, batches)

    sampling.when_prepared(configure)
    accelerator.when_prepared(LossWeighter().follow)


PATCH = PatchInfo(
    id=_ID,
    reason="finetune.py averages the means of micro batches of different sizes; this weights every token equally",
    wanted=lambda facts: facts.token_weighting,
    condition="recipe.loss_averaging is tokens",
    lines={
        "open_instruct/finetune.py": {
            (663, 664): "train_dataloader = DataLoader( train_dataset, shuffle=True, collate_fn=collate_fn,",
            822: "outputs = model(**batch, use_cache=False)",
            824: "loss = outputs.loss",
            844: "total_loss += loss.detach().float()",
            845: "accelerator.backward(loss)",
        },
        "datasets/arrow_dataset.py": {725: "self._indices: Optional[Table] = "},
        "accelerate/accelerator.py": {2851: "loss = loss / self.gradient_accumulation_steps"},
        "transformers/loss/loss_utils.py": {41: 'reduction = "sum" if num_items_in_batch is not None else "mean"'},
    },
    apply=_weight_tokens,
)
