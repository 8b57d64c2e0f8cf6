"""Calls back when the trainer builds its first accelerate `Accelerator` or prepares its first model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .replacing import replaces

_on_built: list[Callable[[Any], None]] = []
_on_prepared: list[Callable[[Any], None]] = []


def when_built(callback: Callable[[Any], None]) -> None:
    """Register `callback(accelerator)`; each callback is called once, in the order of registration.

    open-instruct's scripts build the Accelerator themselves; TRL leaves it to transformers' Trainer (trainer.py,
    `create_accelerator_and_postprocess`). A trainer that builds none never calls back.
    """
    from accelerate import Accelerator

    if not getattr(Accelerator.__init__, "hooked_by_launch", False):

        @replaces(Accelerator, "__init__")
        def build_and_notify(build: Any, self: Any, *arguments: Any, **options: Any) -> None:
            build(self, *arguments, **options)
            while _on_built:
                _on_built.pop(0)(self)

        build_and_notify.hooked_by_launch = True  # type: ignore[attr-defined]
    _on_built.append(callback)


def when_prepared(callback: Callable[[Any], None]) -> None:
    """Register `callback(model)` for the first model that is prepared together with an optimizer.

    The model is passed as the trainer handed it in, without accelerate's wrappers. Each callback is called once, in the
    order of registration.
    """
    from accelerate import Accelerator

    if not getattr(Accelerator.prepare, "hooked_by_launch", False):

        @replaces(Accelerator, "prepare")
        def prepare_and_notify(prepare: Any, self: Any, *arguments: Any, **options: Any) -> Any:
            prepared = prepare(self, *arguments, **options)
            models = [argument for argument in arguments if hasattr(argument, "named_modules")]
            while _on_prepared and models and any(map(_is_optimizer, arguments)):
                _on_prepared.pop(0)(models[0])
            return prepared

        prepare_and_notify.hooked_by_launch = True  # type: ignore[attr-defined]
    _on_prepared.append(callback)


def _is_optimizer(argument: Any) -> bool:
    return "Optim" in type(argument).__name__ or hasattr(argument, "param_groups")
