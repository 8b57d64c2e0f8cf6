"""Calls back once the trainer has built its first accelerate `Accelerator`, whoever builds it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

_waiting: list[Callable[[Any], None]] = []


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
