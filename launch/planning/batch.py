"""Batch arithmetic: global = width x per device x accumulation, the same global batch at every width."""

from __future__ import annotations

from dataclasses import dataclass

from launch.errors import Problem, UserError

_VALUES_SHOWN = 8


@dataclass(frozen=True)
class Batch:
    """How a global batch is split over ranks, forward passes and accumulation steps."""

    global_: int  # samples (pairs for DPO) of one optimizer step over all ranks
    per_device: int  # samples of one forward pass of one rank
    accumulation: int  # forward passes of one rank per optimizer step
    width: int  # ranks

    def __str__(self) -> str:
        ranks = "1 rank" if self.width == 1 else f"{self.width} ranks"
        return f"{self.global_} = {ranks} x {self.per_device} per device x {self.accumulation} accumulation"


def split_batch(global_batch: int, per_device: int, width: int) -> Batch:
    """Split a global batch over ranks and accumulation steps.

    Raises UserError: batch_not_divisible (with the values that would work).
    """
    accumulation, rest = divmod(global_batch, per_device * width)
    if rest or not accumulation:
        ranks, samples = ("" if count == 1 else "s" for count in (width, per_device))
        message = f"global batch {global_batch} is not divisible by {width} rank{ranks} x {per_device} sample{samples}"
        cure = _suggest_values(global_batch, per_device, width)
        raise UserError(Problem("batch_not_divisible", message, None, cure))
    return Batch(global_batch, per_device, accumulation, width)


def divisors(number: int) -> list[int]:
    """Return every divisor, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _suggest_values(global_batch: int, per_device: int, width: int) -> str:
    """Name the values of each of the three numbers that would work with the other two as they are."""
    per_devices = divisors(global_batch // width) if global_batch % width == 0 else []
    widths = divisors(global_batch // per_device) if global_batch % per_device == 0 else []
    step = width * per_device
    below = global_batch - global_batch % step
    globals_ = [batch for batch in (below, below + step) if batch]
    suggestions = [f"recipe.global_batch_size={_abbreviate(globals_)}"]
    if per_devices:
        suggestions.insert(0, f"recipe.per_device_batch_size={_abbreviate(per_devices)}")
    if widths:
        suggestions.insert(0, f"a width of {_abbreviate(widths)}")
    return "use " + ", or ".join(suggestions)


def _abbreviate(numbers: list[int]) -> str:
    shown = numbers if len(numbers) <= _VALUES_SHOWN else [*numbers[: _VALUES_SHOWN - 1], numbers[-1]]
    return "|".join(str(number) for number in shown)
