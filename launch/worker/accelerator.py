"""Calls back once the trainer has built its first accelerate `Accelerator` or prepared a model, whoever does it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

_waiting: list[Callable[[Any], None]] = []
_waiting_for_model: list[Callable[[Any], None]] = []


def installed() -> bool:
    """Whether this interpreter has accelerate."""
    return importlib.util.find_spec("accelerate") is not None


def when_built(call: Callable[[Any], None]) -> None:
    """Registers `call(accelerator)`; each is called once, in the order of registration.

    open-instruct's scripts build one themselves; TRL leaves it to transformers' Trainer (trainer.py,
    `create_accelerator_and_postprocess`). A trainer that builds none never calls back.
    """
    from accelerate import Accelerator

    if not getattr(Accelerator.__init__, "tells_launch", False):
        build = Accelerator.__init__

        @functools.wraps(build)
        def build_and_tell(self: Any, *arguments: Any, **options: Any) -> None:
            build(self, *arguments, **options)
            calls = list(_waiting)
            _waiting.clear()
            for each in calls:
                each(self)

        build_and_tell.tells_launch = True  # type: ignore[attr-defined]
        Accelerator.__init__ = build_and_tell
    _waiting.append(call)


def when_prepared(call: Callable[[Any], None]) -> None:
    """Registers `call(model)` for the first model that is prepared together with an optimizer, as it was handed in:
    below what accelerate then puts around it. Each is called once, in the order of registration."""
    from accelerate import Accelerator

    if not getattr(Accelerator.prepare, "tells_launch", False):
        prepare = Accelerator.prepare

        @functools.wraps(prepare)
        def prepare_and_tell(self: Any, *arguments: Any, **options: Any) -> Any:
            prepared = prepare(self, *arguments, **options)
            models = [each for each in arguments if hasattr(each, "named_modules")]
            if models and any("Optim" in type(each).__name__ or hasattr(each, "param_groups") for each in arguments):
                calls = list(_waiting_for_model)
                _waiting_for_model.clear()
                for each in calls:
                    each(models[0])
            return prepared

        prepare_and_tell.tells_launch = True  # type: ignore[attr-defined]
        Accelerator.prepare = prepare_and_tell
    _waiting_for_model.append(call)
