"""Counts the sequences, the tokens and the tokens that carry loss in the forward passes of a
trainer's first whole epoch.

The counts stay on the device until the epoch ends, so that no step waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .. import columns
from ..dealing import fill_epoch
from ..wording import count_of
from .batches import FLATTEN, NONE
from .trainer_objects import TrainerObjects


@dataclass(frozen=True)
class EpochCounts:
    """The counts of one epoch on this rank; a field is None where the count is not known."""

    sequences: int | None  # both halves of a pair count
    tokens: int | None  # tokens without padding
    trained: int | None  # tokens that carry loss, without the first of each sequence

    def differences(self, due: EpochCounts) -> list[str]:
        """Return the counts that differ from those that are `due`, each with both numbers."""
        nouns = ("sequences", "tokens", "trained tokens")
        found = []
        for field, noun in zip(fields(self), nouns, strict=True):
            count = getattr(self, field.name)
            expected = getattr(due, field.name)
            if count is not None and expected is not None and count != expected:
                found.append(f"{count} of {expected} {noun} dealt in an epoch")
        return found

    def __str__(self) -> str:
        parts = [count_of(self.sequences or 0, "sequence")]
        if self.tokens is not None:
            parts.append(f"{self.tokens} tokens")
        if self.trained is not None:
            parts.append(f"{self.trained} of them trained")
        return ", ".join(parts)


def expect_epoch(objects: TrainerObjects, packing: str | None, script: str | None) -> EpochCounts:
    """Return the counts that an epoch of the data loader must have on this rank, by its rows.

    Tokens are known only for a single rank, which gets every row, and not for reward_modeling.py,
    which takes every pad token for padding, even where a model ends its texts with that token.
    Nothing is known of rows that are packed to a token budget, because a pass does not show their
    sequences, nor of GRPO, whose passes have generated tokens.
    """
    nothing = EpochCounts(None, None, None)
    dataset: Any = getattr(objects.dataloader, "dataset", None)
    arguments = objects.arguments if objects.trainer is None else objects.trainer.args
    is_generated = hasattr(objects.trainer, "num_generations")
    if is_generated or packing not in (NONE, FLATTEN) or not hasattr(dataset, "__len__"):
        return nothing
    if arguments is None or _drops_last(objects.dataloader):
        return nothing
    ranks = int(objects.accelerator.num_processes)
    size = int(arguments.per_device_train_batch_size)
    names = set(getattr(dataset, "column_names", ()))
    is_pairs = any(name.startswith("chosen") for name in names)
    rows = len(fill_epoch(range(len(dataset)), ranks, size)) // ranks
    sequences = rows * (2 if is_pairs else 1)
    if ranks > 1 or script == "reward_modeling.py":
        return EpochCounts(sequences, None, None)
    try:
        lengths = columns.read_lengths(dataset)
    except ValueError:  # TRL's pairs are cut by its collator
        return EpochCounts(sequences, None, None)
    trained = None if lengths.loss_tokens is None else sum(lengths.loss_tokens)
    return EpochCounts(sequences, sum(lengths.tokens()), trained)


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
        sequences = int(self._documents) if packing == FLATTEN else self._rows
        tokens = None if self._has_padding else int(self._tokens)
        trained = int(self._trained) if self._has_labels else None
        return EpochCounts(sequences, tokens, trained)

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
