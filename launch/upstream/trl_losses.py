"""The names of the losses of the installed TRL, read from its trainers' sources."""

from __future__ import annotations

import re
import sys
from functools import cache

from launch.host.interpreter import package_folders

# The trainers whose parsers take any name, which the trainer refuses at its first batch.
_SOURCES = {"trl_dpo": "dpo_trainer.py", "trl_grpo": "grpo_trainer.py"}
_COMPARED = re.compile(r"""loss_type (?:==|in) ("\w+"|\[[^\]]*\])""")


@cache
def trl_losses(trainer: str, python: str = sys.executable) -> tuple[str, ...]:
    """Return the names that a trainer of TRL compares --loss_type with; none without a TRL, and for a
    trainer whose parser knows them.
    """
    if trainer not in _SOURCES:
        return ()
    for folder in package_folders(python):
        source = folder / "trl" / "trainer" / _SOURCES[trainer]
        if source.is_file():
            names: set[str] = set()
            for compared in _COMPARED.findall(source.read_text(encoding="utf-8", errors="replace")):
                names.update(re.findall(r"\w+", compared))
            return tuple(sorted(names))
    return ()
