"""Replaces functions of libraries, and calls back from the trainer's `Accelerator`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put the decorated function in the place of `owner.name`.

    Its first argument is the function that it replaces. Raises AttributeError if `owner` has no such attribute.

    >>> import types
    >>> library = types.SimpleNamespace(double=lambda number: 2 * number)
    >>> @replaces(library, "double")
    ... def double_and_add(double, number):
    ...     return double(number) + 1
    >>> library.double(3)
    7
    """
    original = getattr(owner, name)

    def replace(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replacement(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        setattr(owner, name, replacement)
        return replacement

    return replace


def when_built(callback: Callable[[Any], None]) -> None:
    """Register `callback(accelerator)`; each callback is called once, in the order of registration.

    open-instruct's scripts build the Accelerator themselves; TRL leaves it to transformers' Trainer
    (trainer.py, `create_accelerator_and_postprocess`). A trainer that builds none never calls back.
    """
    from accelerate import Accelerator

    pending = [callback]

    @replaces(Accelerator, "__init__")
    def build_and_notify(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        while pending:
            pending.pop()(self)


def when_prepared(callback: Callable[[Any], None]) -> None:
    """Register `callback(model)` for the first model that is prepared together with an optimizer.

    The model is passed as the trainer handed it in, without accelerate's wrappers. Each callback is
    called once, in the order of registration.
    """
    from accelerate import Accelerator

    pending = [callback]

    @replaces(Accelerator, "prepare")
    def prepare_and_notify(prepare: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        prepared = prepare(self, *arguments, **options)
        models = [argument for argument in arguments if hasattr(argument, "named_modules")]
        while pending and models and any(map(_is_optimizer, arguments)):
            pending.pop()(models[0])
        return prepared


def _is_optimizer(argument: Any) -> bool:
    return "Optim" in type(argument).__name__ or hasattr(argument, "param_groups")


def when_clipped(callback: Callable[[Any, float, Any], None]) -> None:
    """Register `callback(accelerator, max_norm, norm)` for every call of
    `Accelerator.clip_grad_norm_`.

    Under DeepSpeed accelerate does not clip there; it returns the engine's last norm.
    """
    from accelerate import Accelerator

    @replaces(Accelerator, "clip_grad_norm_")
    def clip_and_notify(
        clip: Any, self: Any, parameters: Any, max_norm: float, *more: Any, **options: Any
    ) -> Any:
        norm = clip(self, parameters, max_norm, *more, **options)
        callback(self, max_norm, norm)
        return norm


def engine_norm(engine: Any) -> float | None:
    """Return the gradient norm of the last step of DeepSpeed's engine; None if it has none.

    DeepSpeed returns -1 before the first measurement, and after a step that overflowed.
    """
    norm = engine.get_global_grad_norm()
    if norm is None or float(norm) == -1:
        return None
    return float(norm)


class LastNorm:
    """Keeps the norm that the trainer's clipping returned.

    Only `value` reads the tensor, which waits for the device.
    """

    def __init__(self) -> None:
        self._norm: Any = None
        self._accelerator: Any = None  # leads to DeepSpeed's engine if the trainer never clips

    def keep(self, accelerator: Any, max_norm: float | None = None, norm: Any = None) -> None:
        """Keep the Accelerator and the norm; a callback for `when_built` and `when_clipped`."""
        self._accelerator = accelerator
        self._norm = norm

    def value(self) -> float | None:
        """Return the gradient norm of the last step before clipping.

        None is returned if it was not measured.
        """
        engine = getattr(self._accelerator, "deepspeed_engine_wrapped", None)
        if engine is not None:
            return engine_norm(engine)
        return None if self._norm is None else float(self._norm)

    def add_to(self, metrics: dict[str, Any]) -> None:
        """Add the norm, if it was measured, to the metrics that a trainer prints.

        The trainer also sends them to its trackers.
        """
        norm = self.value()
        if norm is not None:
            metrics["grad_norm"] = norm


def follow_norm() -> LastNorm:
    """Return what keeps the trainer's last gradient norm from now on."""
    norm = LastNorm()
    when_clipped(norm.keep)
    when_built(norm.keep)
    return norm
