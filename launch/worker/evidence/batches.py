"""Checks the model's actual inputs: rows or documents, the samples of a step, how they are dealt
and averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..global_batches import find_sampler
from . import Evidence
from .trainer_objects import TrainerObjects

# the rows that `first_rows` returns, and how many tokens of each
_ROWS, _ROW_TOKENS = 2, 512

TOKENS, SUM, MICRO_BATCH_MEANS = "tokens", "sum", "micro_batch_means"
NONE, FLATTEN, BINS, WRAPPED = "none", "flatten", "bins", "wrapped"


@dataclass(frozen=True)
class ForwardInputs:
    """The inputs of one forward pass."""

    names: frozenset[str]  # of the arguments that are not None
    rows: int
    tokens: int  # padding included
    padding: int | None  # tokens; None if unknown
    # by their borders, or the position ids that start at 0; None if neither is passed
    documents: int | None

    def __str__(self) -> str:
        tokens_per_row = self.tokens // max(1, self.rows)
        shape = f"{self.rows} {_plural('row', self.rows)} of {tokens_per_row} tokens"
        if self.documents is not None and self.documents > self.rows:
            return f"{shape} with {self.documents} documents"
        if self.padding is None:
            return shape
        return f"{shape}, {self.padding / max(1, self.tokens):.0%} padding"


def describe_inputs(arguments: Mapping[str, Any]) -> ForwardInputs | None:
    """Describe the keyword arguments of a forward pass; None without `input_ids`."""
    ids = arguments.get("input_ids")
    if ids is None:
        return None
    mask = arguments.get("attention_mask")
    positions = arguments.get("position_ids")
    rows = int(ids.shape[0])
    padding = int(mask.numel() - mask.sum()) if mask is not None and mask.dim() == 2 else 0
    documents = int((positions == 0).sum()) if positions is not None else None
    given = frozenset(name for name, value in arguments.items() if value is not None)
    return ForwardInputs(given, rows, int(ids.numel()), padding, documents)


def first_rows(arguments: Mapping[str, Any]) -> list[list[int]]:
    """Return the tokens of the first rows, without padding; `launch merge` compares models on
    them.
    """
    ids = arguments.get("input_ids")
    mask = arguments.get("attention_mask")
    if ids is None:
        return []
    rows = [ids[number] for number in range(min(_ROWS, ids.shape[0]))]
    if mask is not None and mask.dim() == 2:
        rows = [row[mask[number].bool()] for number, row in enumerate(rows)]
    return [row[:_ROW_TOKENS].tolist() for row in rows]


def check_packing(objects: TrainerObjects, first: ForwardInputs | None) -> Evidence:
    """Return the finding "packing": the collator in use and, if recorded, the shape of the first
    micro batch.
    """
    if objects.dataloader is None:
        return Evidence("packing", None, "no dataloader was prepared")
    collator = getattr(objects.dataloader, "collate_fn", None)
    # transformers wraps the collator to drop columns
    collator = getattr(collator, "data_collator", collator)
    kind = _packing_kind(objects, collator)
    how = f"collator {_collator_name(collator)}"
    # the trainer may change what the collator returns, so the model's inputs decide
    if kind in (FLATTEN, BINS) and first is not None and "position_ids" not in first.names:
        return Evidence(
            "packing", NONE, f"{how}, but the model gets no position ids", note=str(first)
        )
    return Evidence(
        "packing", kind, how, note=None if first is None else f"first micro batch: {first}"
    )


def count_samples(
    passes: Sequence[ForwardInputs], kind: str | None, ranks: int, requested: str, *, resumed: bool
) -> Evidence:
    """Return the finding "global_batch": the samples of one optimizer step, from its forward passes
    on this rank.

    `requested`: "16 samples" or "16 pairs", both halves of which go through the model. A resumed
    run may begin with the last step of an epoch, which takes what is left: fewer samples are then
    no verdict.
    """
    if kind not in (NONE, FLATTEN):
        how = "rows that are packed to a token budget are not samples"
        return Evidence("global_batch", None, how).compare(requested)
    sequences = sum(
        (inputs.documents or 0) if kind == FLATTEN else inputs.rows for inputs in passes
    )
    return judge_samples(sequences, len(passes), ranks, requested, resumed=resumed)


def judge_samples(
    sequences: int, passes: int, ranks: int, requested: str, *, resumed: bool = False
) -> Evidence:
    """Return the finding "global_batch" for the `sequences` of a rank's forward passes in one
    optimizer step.
    """
    number, _, unit = requested.partition(" ")
    if not passes:
        return Evidence("global_batch", None, "no forward pass was seen").compare(requested)
    samples = sequences * ranks // (2 if unit == "pairs" else 1)
    how = (
        f"{passes} {_plural('forward pass', passes)} of a rank in an optimizer step, {ranks} "
        f"{_plural('rank', ranks)}"
    )
    finding = Evidence("global_batch", f"{samples} {unit}", how)
    if resumed and samples < int(number):
        return finding
    return finding.judge(requested, samples == int(number))


def check_global_batch(objects: TrainerObjects, kind: str | None) -> list[Evidence]:
    """Return the finding "global_batch" where an epoch has fewer samples than one optimizer step is
    to have.

    Its steps are then smaller than requested, and no trainer reports it. Rows of a token budget are
    not samples.
    """
    if kind not in (NONE, FLATTEN) or hasattr(objects.trainer, "num_generations"):
        # in GRPO's loader a sample is a whole generation's share, and a prompt comes several times
        return []
    arguments = getattr(objects.trainer, "args", None)
    accumulation = getattr(arguments or objects.accelerator, "gradient_accumulation_steps", None)
    per_pass = getattr(objects.dataloader, "total_batch_size", None)  # of all ranks
    samples = getattr(objects.dataloader, "total_dataset_length", None)
    if not isinstance(accumulation, int) or not isinstance(per_pass, int):
        return []
    requested = accumulation * per_pass
    if not isinstance(samples, int) or samples >= requested:
        return []
    how = "the data set's length, in the data loader"
    finding = Evidence("global_batch", f"{samples} samples in an epoch", how)
    return [finding.judge(str(requested), False)]


def _plural(noun: str, count: int) -> str:
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _collator_name(collator: Any) -> str:
    return getattr(collator, "__qualname__", None) or type(collator).__name__


def _packing_kind(objects: TrainerObjects, collator: Any) -> str:
    columns = getattr(getattr(objects.dataloader, "dataset", None), "column_names", None) or ()
    is_padding_free = getattr(collator, "padding_free", False)
    if getattr(getattr(objects.trainer, "args", None), "packing", False):
        # TRL's dataset marks where documents end unless it was cut into equal pieces
        # (trl/data_utils.py)
        return BINS if "seq_lengths" in columns and is_padding_free else WRAPPED
    is_flattening = "Flattening" in type(collator).__name__ or is_padding_free
    return FLATTEN if is_flattening else NONE


def check_balanced(objects: TrainerObjects, first: ForwardInputs | None) -> Evidence:
    """Return the finding "balanced": whether a global batch is dealt by length."""
    batches = find_sampler(objects.dataloader)
    if batches is None or not batches.balanced:
        return Evidence("balanced", "false", "the sampler of the data loader")
    if first is None or batches.first_batch is None:
        return Evidence("balanced", None, "the first micro batch was not seen")
    tokens = batches.tokens_of(batches.first_batch)
    actual = first.tokens
    if (
        batches.has_pairs
        and batches.layout.padded
        and first.rows == len(batches.first_batch.lengths)
    ):
        tokens //= 2  # the chosen halves alone: concatenated_forward=false (dpo_utils.py:323)
    how = f"the first micro batch of this rank has the {tokens} tokens that were dealt to it"
    if actual != tokens:
        how = (
            f"{tokens} tokens were dealt to the first micro batch of this rank, and the model "
            f"got {actual}"
        )
    return Evidence("balanced", str(actual == tokens).lower(), how)


def check_averaging(objects: TrainerObjects) -> Evidence:
    """Return the finding "loss_averaging": how the loss of a global batch weights its tokens."""
    if objects.trainer is not None:
        by_tokens = bool(getattr(objects.trainer, "model_accepts_loss_kwargs", False))
        how = "whether the Trainer passes the token count of the whole step to the model"
        return Evidence("loss_averaging", TOKENS if by_tokens else MICRO_BATCH_MEANS, how)
    applied = (
        getattr(module, "loss_averaging_for_launch", None) for module in objects.wrapped.modules()
    )
    averaging = next(filter(None, applied), MICRO_BATCH_MEANS)
    return Evidence(
        "loss_averaging", averaging, "whether the loss of the first micro batch was weighted"
    )
