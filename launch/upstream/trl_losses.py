"""The names of DPO's losses in the installed TRL, read from its trainer's source."""

from __future__ import annotations

import re
import sys
from functools import cache

from launch.host.interpreter import package_folders

_COMPARED = re.compile(r"""loss_type == ["'](\w+)["']""")


@cache
def dpo_losses(python: str = sys.executable) -> tuple[str, ...]:
    """Return the names that TRL's DPOTrainer compares --loss_type with; none without a TRL."""
    for folder in package_folders(python):
        source = folder / "trl" / "trainer" / "dpo_trainer.py"
        if source.is_file():
            names = _COMPARED.findall(source.read_text(encoding="utf-8", errors="replace"))
            return tuple(sorted(set(names)))
    return ()
