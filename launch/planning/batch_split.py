"""Splits a global batch over ranks, forward passes and accumulation steps.

The global batch is width x per device x accumulation, and is the same at every width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from launch.config.origins import Origins
from launch.config.schema import Device, Launcher, RootConfig
from launch.errors import refusal
from launch.planning.parallel import Parallel, Width
from launch.upstream.trainers import OLMO_CORE_SFT
from launch.worker.finding import Fix
from launch.worker.wording import count_of, noun_for

CONTEXT_FLAG = "cp_degree"  # of context parallelism
_VALUES_SHOWN = 8  # in a message


@dataclass(frozen=True)
class Batch:
    """How a global batch is split over ranks, forward passes and accumulation steps."""

    global_: int  # samples (pairs for DPO) of one optimizer step over all ranks
    per_device: int  # samples of one forward pass of one rank
    accumulation: int  # forward passes of one rank per optimizer step
    width: int  # ranks
    ranks_per_row: int = 1  # ranks that compute a row together, by context parallelism

    @property
    def data_ranks(self) -> int:
        """The ranks that have rows of their own: those that share a row count as one."""
        return self.width // self.ranks_per_row

    @property
    def samples_per_rank(self) -> int:
        """The samples of one optimizer step on one rank."""
        return self.per_device * self.accumulation

    def __str__(self) -> str:
        ranks = count_of(self.width, "rank")
        if self.ranks_per_row > 1:
            ranks += f" / {self.ranks_per_row} per row"
        return (
            f"{self.global_} = {ranks} x {self.per_device} per device x {self.accumulation} "
            "accumulation"
        )


def share_batch(config: RootConfig, origins: Origins, parallel: Parallel) -> Batch:
    """Return how the ranks share the global batch.

    Raises UserError: batch_not_divisible, context_parallel.
    """
    recipe = config.recipe
    if config.trainer.launcher == Launcher.ray:
        # Ray's learners take packed rows of as many completions as fit
        return Batch(recipe.global_batch_size, recipe.per_device_batch_size, 1, 1)
    width = parallel.width
    shared = resolve_ranks_per_row(config, origins, width)
    size = recipe.per_device_batch_size
    tokens = recipe.global_batch_tokens
    if tokens is not None:
        return split_token_batch(tokens, recipe.max_seq_length, size, width.world_size, shared)
    return split_batch(recipe.global_batch_size, size, width.world_size, shared)


def split_batch(global_batch: int, per_device: int, width: int, ranks_per_row: int = 1) -> Batch:
    """Split a global batch over ranks and accumulation steps.

    `ranks_per_row` of the `width` ranks compute a row together, and count as one.

    Raises UserError: batch_not_divisible (with the values that would work).
    """
    data_ranks = width // ranks_per_row
    accumulation, rest = divmod(global_batch, per_device * data_ranks)
    if rest or not accumulation:
        ranks = _name_ranks(data_ranks, width, ranks_per_row)
        message = (
            f"global batch {global_batch} is not divisible by {data_ranks} {ranks} x "
            f"{count_of(per_device, 'sample')}"
        )
        cure = _suggest_values(global_batch, per_device, data_ranks, ranks_per_row)
        raise refusal("batch_not_divisible", message, None, cure)
    return Batch(global_batch, per_device, accumulation, width, ranks_per_row)


def _name_ranks(data_ranks: int, width: int, ranks_per_row: int) -> str:
    """Return "rank" or "ranks", with the GPUs of those that share rows."""
    name = noun_for(data_ranks, "rank")
    if ranks_per_row > 1:
        name += f" ({width} GPUs, {ranks_per_row} to a row)"
    return name


def resolve_ranks_per_row(config: RootConfig, origins: Origins, width: Width) -> int:
    """Return how many ranks compute a row together: flags.cp_degree of olmo_core_finetune, else 1.

    The ranks of a node have to be a multiple of it: the script shards a model over those of a node
    that remain (olmo_core_finetune.py:213-214), which would be none. Raises UserError:
    context_parallel.
    """
    degree = config.flags.get(CONTEXT_FLAG)
    if config.trainer.name != OLMO_CORE_SFT or not isinstance(degree, int) or degree <= 1:
        return 1
    where = origins.of(f"flags.{CONTEXT_FLAG}").where
    if width.device == Device.cpu:
        message = f"flags.{CONTEXT_FLAG}={degree} splits a row over GPUs, and the device is cpu"
        cure = Fix.of("remove it, or set {1}", f"~flags.{CONTEXT_FLAG}", f"gpus={degree}")
        raise refusal("context_parallel", message, where, cure)
    if width.local % degree:
        fits = [f"flags.{CONTEXT_FLAG}={value}" for value in divisors(width.local) if value > 1]
        message = f"flags.{CONTEXT_FLAG}={degree} does not divide the {width.local} GPUs of a node"
        actions = [f"~flags.{CONTEXT_FLAG}", f"gpus={degree}", *fits]
        sentence = "remove it, or set {1}"
        if fits:
            others = ", ".join(fits[1:])
            sentence += " or {2}" + (f" (also {others})" if others else "")
        raise refusal("context_parallel", message, where, Fix.of(sentence, *actions))
    return degree


def split_token_batch(
    tokens: int, length: int, per_device: int, width: int, ranks_per_row: int = 1
) -> Batch:
    """Split a global batch of `tokens` tokens, in rows of `length`, over ranks and accumulation
    steps. `ranks_per_row` of the `width` ranks compute a row together, and count as one.

    Raises UserError: batch_not_divisible (with the values that would work).
    """
    data_ranks = width // ranks_per_row
    if tokens % (length * per_device * data_ranks) == 0:
        return split_batch(tokens // length, per_device, width, ranks_per_row)
    ranks = _name_ranks(data_ranks, width, ranks_per_row)
    message = (
        f"a global batch of {tokens} tokens is not divisible by {data_ranks} {ranks} x "
        f"{count_of(per_device, 'row')} x {length} tokens"
    )
    cure = _suggest_for_tokens(tokens, length, per_device, data_ranks, ranks_per_row)
    raise refusal("batch_not_divisible", message, None, cure)


def _suggest_for_tokens(
    tokens: int, length: int, per_device: int, width: int, ranks_per_row: int
) -> str:
    """Return a text with the values of each of the four numbers that would work with the other
    three as they are. `width` counts ranks that have rows of their own.
    """
    suggestions = []
    if tokens % (length * per_device) == 0:
        data_ranks = divisors(tokens // (length * per_device))
        widths = [count * ranks_per_row for count in data_ranks]
        suggestions.append(f"a width of {_join(_abbreviate(widths))}")
    if tokens % (length * width) == 0:
        per_devices = divisors(tokens // (length * width))
        numbers = _nearest_first(per_devices, per_device)
        suggestions.append(f"recipe.per_device_batch_size={numbers}")
    if tokens % (per_device * width) == 0:
        lengths = divisors(tokens // (per_device * width))
        # OLMo-core's rows are a power of 2 long (packing_length), and one token predicts nothing
        powers = [value for value in lengths if value > 1 and value & (value - 1) == 0]
        if powers:
            suggestions.append(f"recipe.max_seq_length={_nearest_first(powers, length)}")
    step = length * per_device * width
    below = tokens - tokens % step
    numbers = _nearest_first([batch for batch in (below, below + step) if batch], tokens)
    suggestions.append(f"recipe.global_batch_tokens={numbers}")
    return "use " + ", or ".join(suggestions)


def divisors(number: int) -> list[int]:
    """Return every divisor, ascending."""
    up_to_root = range(1, math.isqrt(number) + 1)
    small = [divisor for divisor in up_to_root if number % divisor == 0]
    large = [number // divisor for divisor in small]
    return sorted({*small, *large})


def _suggest_values(global_batch: int, per_device: int, width: int, ranks_per_row: int) -> str:
    """Return a text with the values of each of the three numbers that would work with the other
    two as they are. `width` counts the ranks that share a row as one.
    """
    suggestions = []
    if global_batch % per_device == 0:
        widths = [ranks_per_row * ranks for ranks in divisors(global_batch // per_device)]
        suggestions.append(f"a width of {_join(_abbreviate(widths))}")
    if global_batch % width == 0:
        per_devices = divisors(global_batch // width)
        numbers = _nearest_first(per_devices, per_device)
        suggestions.append(f"recipe.per_device_batch_size={numbers}")
    step = width * per_device
    below = global_batch - global_batch % step
    global_batches = [batch for batch in (below, below + step) if batch]
    numbers = _nearest_first(global_batches, global_batch)
    suggestions.append(f"recipe.global_batch_size={numbers}")
    return "use " + ", or ".join(suggestions)


def _nearest_first(numbers: list[int], wanted: int) -> str:
    """Return the number that is nearest to `wanted`, then the others: `4 (also 1, 2, 8)`."""
    nearest = min(numbers, key=lambda number: (abs(number - wanted), number))
    others = [str(number) for number in _abbreviate(numbers) if number != nearest]
    return f"{nearest} (also {', '.join(others)})" if others else str(nearest)


def _join(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last


def _abbreviate(numbers: list[int]) -> list[int]:
    """Return the first numbers and the last one, if there are many."""
    if len(numbers) <= _VALUES_SHOWN:
        return numbers
    return [*numbers[: _VALUES_SHOWN - 1], numbers[-1]]
