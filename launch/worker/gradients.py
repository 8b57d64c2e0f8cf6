"""The last gradient norm, where the trainer measures one: at no cost until somebody reads it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

_watchers: list[Callable[[Any, float, Any], None]] = []


def when_clipped(call: Callable[[Any, float, Any], None]) -> None:
    """Registers `call(accelerator, max_norm, norm)` for every `Accelerator.clip_grad_norm_`, before and whatever
    accelerate does with the request (under DeepSpeed: nothing, it returns the engine's last norm)."""
    from accelerate import Accelerator

    if not getattr(Accelerator.clip_grad_norm_, "tells_launch", False):
        clip = Accelerator.clip_grad_norm_

        @functools.wraps(clip)
        def clip_and_tell(self: Any, parameters: Any, max_norm: float, *arguments: Any, **options: Any) -> Any:
            norm = clip(self, parameters, max_norm, *arguments, **options)
            for watcher in _watchers:
                watcher(self, max_norm, norm)
            return norm

        clip_and_tell.tells_launch = True  # type: ignore[attr-defined]
        Accelerator.clip_grad_norm_ = clip_and_tell
    _watchers.append(call)


class LastNorm:
    """Remembers what the trainer's clipping returned; the tensor is read, which waits for the device, by `value`."""

    def __init__(self) -> None:
        self._norm: Any = None
        self._accelerator: Any = None

    def clipped(self, accelerator: Any, max_norm: float, norm: Any) -> None:
        self._accelerator, self._norm = accelerator, norm

    def built(self, accelerator: Any) -> None:
        """The trainer's Accelerator, by which DeepSpeed's engine is found when the trainer never clips."""
        self._accelerator = accelerator

    def value(self) -> float | None:
        """The norm of the last step's gradients before clipping; None where nobody measured it."""
        engine = getattr(self._accelerator, "deepspeed_engine_wrapped", None)
        norm = engine.get_global_grad_norm() if engine is not None else self._norm
        if norm is None:
            return None
        number = float(norm)
        # -1 is DeepSpeed's word for "not measured yet" and for a step that overflowed
        return None if number == -1 else number if number >= 0 else math.nan
