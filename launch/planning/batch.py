"""Batch arithmetic: global = width x per device x accumulation, the same global batch at every width."""

from __future__ import annotations

from dataclasses import dataclass

from launch.errors import Problem, UserError

_WIDTHS_SHOWN = 8


@dataclass(frozen=True)
class Batch:
    """Samples (pairs for DPO) of one optimizer step over all ranks, and of one forward pass of one rank; the counts."""

    global_: int
    per_device: int
    accumulation: int
    width: int

    def __str__(self) -> str:
        ranks = "1 rank" if self.width == 1 else f"{self.width} ranks"
        return f"{self.global_} = {ranks} x {self.per_device} per device x {self.accumulation} accumulation"

    def as_json(self) -> dict[str, int]:
        return {
            "global": self.global_,
            "per_device": self.per_device,
            "accumulation": self.accumulation,
            "width": self.width,
        }


def split_batch(global_batch: int, per_device: int, width: int) -> Batch:
    """Split a global batch over ranks and accumulation steps.

    Raises UserError (`bad_batch_size` below 1; `batch_not_divisible`, with the values that would do, otherwise).
    """
    for key, size in (("global_batch_size", global_batch), ("per_device_batch_size", per_device)):
        if size < 1:
            raise UserError(Problem("bad_batch_size", f"recipe.{key}={size} is no batch size", None, "say 1 or more"))
    accumulation, rest = divmod(global_batch, per_device * width)
    if rest or not accumulation:
        said = f"global batch {global_batch} does not split over {width} ranks of {per_device} samples"
        raise UserError(Problem("batch_not_divisible", said, None, _what_would(global_batch, per_device, width)))
    return Batch(global_batch, per_device, accumulation, width)


def divisors(number: int) -> list[int]:
    """Every divisor, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _what_would(global_batch: int, per_device: int, width: int) -> str:
    """The values of each of the three numbers that would do, the other two as they are."""
    per_devices = divisors(global_batch // width) if global_batch % width == 0 else []
    widths = divisors(global_batch // per_device) if global_batch % per_device == 0 else []
    step = width * per_device
    below = global_batch - global_batch % step
    globals_ = [batch for batch in (below, below + step) if batch]
    ways = [f"recipe.global_batch_size={_some(globals_)}"]
    if per_devices:
        ways.insert(0, f"recipe.per_device_batch_size={_some(per_devices)}")
    if widths:
        ways.insert(0, f"a width of {_some(widths)}")
    return "these would: " + ", or ".join(ways)


def _some(numbers: list[int]) -> str:
    shown = numbers if len(numbers) <= _WIDTHS_SHOWN else [*numbers[: _WIDTHS_SHOWN - 1], numbers[-1]]
    return "|".join(str(number) for number in shown)
