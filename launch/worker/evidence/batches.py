"""Checks the model's actual inputs: rows or documents, the samples of a step, how they are dealt
and averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..global_batches import find_sampler
from ..wording import count_of
from . import Evidence
from .trainer_objects import TrainerObjects

_ROWS = 2  # rows that `first_rows` returns at most
_ROW_TOKENS = 512  # tokens of each of these rows at most
# The inputs of a forward pass that describe its tokens.
_TOKEN_INPUTS = ("input_ids", "attention_mask", "position_ids")

# Values of the evidence "loss_averaging".
TOKENS = "tokens"
SUM = "sum"
MICRO_BATCH_MEANS = "micro_batch_means"
# Values of the evidence "packing".
NONE = "none"
FLATTEN = "flatten"
BINS = "bins"
WRAPPED = "wrapped"


@dataclass(frozen=True)
class ForwardInputs:
    """The inputs of one forward pass."""

    names: frozenset[str]  # the names of the arguments that are not None
    rows: int
    tokens: int  # padding included
    padding: int | None  # tokens; None if unknown
    documents: int | None  # None if the model does not get their boundaries

    def __str__(self) -> str:
        tokens_per_row = self.tokens // max(1, self.rows)
        shape = f"{count_of(self.rows, 'row')} of {tokens_per_row} tokens"
        if self.documents is not None and self.documents > self.rows:
            return f"{shape} with {self.documents} documents"
        if self.padding is None:
            return shape
        return f"{shape}, {self.padding / max(1, self.tokens):.0%} padding"


def describe_inputs(inputs: Mapping[str, Any]) -> ForwardInputs | None:
    """Describe the inputs of a forward pass, by name; None is returned without `input_ids`."""
    ids = inputs.get("input_ids")
    if ids is None:
        return None
    names = frozenset(name for name, value in inputs.items() if value is not None)
    rows = int(ids.shape[0])
    tokens = int(ids.numel())
    return ForwardInputs(names, rows, tokens, _count_padding(inputs), _count_documents(inputs))


def _count_padding(inputs: Mapping[str, Any]) -> int | None:
    """Return the padding tokens, by the mask; rows of positions have none."""
    mask = inputs.get("attention_mask")
    if mask is not None and mask.dim() == 2:
        return int(mask.numel() - mask.sum())
    has_positions = inputs.get("position_ids") is not None
    return 0 if has_positions or mask is not None else None


def _count_documents(inputs: Mapping[str, Any]) -> int | None:
    """Return the documents whose boundaries the model gets.

    OLMo-core's Transformer gets their lengths, filled up with 0 (olmo_core/nn/transformer/model.py,
    `forward`). Those of transformers get position ids, which start at 0 in each document.
    """
    lengths = inputs.get("doc_lens")
    if lengths is not None:
        return int((lengths > 0).sum())
    positions = inputs.get("position_ids")
    if positions is None:
        return None
    starts = positions == 0
    mask = inputs.get("attention_mask")
    if mask is not None and mask.shape == positions.shape:
        starts &= mask.bool()  # the padding before a row has positions too, but is not a document
    return int(starts.sum())


def first_rows(inputs: Mapping[str, Any]) -> list[list[int]]:
    """Return the tokens of the first rows, without padding; `launch merge` compares models on
    them.
    """
    ids = inputs.get("input_ids")
    mask = inputs.get("attention_mask")
    if ids is None:
        return []
    rows = [ids[number] for number in range(min(_ROWS, ids.shape[0]))]
    if mask is not None and mask.dim() == 2:
        rows = [row[mask[number].bool()] for number, row in enumerate(rows)]
    return [row[:_ROW_TOKENS].tolist() for row in rows]


def split_documents(inputs: Mapping[str, Any] | None) -> list[list[int]]:
    """Return the tokens of each row of a pass, without padding; those of each document where rows
    have several, by their positions.
    """
    if inputs is None:
        return []
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask")
    positions = inputs.get("position_ids")
    if mask is not None and mask.dim() == 2:
        return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
    if positions is None or positions.shape != ids.shape:
        return [row.tolist() for row in ids]
    tokens = ids.reshape(-1).tolist()
    starts = (positions.reshape(-1) == 0).nonzero().reshape(-1).tolist()
    borders = [*starts, len(tokens)]
    return [tokens[start:end] for start, end in pairwise(borders)]


class PassRecorder:
    """Records the inputs of a model's forward passes, until `stop`.

    `on_first` is called with the inputs of the first pass of all, by name.
    """

    def __init__(self, on_first: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        # The first pass of all, which may be a reference model's or one that samples.
        self.first: ForwardInputs | None = None
        # The first pass with gradients, which is that of a batch that is trained on.
        self.first_trained: ForwardInputs | None = None
        # The tensors of the first pass with gradients, until they are taken.
        self.first_training: Mapping[str, Any] | None = None
        self._on_first = on_first
        self._training_passes: list[ForwardInputs] = []
        self._hooks: list[Any] = []  # torch's handles
        self._has_first = False
        self._has_trained = False

    def follow(self, model: Any) -> None:
        """Record the passes of `model` from now on."""
        self._hooks.append(model.register_forward_pre_hook(self._record, with_kwargs=True))

    def stop(self) -> None:
        """Record no more passes."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def take_first_documents(self) -> list[list[int]]:
        """Return the documents of the first pass with gradients, and release its tensors."""
        documents = split_documents(self.first_training)
        self.first_training = None
        return documents

    def take_training_passes(self) -> list[ForwardInputs]:
        """Return the passes with gradients since the last call, which are those of a step."""
        passes = self._training_passes
        self._training_passes = []
        return passes

    def _record(self, model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        import torch

        is_first = not self._has_first
        # Passes without gradients are a reference model's, or sample completions.
        is_training = torch.is_grad_enabled()
        if not is_first and not is_training:
            return
        positional = {"input_ids": arguments[0]} if arguments else {}
        inputs = {**positional, **named}
        described = describe_inputs(inputs)
        if is_first:
            self._has_first = True
            self.first = described
            if self._on_first is not None:
                self._on_first(inputs)
        if is_training and described is not None:
            if not self._has_trained:
                self._has_trained = True
                self.first_trained = described
                self.first_training = {name: inputs.get(name) for name in _TOKEN_INPUTS}
            self._training_passes.append(described)


def check_packing(objects: TrainerObjects, first: ForwardInputs | None) -> Evidence:
    """Return the evidence "packing": the collator in use and, if recorded, the shape of the first
    micro batch.
    """
    if objects.dataloader is None:
        return Evidence("packing", None, "no dataloader was prepared")
    collator = getattr(objects.dataloader, "collate_fn", None)
    # transformers wraps the collator to drop columns.
    collator = getattr(collator, "data_collator", collator)
    packing = _find_packing(objects, collator)
    how = f"collator {_collator_name(collator)}"
    # The trainer may change what the collator returns, so the model's inputs decide.
    if packing in (FLATTEN, BINS) and first is not None and "position_ids" not in first.names:
        how = f"{how}, but the model gets no position ids"
        return Evidence("packing", NONE, how, note=str(first))
    return Evidence("packing", packing, how, note=describe_first(first))


def describe_first(first: ForwardInputs | None) -> str | None:
    """Return the note of the evidence "packing"; None if no pass was recorded."""
    return None if first is None else f"first micro batch: {first}"


def count_samples(
    passes: Sequence[ForwardInputs],
    packing: str | None,
    ranks: int,
    requested: str,
    *,
    resumed: bool = False,
) -> Evidence:
    """Return the evidence "global_batch": the samples of one optimizer step, from its forward
    passes on this rank.

    `requested` is "16 samples", or "16 pairs", both halves of which go through the model. A resumed
    run may begin with the last step of an epoch, which takes what is left: fewer samples than
    requested then get no verdict.
    """
    if packing not in (NONE, FLATTEN):
        how = "rows that are packed to a token budget are not samples"
        return Evidence("global_batch", None, how).compare(requested)
    if not passes:
        return Evidence("global_batch", None, "no forward pass was seen").compare(requested)
    if packing == FLATTEN:
        sequences = sum(inputs.documents or 0 for inputs in passes)
    else:
        sequences = sum(inputs.rows for inputs in passes)
    number, _, unit = requested.partition(" ")
    unit = unit.removesuffix("s")
    sequences_of_sample = 2 if unit == "pair" else 1
    samples = sequences * ranks // sequences_of_sample
    forward_passes = count_of(len(passes), "forward pass")
    how = f"{forward_passes} of a rank in an optimizer step, {count_of(ranks, 'rank')}"
    evidence = Evidence("global_batch", count_of(samples, unit), how)
    if resumed and samples < int(number):
        return evidence
    return evidence.judge(requested, samples == int(number))


def check_epoch(objects: TrainerObjects, packing: str | None) -> list[Evidence]:
    """Return the evidence "global_batch" where an epoch has fewer samples than one optimizer step
    is to have.

    The steps are then smaller than requested, and no trainer reports it. Rows of a token budget are
    not samples.
    """
    dataset = getattr(objects.dataloader, "dataset", None)
    is_streamed = dataset is not None and not hasattr(dataset, "__len__")
    if packing not in (NONE, FLATTEN) or is_streamed:
        return []
    if hasattr(objects.trainer, "num_generations"):
        # In GRPO's loader a sample is a whole generation's share, and a prompt comes several times.
        return []
    arguments = getattr(objects.trainer, "args", None)
    accumulation = getattr(arguments or objects.accelerator, "gradient_accumulation_steps", None)
    # Samples of a pass over all ranks.
    per_pass = getattr(objects.dataloader, "total_batch_size", None)
    samples = getattr(objects.dataloader, "total_dataset_length", None)
    if not isinstance(accumulation, int) or not isinstance(per_pass, int):
        return []
    requested = accumulation * per_pass
    if not isinstance(samples, int) or samples >= requested:
        return []
    how = "total_dataset_length of the data loader"
    evidence = Evidence("global_batch", f"{count_of(samples, 'sample')} in an epoch", how)
    return [evidence.judge(str(requested), False)]


def _collator_name(collator: Any) -> str:
    return getattr(collator, "__qualname__", None) or type(collator).__name__


def _find_packing(objects: TrainerObjects, collator: Any) -> str:
    dataset = getattr(objects.dataloader, "dataset", None)
    columns = getattr(dataset, "column_names", None) or ()
    arguments = getattr(objects.trainer, "args", None)
    is_padding_free = getattr(collator, "padding_free", False)
    if getattr(arguments, "packing", False):
        # TRL's data set marks where documents end, unless it was cut into equal pieces
        # (trl/data_utils.py).
        return BINS if "seq_lengths" in columns and is_padding_free else WRAPPED
    is_flattening = "Flattening" in type(collator).__name__ or is_padding_free
    return FLATTEN if is_flattening else NONE


def check_balanced(objects: TrainerObjects, first: ForwardInputs | None) -> Evidence:
    """Return the evidence "balanced": whether a global batch is distributed by length."""
    sampler = find_sampler(objects.dataloader)
    if sampler is None or not sampler.balanced:
        return Evidence("balanced", "false", "the sampler of the data loader")
    if first is None or sampler.first_batch is None:
        return Evidence("balanced", None, "the first micro batch was not seen")
    dealt = sampler.tokens_of(sampler.first_batch)
    is_padded_pairs = sampler.has_pairs and sampler.layout.padded
    if is_padded_pairs and first.rows == len(sampler.first_batch.lengths):
        # The pass has the chosen halves alone: concatenated_forward=false (dpo_utils.py:323).
        dealt //= 2
    is_dealt = first.tokens == dealt
    how = f"the first micro batch of this rank has the {dealt} tokens that were dealt to it"
    if not is_dealt:
        how = (
            f"{dealt} tokens were dealt to the first micro batch of this rank, and the model "
            f"got {first.tokens}"
        )
    return Evidence("balanced", str(is_dealt).lower(), how)


def check_averaging(objects: TrainerObjects) -> Evidence:
    """Return the evidence "loss_averaging": how the loss of a global batch weights its tokens."""
    averaging = MICRO_BATCH_MEANS
    if objects.trainer is not None:
        if getattr(objects.trainer, "model_accepts_loss_kwargs", False):
            averaging = TOKENS
        how = (
            "Trainer.model_accepts_loss_kwargs: whether the model gets the token count of the "
            "whole step"
        )
        return Evidence("loss_averaging", averaging, how)
    for module in objects.wrapped.modules():
        applied = getattr(module, "loss_averaging_for_launch", None)
        if applied is not None:
            averaging = applied
            break
    how = "whether launch's patch weighted the loss of the first micro batch"
    return Evidence("loss_averaging", averaging, how)
