"""How full the rows of dpo.py will be: upstream's own packing, played through on the lengths of the data.

A packed step is one row of chosen and one of rejected tokens a rank, each padded to max_seq_length. A pair is put in
until one of the two would overflow, or until the row holds the rank's share of the global batch
(data_loader.py:303-362, `_reshard_with_packing`). Accumulation therefore does nothing in a packed step but to raise
that share. Without packing the same share is padded to its longest half (dpo_utils.py:1089).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launch.config.schema import Packing
from launch.errors import Problem, UserError
from launch.planning.batch import Batch
from launch.planning.flags import Flag
from launch.planning.lengths import Lengths

TRAINER, SFT = "dpo", "olmo_core_finetune"
REFERENCE_ROWS = 4  # x the per-device batch: what a row of the reference pass may hold (dpo.py:221)
MUCH = 0.5  # of the tokens; above it most of the work is padding
_LARGEST = 4096  # pairs a rank; more than any row holds


@dataclass(frozen=True)
class Rows:
    """The rows that samples of `halves` sequences each (2: pairs) were packed into, none longer than `limit`."""

    rows: int
    samples: int
    tokens: int
    limit: int
    halves: int

    @property
    def filled(self) -> float:
        """The share of the rows that holds tokens; the rest is padding. 1 without any row."""
        room = self.rows * self.halves * self.limit
        return self.tokens / room if room else 1.0

    @property
    def samples_a_row(self) -> float:
        return self.samples / self.rows if self.rows else 0.0


def pack(samples: Iterable[Sequence[int]], limit: int, most: int) -> Rows:
    """Pack samples, given by the lengths of their halves, in their order: at most `most` a row, each half within
    `limit` tokens, except that a sample which alone is longer has a row of its own, cut there."""
    rows = taken = tokens = halves = inside = 0
    sums: list[int] = []
    for sample in samples:
        lengths = [min(length, limit) for length in sample]
        grown = [total + length for total, length in zip(sums, lengths, strict=True)] if inside else lengths
        if inside and (inside >= most or max(grown) > limit):
            grown, inside = lengths, 0
        if not inside:
            rows += 1
        sums, inside, halves = grown, inside + 1, len(lengths)
        taken, tokens = taken + 1, tokens + sum(lengths)
    return Rows(rows, taken, tokens, limit, halves)


@dataclass(frozen=True)
class PackingForecast:
    """`training` and `reference`: the rows of a training step and of the pass before it. `steps`: of an epoch.
    `enough`: the pairs a rank from which on most of a row is filled; None where no number of pairs does it."""

    training: Rows
    reference: Rows
    steps: int
    enough: int | None


def forecast_packing(lengths: Lengths, limit: int, batch: Batch, seed: int = 0) -> PackingForecast:
    """The forecast for packed pairs. Raises ValueError for data whose pairs are not known."""
    if not lengths.pairs:
        raise ValueError("the lengths of no pair are known")
    pairs = list(lengths.pairs)
    random.Random(seed).shuffle(pairs)
    training = pack(pairs, limit, share_of_a_rank(batch))
    reference = pack(pairs, limit, REFERENCE_ROWS * batch.per_device)
    epoch = training.rows * lengths.samples / len(pairs)
    return PackingForecast(training, reference, int(epoch / batch.width), _enough(pairs, limit))


def share_of_a_rank(batch: Batch) -> int:
    """The samples of one optimizer step on one rank."""
    return batch.per_device * batch.accumulation


def _enough(pairs: Sequence[Sequence[int]], limit: int) -> int | None:
    most = 1
    while most <= _LARGEST:
        if pack(pairs, limit, most).filled >= 1 - MUCH:
            return most
        most *= 2
    return None


def describe(forecast: PackingForecast, batch: Batch) -> str:
    """The forecast in a line."""
    training, reference = forecast.training, forecast.reference
    steps = "1 step" if forecast.steps == 1 else f"{forecast.steps:,} steps"
    return (
        f"rows of {training.limit:,} tokens hold {training.samples_a_row:.1f} pairs and are {training.filled:.0%} full "
        f"(at most {share_of_a_rank(batch)} pairs); the reference pass {reference.filled:.0%}; {steps} an epoch"
    )


def wasted(lengths: Lengths | None, packing: Packing, limit: int, batch: Batch) -> Problem | None:
    """The problem `tokens_wasted` for dpo.py at a setting which computes more padding than tokens; None where it does
    not, or where the lengths are not known."""
    if lengths is None or (packing == Packing.bins and not lengths.pairs):
        return None
    if packing != Packing.bins:
        return _padded(lengths, batch)
    found = forecast_packing(lengths, limit, batch)
    share, empty = share_of_a_rank(batch), 1 - found.training.filled
    if empty <= MUCH:
        return _reference(found, share, batch)
    message = (
        f"{empty:.0%} of every packed row will be padding: {share} pairs a rank fill "
        f"{found.training.filled:.0%} of {limit:,} tokens"
    )
    cure = f"a lower recipe.max_seq_length than {limit:,}, or recipe.packing=none"
    if found.enough is not None and found.enough > share:
        cure = (
            f"recipe.per_device_batch_size={found.enough} recipe.global_batch_size={found.enough * batch.width} "
            f"would not, and neither would {cure}"
        )
    return Problem("tokens_wasted", message, "recipe.per_device_batch_size", cure)


def _reference(found: PackingForecast, share: int, batch: Batch) -> Problem | None:
    """The pass before the training goes by the per-device batch, which a packed step does not."""
    empty = 1 - found.reference.filled
    if empty <= MUCH or batch.per_device == share:
        return None
    message = (
        f"{empty:.0%} of the reference pass will be padding: its rows hold {REFERENCE_ROWS} x the per-device batch"
    )
    cure = f"recipe.per_device_batch_size={share} fills them, and changes nothing else in packed rows"
    return Problem("tokens_wasted", message, "recipe.per_device_batch_size", cure)


def refuse_packing(trainer: str, flags: Mapping[str, Flag]) -> None:
    """Raises UserError for what OLMo-core's trainers would die of when the first batch comes: `packing_needs_flash`,
    `packing_needs_concatenation`, `checkpointing_needs_compile`."""
    if trainer not in (TRAINER, SFT):
        return

    def said(name: str) -> object:
        return flags[name].value if name in flags else None

    problems = []
    packed = trainer == SFT or bool(said("packing"))
    if packed and said("attn_implementation") == "torch":
        message = f"{trainer} keeps packed documents apart by flash attention, and was told to use torch's"
        cure = "leave recipe.attention out: without the flash-attn package it gets the kernel that torch has"
        problems.append(Problem("packing_needs_flash", message, flags["attn_implementation"].said.where, cure))
    if packed and trainer == TRAINER and said("concatenated_forward") is False:
        message = "dpo.py packs for the concatenated forward pass alone (dpo.py:236)"
        where = flags["concatenated_forward"].said.where
        problems.append(Problem("packing_needs_concatenation", message, where, "leave one of the two out"))
    budget = said("activation_memory_budget")
    by_budget = said("activation_checkpointing_mode") in (None, "budget")
    if isinstance(budget, float) and budget < 1 and said("compile_model") is False and by_budget:
        message = "OLMo-core checkpoints by torch.compile's budget, and without compilation silently not at all"
        cure = "say recipe.gradient_checkpointing=false, or flags.activation_checkpointing_mode=selected_modules"
        where = flags["activation_memory_budget"].said.where
        problems.append(Problem("checkpointing_needs_compile", message, where, cure))
    if problems:
        raise UserError(problems)


def _padded(lengths: Lengths, batch: Batch) -> Problem | None:
    share = share_of_a_rank(batch)
    padding = lengths.padding_share(share)
    if padding <= MUCH:
        return None
    message = f"{padding:.0%} of the tokens will be padding: dpo.py pads the {share} pairs of a rank to the longest"
    cure = "recipe.packing=bins packs them"
    fewer = next((n for n in _halved(share) if lengths.padding_share(n) <= MUCH), None)
    if fewer is not None:
        cure += f"; with recipe.global_batch_size={fewer * batch.width} ({fewer} a rank) it would be less than half"
    return Problem("tokens_wasted", message, "recipe.packing", cure)


def _halved(number: int) -> Iterable[int]:
    while number > 1:
        number //= 2
        yield number
