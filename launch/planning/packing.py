"""How full the rows of dpo.py will be: upstream's own packing, simulated on the lengths of the data.

A packed step is one row of chosen and one of rejected tokens per rank, each padded to max_seq_length. Pairs are added
until one of the two would overflow, or until the row holds the rank's samples of the global batch
(data_loader.py:303-362, `_reshard_with_packing`). In a packed step accumulation therefore only raises that number.
Without packing the same samples are padded to their longest half (dpo_utils.py:1089).
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
REFERENCE_ROWS = 4  # x the per-device batch: the pairs that a row of the reference pass may hold (dpo.py:221)
MAX_PADDING = 0.5  # share of the tokens; above it most of the computation is padding
_MAX_PAIRS = 4096  # per rank; more than any row holds


@dataclass(frozen=True)
class PackedRows:
    """The rows that samples were packed into."""

    rows: int
    samples: int
    tokens: int
    limit: int  # tokens of a row
    halves: int  # sequences of a sample; 2 for pairs

    @property
    def filled(self) -> float:
        """The share of the rows that holds tokens; the rest is padding. 1 without a row."""
        room = self.rows * self.halves * self.limit
        return self.tokens / room if room else 1.0

    @property
    def samples_per_row(self) -> float:
        return self.samples / self.rows if self.rows else 0.0


def pack_samples(samples: Iterable[Sequence[int]], limit: int, max_samples: int) -> PackedRows:
    """Pack samples, given by the lengths of their halves, in their order.

    A row holds at most `max_samples`, each half within `limit` tokens. A longer sample gets a row of its own,
    truncated.
    """
    rows = packed = tokens = halves = in_row = 0
    sums: list[int] = []
    for sample in samples:
        lengths = [min(length, limit) for length in sample]
        grown = [total + length for total, length in zip(sums, lengths, strict=True)] if in_row else lengths
        if in_row and (in_row >= max_samples or max(grown) > limit):
            grown, in_row = lengths, 0
        if not in_row:
            rows += 1
        sums, in_row, halves = grown, in_row + 1, len(lengths)
        packed, tokens = packed + 1, tokens + sum(lengths)
    return PackedRows(rows, packed, tokens, limit, halves)


@dataclass(frozen=True)
class PackingForecast:
    """How full packed rows will be."""

    training: PackedRows
    reference: PackedRows  # of the reference pass, before the training
    steps: int  # of an epoch
    needed_pairs: int | None  # per rank, so that most of a row is filled; None where no number of pairs fills it


def forecast_packing(lengths: Lengths, limit: int, batch: Batch, seed: int = 0) -> PackingForecast:
    """Forecast the rows of packed pairs. Raises ValueError for data whose pairs are unknown."""
    if not lengths.pairs:
        raise ValueError("the lengths of the pairs are unknown")
    pairs = list(lengths.pairs)
    random.Random(seed).shuffle(pairs)
    training = pack_samples(pairs, limit, samples_per_rank(batch))
    reference = pack_samples(pairs, limit, REFERENCE_ROWS * batch.per_device)
    epoch_rows = training.rows * lengths.samples / len(pairs)
    powers = (1 << exponent for exponent in range(_MAX_PAIRS.bit_length()))
    needed = next((count for count in powers if pack_samples(pairs, limit, count).filled >= 1 - MAX_PADDING), None)
    return PackingForecast(training, reference, int(epoch_rows / batch.width), needed)


def samples_per_rank(batch: Batch) -> int:
    """Return the samples of one optimizer step on one rank."""
    return batch.per_device * batch.accumulation


def describe(forecast: PackingForecast, batch: Batch) -> str:
    """Describe the forecast in one line."""
    training, reference = forecast.training, forecast.reference
    steps = "1 step" if forecast.steps == 1 else f"{forecast.steps:,} steps"
    return (
        f"rows of {training.limit:,} tokens hold {training.samples_per_row:.1f} pairs and are "
        f"{training.filled:.0%} full (at most {samples_per_rank(batch)} pairs); "
        f"the reference pass {reference.filled:.0%}; {steps} per epoch"
    )


def padding_problem(lengths: Lengths | None, packing: Packing, limit: int, batch: Batch) -> Problem | None:
    """Return the problem tokens_wasted where dpo.py would compute more padding than tokens; None where it would not, or
    where the lengths are unknown."""
    if lengths is None or (packing == Packing.bins and not lengths.pairs):
        return None
    if packing != Packing.bins:
        return _padded_problem(lengths, batch)
    forecast = forecast_packing(lengths, limit, batch)
    pairs, empty = samples_per_rank(batch), 1 - forecast.training.filled
    if empty <= MAX_PADDING:
        return _reference_problem(forecast, pairs, batch)
    message = (
        f"{empty:.0%} of every packed row will be padding: {pairs} pairs per rank fill "
        f"{forecast.training.filled:.0%} of {limit:,} tokens"
    )
    cure = f"set recipe.max_seq_length below {limit:,}, or recipe.packing=none"
    needed = forecast.needed_pairs
    if needed is not None and needed > pairs:
        cure = f"set recipe.per_device_batch_size={needed} recipe.global_batch_size={needed * batch.width}; or {cure}"
    return Problem("tokens_wasted", message, "recipe.per_device_batch_size", cure)


def _reference_problem(forecast: PackingForecast, pairs: int, batch: Batch) -> Problem | None:
    """Judge the reference pass: its rows depend on the per-device batch, unlike those of a packed step."""
    empty = 1 - forecast.reference.filled
    if empty <= MAX_PADDING or batch.per_device == pairs:
        return None
    message = (
        f"{empty:.0%} of the reference pass will be padding: its rows hold {REFERENCE_ROWS} x the per-device batch"
    )
    cure = f"set recipe.per_device_batch_size={pairs}: it fills them, and changes nothing else in packed rows"
    return Problem("tokens_wasted", message, "recipe.per_device_batch_size", cure)


def check_packing(trainer: str, flags: Mapping[str, Flag]) -> None:
    """Reject flags with which OLMo-core's trainers die at the first batch.

    Raises UserError: packing_needs_flash, packing_needs_concatenation, checkpointing_needs_compile, packing_length.
    """
    if trainer not in (TRAINER, SFT):
        return

    def value(name: str) -> object:
        return flags[name].value if name in flags else None

    problems = []
    packed = trainer == SFT or bool(value("packing"))
    if packed and value("attn_implementation") == "torch":
        message = f"{trainer} separates packed documents with flash attention, got attn_implementation=torch"
        cure = "remove recipe.attention: without the flash-attn package the trainer uses torch's own kernel"
        problems.append(Problem("packing_needs_flash", message, flags["attn_implementation"].provenance.where, cure))
    if packed and trainer == TRAINER and value("concatenated_forward") is False:
        message = "dpo.py packs only with the concatenated forward pass (dpo.py:236), got concatenated_forward=false"
        where = flags["concatenated_forward"].provenance.where
        cure = "remove flags.concatenated_forward, or set recipe.packing=none"
        problems.append(Problem("packing_needs_concatenation", message, where, cure))
    length = value("max_seq_length")
    if trainer == SFT and isinstance(length, int) and length & (length - 1):
        # olmo_core/data/utils.py:795, the tree that it finds room in rows with
        message = f"{SFT} packs into rows of a power of 2 of tokens, got max_seq_length={length}"
        lower = 1 << (length.bit_length() - 1)
        cure = f"set recipe.max_seq_length={lower} or {2 * lower}"
        problems.append(Problem("packing_length", message, flags["max_seq_length"].provenance.where, cure))
    budget = value("activation_memory_budget")
    by_budget = value("activation_checkpointing_mode") in (None, "budget")
    if isinstance(budget, float) and budget < 1 and value("compile_model") is False and by_budget:
        message = "compile_model=false: OLMo-core then silently ignores the activation memory budget of torch.compile"
        cure = "set recipe.gradient_checkpointing=false, or flags.activation_checkpointing_mode=selected_modules"
        where = flags["activation_memory_budget"].provenance.where
        problems.append(Problem("checkpointing_needs_compile", message, where, cure))
    if problems:
        raise UserError(problems)


def _padded_problem(lengths: Lengths, batch: Batch) -> Problem | None:
    samples = samples_per_rank(batch)
    padding = lengths.padding_share(samples)
    if padding <= MAX_PADDING:
        return None
    message = f"{padding:.0%} of the tokens will be padding: dpo.py pads the {samples} pairs of a rank to the longest"
    cure = "set recipe.packing=bins"
    halvings = (samples >> times for times in range(1, samples.bit_length()))
    fewer = next((count for count in halvings if lengths.padding_share(count) <= MAX_PADDING), None)
    if fewer is not None:
        cure += f", or recipe.global_batch_size={fewer * batch.width} ({fewer} per rank) for less than half"
    return Problem("tokens_wasted", message, "recipe.packing", cure)
