"""The patches: the differences from upstream that a trainer needs, each with an id, a reason and
checked sources.

A patch is a `PatchInfo` in a module of this folder. Importing this package imports neither a
trainer nor torch, because the launcher records what a run changes. Which runs want a patch is in
`launch/planning/command.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from . import olmo_core, shared
from .patch import PatchContext, PatchError, PatchInfo, UpstreamSource, install

_MODULES = [
    importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
]
_PATCHES = (
    value for module in _MODULES for value in vars(module).values() if isinstance(value, PatchInfo)
)

PATCHES: Mapping[str, PatchInfo] = MappingProxyType({patch.id: patch for patch in _PATCHES})

# the patches that check the requested settings; each trainer has at most one
EVIDENCE_PATCHES = (shared.EVIDENCE.id, olmo_core.EVIDENCE.id)

__all__ = [
    "EVIDENCE_PATCHES",
    "PATCHES",
    "PatchContext",
    "PatchError",
    "PatchInfo",
    "UpstreamSource",
    "install",
]
