"""The entry over TRL as a plan sees it: TRL's version, the entry's options, and the dataclasses of
the options that take JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

TRL_VERSION = "1.16"  # the minor version that the entry was written for


@dataclass(frozen=True)
class EntryOption:
    """An option of the entry, in addition to the trainer's own flags."""

    meaning: str
    takes_value: bool = True


# The values of the option `learns`.
LEARNS_LAST = "last"
LEARNS_MARKED = "marked"
LEARNS_TEXT = "text"

OPTIONS: Mapping[str, EntryOption] = MappingProxyType(
    {
        "learns": EntryOption(
            "learns the last answer of each row, those that the rows mark, or plain text"
        ),
        "validation": EntryOption("holds out this share of data that launch has not split itself"),
        # The subset is taken after the validation rows are held out, since it may repeat rows.
        "subset": EntryOption(
            "trains on this share or number of rows: those that open-instruct would take"
        ),
        "mixture": EntryOption("trains on these data sets, each with its share of rows, in JSON"),
        "chat_template": EntryOption(
            "sets the template of this file, for a trainer without a flag for it"
        ),
        "continue_adapter": EntryOption(
            "continues to train the adapter that the model's folder holds, on its base; "
            "DPO's reference is a frozen copy of it",
            takes_value=False,
        ),
        "adapter_init": EntryOption("starts the adapter's matrices as PEFT's init_lora_weights"),
        "early_stop": EntryOption("ends after this many evaluations without a lower loss"),
        "samples": EntryOption(
            "answers three fixed prompts every so many steps (RLVR: records ten)"
        ),
        "verifier": EntryOption("rewards completions by these verifiers, weighted, in JSON"),
        "lengths": EntryOption(
            "writes the lengths of the tokenised samples to this file, for the next plan"
        ),
        "preview": EntryOption(
            "hands the tokenised samples over, as this file requests, and ends before a model is "
            "loaded"
        ),
    }
)

# The source of the validation rows: a share that the entry splits off, a staged split, or none.
HoldsOut = Literal["split", "staged", "none"]


@dataclass(frozen=True)
class MixturePart:
    """One of several data sets that are trained on, in the option `mixture`."""

    name: str  # a hub id, or a folder
    split: str
    share: str  # share of its rows, with a decimal point
    holds_out: HoldsOut
    # The share of the rows in a validation set of its own, and the name of that set's metrics.
    validation: str | None = None
    curve: str | None = None


# This name in the option `verifier` means that each row names its verifier in the column `dataset`.
BY_ROW = "rows"


@dataclass(frozen=True)
class VerifierOption:
    """The value of the option `verifier`."""

    verifiers: Mapping[str, float]  # name -> weight
    seconds: float  # time limit of a call
    window: int  # tokens of a prompt and its response
    # The reward of a completion without an end token; None means that the verifiers score it.
    truncated_reward: float | None = None

    def names_in(self, datasets: Iterable[object]) -> dict[str, float]:
        """Return the verifiers with their weights, `rows` replaced by those that the column
        `dataset` names.
        """
        names = dict(self.verifiers)
        if BY_ROW not in names:
            return names
        return dict.fromkeys(sorted(set(map(verifier_of, datasets))), names.pop(BY_ROW)) | names

    def judges(self, name: str, row: Mapping[str, Any]) -> bool:
        """Whether the verifier `name` scores the answers to a row."""
        return name in self.verifiers or verifier_of(row["dataset"]) == name


def verifier_of(dataset: object) -> str:
    """Return the verifier that a row names: upstream's mixtures write `MATH` and `gsm8k`."""
    return str(dataset).lower()


def is_own(name: str) -> bool:
    """Whether the name of a verifier is PATH.py:FUNCTION."""
    return ".py:" in name
