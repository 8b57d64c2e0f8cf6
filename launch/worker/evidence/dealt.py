"""Counts the sequences, the tokens and the tokens that carry loss in the forward passes of a
trainer's first whole epoch, on all ranks together.

The counts stay on the device until the epoch ends, so that no step waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .. import columns
from ..length_balancing import fill_epoch
from ..wording import count_of
from .batches import BINS, FLATTEN, NONE
from .trainer_objects import TrainerObjects


@dataclass(frozen=True)
class EpochCounts:
    """The counts of one epoch; a field is None where the count is not known."""

    sequences: int | None  # both halves of a pair count
    tokens: int | None  # tokens without padding
    trained: int | None  # tokens that carry loss, without the first of each sequence

    def __str__(self) -> str:
        parts = [count_of(self.sequences or 0, "sequence")]
        if self.tokens is not None:
            parts.append(f"{self.tokens} tokens")
        if self.trained is not None:
            parts.append(f"{self.trained} of them trained")
        return ", ".join(parts)


@dataclass(frozen=True)
class DueCounts:
    """What an epoch must have dealt: as much as its rows, and those that several ranks deal twice to
    fill their last batches. Which these are is not known, so a count has a range.
    """

    least: EpochCounts
    most: EpochCounts

    def differences(self, found: EpochCounts) -> list[str]:
        """Return the counts that are out of their range, each with both numbers."""
        nouns = ("sequences", "tokens", "trained tokens")
        faults = []
        for field, noun in zip(fields(found), nouns, strict=True):
            count = getattr(found, field.name)
            least = getattr(self.least, field.name)
            most = getattr(self.most, field.name)
            if count is None or least is None or least <= count <= most:
                continue
            due = str(least) if least == most else f"{least} to {most}"
            faults.append(f"{count} of {due} {noun} dealt in an epoch")
        return faults


def expect_epoch(
    objects: TrainerObjects, packing: str | None, script: str | None
) -> DueCounts | None:
    """Return the counts that an epoch of the data loader must have, by its rows; None where nothing
    is known.

    Tokens are not known for reward_modeling.py, which takes every pad token for padding, even where
    a model ends its texts with that token, nor of flat rows that are padded. Nothing is known of
    rows that are cut into equal pieces, nor of GRPO, whose passes have generated tokens.
    """
    dataset: Any = getattr(objects.dataloader, "dataset", None)
    arguments = objects.arguments if objects.trainer is None else objects.trainer.args
    is_generated = hasattr(objects.trainer, "num_generations")
    if is_generated or packing not in (NONE, FLATTEN, BINS) or not hasattr(dataset, "__len__"):
        return None
    if arguments is None or _drops_last(objects.dataloader):
        return None
    ranks = int(objects.accelerator.num_processes)
    size = int(arguments.per_device_train_batch_size)
    dealt = len(fill_epoch(range(len(dataset)), ranks, size))
    counts = _counts_of_rows(dataset, packing, script)
    ranges = [_range_of(numbers, dealt) for numbers in counts]
    if packing in (FLATTEN, BINS) and _pads(objects.dataloader):
        ranges[:2] = [(None, None)] * 2
    return DueCounts(
        EpochCounts(*(least for least, _ in ranges)), EpochCounts(*(most for _, most in ranges))
    )


_Counts = Sequence[int] | None


def _counts_of_rows(
    dataset: Any, packing: str | None, script: str | None
) -> tuple[_Counts, _Counts, _Counts]:
    """Return the sequences, the tokens and the trained tokens of each row, None for unknown ones."""
    if packing == BINS:
        packed = columns.read_packed(dataset)
        return packed.documents, packed.tokens, packed.trained
    names = set(getattr(dataset, "column_names", ()))
    is_pairs = any(name.startswith("chosen") for name in names)
    sequences = [2 if is_pairs else 1] * len(dataset)
    if script == "reward_modeling.py":
        return sequences, None, None
    try:
        lengths = columns.read_lengths(dataset)
    except ValueError:  # TRL's pairs are cut by its collator
        return sequences, None, None
    return sequences, lengths.tokens(), lengths.loss_tokens


def _pads(loader: Any) -> bool:
    """Return whether the collator pads flat rows; transformers wraps it to drop columns."""
    collator = getattr(loader, "collate_fn", None)
    collator = getattr(collator, "data_collator", collator)
    return bool(getattr(collator, "pad_to_multiple_of", None))


def _range_of(counts: Sequence[int] | None, dealt: int) -> tuple[int | None, int | None]:
    """Return the least and the most that `dealt` rows have if each of the rows is among them equally
    often, and some once more.
    """
    if not counts:
        return None, None
    rounds, more = divmod(dealt, len(counts))
    ordered = sorted(counts)
    total = rounds * sum(counts)
    return total + sum(ordered[:more]), total + sum(ordered[len(ordered) - more :])


def _drops_last(loader: Any) -> bool:
    batches = getattr(loader, "batch_sampler", None)
    return bool(getattr(loader, "drop_last", False) or getattr(batches, "drop_last", False))


class EpochRecorder:
    """Adds up the passes with gradients of one model, until `stop`."""

    def __init__(self) -> None:
        self._hook: Any = None  # torch's handle
        self.reset()

    def reset(self) -> None:
        """Forget the passes so far."""
        self._rows = 0
        self._documents: Any = None  # tensors on the device, None before the first pass
        self._tokens: Any = None
        self._trained: Any = None
        self._has_labels = True
        self._has_padding = False  # whether a pass may have padding that no mask marks

    def follow(self, model: Any) -> None:
        """Count the passes of `model` from now on."""
        self.stop()
        self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def stop(self) -> None:
        """Count no more passes."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    @property
    def is_counting(self) -> bool:
        return self._hook is not None

    def read(self, packing: str | None) -> EpochCounts:
        """Return the counts; this waits for the device."""
        if self._tokens is None:
            return EpochCounts(0, 0, None)
        is_flat = packing in (FLATTEN, BINS)
        sequences = int(self._documents) if is_flat else self._rows
        tokens = None if self._has_padding else int(self._tokens)
        trained = int(self._trained) if self._has_labels else None
        return EpochCounts(sequences, tokens, trained)

    def read_all(self, packing: str | None, accelerator: Any) -> EpochCounts:
        """Return the counts of all ranks together. Collective: every rank must call it at the same
        step.
        """
        import torch

        found = self.read(packing)
        if not torch.distributed.is_initialized():
            return found
        counts = [getattr(found, field.name) for field in fields(found)]
        unknown = [int(count is None) for count in counts]
        total = torch.tensor(
            [*(count or 0 for count in counts), *unknown], device=accelerator.device
        )
        torch.distributed.all_reduce(total)
        sums = total.tolist()
        known = [
            None if missing else count for count, missing in zip(sums[:3], sums[3:], strict=True)
        ]
        return EpochCounts(*known)

    def _count(self, model: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        import torch

        ids = named.get("input_ids", arguments[0] if arguments else None)
        if ids is None or not torch.is_grad_enabled():
            return
        mask: Any = named.get("attention_mask")
        positions = named.get("position_ids")
        labels = named.get("labels")
        is_plain = mask is not None and mask.dim() == 2
        self._has_padding |= not is_plain and positions is None
        self._rows += int(ids.shape[0])
        tokens = mask.sum() if is_plain else torch.tensor(ids.numel(), device=ids.device)
        documents = tokens.new_zeros(()) if positions is None else (positions == 0).sum()
        self._tokens = _accumulate(self._tokens, tokens)
        self._documents = _accumulate(self._documents, documents)
        if labels is None or labels.shape != ids.shape:
            self._has_labels = False
            return
        carries = labels != columns.MASKED
        # Nothing predicts the first token of a document.
        carries = carries[:, 1:] if positions is None else carries & (positions != 0)
        self._trained = _accumulate(self._trained, carries.sum())


def _accumulate(total: Any, count: Any) -> Any:
    return count if total is None else total + count
