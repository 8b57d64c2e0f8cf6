"""The table of the kinds of stages: one row a kind, with what the layers need to know of it; and the
formats of local rows.

A new kind needs a value of `Kind`, a row here, and code where its data rows are read or judged
differently from those of other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

_PAIR = ("chosen", "rejected")


class Kind(StrEnum):
    """What a stage optimises: supervised fine-tuning, direct preference optimisation, answers with
    a label each, a reward model, or answers that a verifier rewards.
    """

    sft = "sft"
    dpo = "dpo"
    kto = "kto"
    rm = "rm"
    rlvr = "rlvr"


class DataFormat(StrEnum):
    """The shape of the rows of local data."""

    auto = "auto"  # recognised by the columns
    chat = "chat"  # messages with role and content
    alpaca = "alpaca"  # instruction, input, output
    sharegpt = "sharegpt"  # conversations with from and value
    prompt_completion = "prompt_completion"
    preference = "preference"  # chosen and rejected, with or without prompt
    prompts = "prompts"  # prompt or messages, and the ground_truth that a verifier compares with
    text = "text"  # plain text, every token of which is learnt


@dataclass(frozen=True)
class KindRow:
    """What is known of one kind of stage."""

    name: str  # in a sentence
    unit: str  # what recipe.global_batch_size counts; a pair has two sequences
    data: Kind  # the kind of the data that it is trained on
    conversations: tuple[str, ...]  # the staged columns that hold a conversation
    converted: str  # what local rows are converted to
    expected: str  # the columns that local rows may have
    recipe: str  # what the shipped stage of the same name is
    trainer: str | None = None  # TRL's trainer
    demo: str | None = None  # the stage of the demo's model
    evaluates: bool = False  # whether TRL's trainer computes the loss of held-out rows
    judged: bool = False  # whether `eval` scores the model by rows that the run held out
    loss_falls: bool = True  # whether the loss shows progress; RLVR's is 0 by construction

    @property
    def is_paired(self) -> bool:
        """Whether a row is a pair of answers."""
        return self.conversations == _PAIR

    @property
    def has_answers(self) -> bool:
        """Whether a row is a conversation with its answer."""
        return self.conversations == ("messages",)

    @property
    def sequences(self) -> int:
        """The sequences of a sample in a forward pass."""
        return len(self.conversations)


KINDS: Mapping[Kind, KindRow] = MappingProxyType(
    {
        Kind.sft: KindRow(
            "SFT",
            "sample",
            Kind.sft,
            ("messages",),
            "messages",
            "messages, conversations, instruction and output, or prompt and completion",
            "the Tulu 3 SFT recipe",
            trainer="trl_sft",
            demo="demo",
            evaluates=True,
            judged=True,
        ),
        Kind.dpo: KindRow(
            "DPO",
            "pair",
            Kind.dpo,
            _PAIR,
            "chosen and rejected",
            "chosen and rejected, with or without prompt",
            "the Tulu 3 DPO recipe",
            trainer="trl_dpo",
            demo="demo_dpo",
            evaluates=True,
            judged=True,
        ),
        Kind.kto: KindRow(
            "KTO",
            "sample",
            Kind.kto,
            ("messages",),
            "messages and label",
            "messages, conversations, instruction and output, or prompt and completion; and label, "
            "true or false",
            "KTO with TRL's numbers",
            trainer="trl_kto",
            demo="demo_kto",
            evaluates=True,
            judged=True,
        ),
        Kind.rm: KindRow(
            "a reward model",
            "pair",
            Kind.dpo,  # the preferences of DPO
            _PAIR,
            "chosen and rejected",
            "chosen and rejected, with or without prompt",
            "the Tulu 3 reward model's recipe",
        ),
        Kind.rlvr: KindRow(
            "RLVR",
            "completion",
            Kind.rlvr,
            ("prompt",),
            "prompt, ground_truth and the other columns",
            "prompt or messages, and ground_truth",
            "the Tulu 3 RLVR recipe",
            trainer="trl_grpo",
            demo="demo_rlvr",
            judged=True,
            loss_falls=False,
        ),
    }
)
