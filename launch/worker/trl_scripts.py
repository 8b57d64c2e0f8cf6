"""The scripts of TRL whose flags launch's entry takes, each with its trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import trl_kto

# Makes the rows that a trainer takes. It gets the splits, the name of the one that is trained on, that
# of the one that is evaluated (None without an evaluation) and the seed.
Prepare = Callable[[Any, str, str | None, int], Any]


@dataclass(frozen=True)
class Script:
    """One of TRL's scripts, whose flags are taken."""

    config: str  # the name of its dataclass
    trainer: str  # the name of its trainer
    # what makes the rows that the trainer takes of those that are loaded; None: nothing
    prepare: Prepare | None = None


SCRIPTS = {
    "trl.scripts.sft": Script("SFTConfig", "SFTTrainer"),
    "trl.scripts.dpo": Script("DPOConfig", "DPOTrainer"),
    "trl.scripts.kto": Script("KTOConfig", "KTOTrainer", trl_kto.prepare_rows),
    "trl.scripts.grpo": Script("GRPOConfig", "GRPOTrainer"),
}
