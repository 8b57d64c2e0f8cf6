"""Looks once, when the first optimizer step is due; what was asked for and is not so ends the rank there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..channel import Events
from ..expectations import Asked, Unmet
from ..trainer import Trainer
from . import attention, batches, global_batches, liger, numbers, resume, subject, template
from .finding import PROVEN, REFUTED, Finding
from .subject import Subject


class Watch:
    """Follows one trainer up to its first optimizer step. `allowed`: ids of unmet expectations that only warn."""

    def __init__(self, asked: Asked, allowed: frozenset[str], program: Trainer, events: Events) -> None:
        self._asked, self._allowed, self._program, self._events = asked, allowed, program, events
        self._first: batches.Fed | None = None
        self._loaded: str | None = None
        self._clipped: float | None = None
        self._subject: Subject | None = None
        self._settled = False

    def model_prepared(self, model: Any) -> None:
        """Has the inputs of the model's first forward pass seen."""

        def see(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            handle.remove()
            positional = {"input_ids": arguments[0]} if arguments else {}
            self._first = batches.fed({**positional, **named})

        handle = subject.unwrap(model).register_forward_pre_hook(see, with_kwargs=True)

    def state_loaded(self, folder: object) -> None:
        """`Accelerator.load_state` was given this folder."""
        self._loaded = str(folder) if folder is not None else "the newest checkpoint"

    def gradients_clipped(self, norm: float) -> None:
        """The trainer clips at `norm`; infinity only measures."""
        self._clipped = float(norm) if norm != float("inf") else self._clipped

    def backward_begins(self, accelerator: Any) -> None:
        """The first micro batch went through the model: everything but the clipping can be looked at."""
        if self._subject is not None:
            return
        self._subject = subject.find(accelerator, self._loaded)
        self._settle(self.look(self._subject))
        if self._subject.engine is not None:  # which clips and steps within backward()
            self._settle([numbers.clipping(self._subject, None, self._asked.evidence.get("clip"))])
            self._settled = True

    def step_begins(self) -> None:
        """The first optimizer step of a trainer without DeepSpeed: what it clipped at is known."""
        if self._settled or self._subject is None:
            return
        self._settled = True
        self._settle([numbers.clipping(self._subject, self._clipped, self._asked.evidence.get("clip"))])

    def look(self, this: Subject) -> list[Finding]:
        """Every finding but the clipping."""
        asked = self._asked.evidence
        packing = batches.look(this, self._first, asked.get("packing"))
        kind = packing[0].value if packing else None
        return [
            *numbers.zero(this, self._asked.state.zero_stage),
            *liger.look(this, asked.get("liger")),
            *packing,
            *global_batches.look(this, self._first, asked.get("balanced"), asked.get("loss_averaging")),
            *attention.look(this, self._first, kind, asked.get("attention")),
            *numbers.dtypes(this, asked.get("dtype")),
            *numbers.checkpointing(this, asked.get("gradient_checkpointing")),
            *template.look(this, self._program, asked.get("chat_template")),
            *resume.look(this, asked.get("resumed_step")),
        ]

    def _settle(self, findings: Sequence[Finding]) -> None:
        settle(findings, self._allowed, self._events)


def settle(findings: Sequence[Finding], allowed: frozenset[str], events: Events) -> None:
    """Tells what was found, and ends the rank for what was asked and is not proven, but for the ids in `allowed`.

    Raises Unmet.
    """
    for finding in findings:
        events.emit("evidence", **finding.fields())
    unmet = [finding for finding in findings if finding.verdict not in (None, PROVEN)]
    stopping = [finding for finding in unmet if identifier(finding) not in allowed]
    for finding in unmet:
        if finding not in stopping:
            events.warn(f"{sentence(finding)} [{identifier(finding)}], allowed")
    if stopping:
        ids = [identifier(finding) for finding in stopping]
        told = "; ".join(f"{sentence(finding)} [{identifier(finding)}]" for finding in stopping)
        message = f"{told}; allow=[{','.join(ids)}] runs it all the same"
        events.error(message, type="Unmet", ids=ids)
        raise Unmet(message)


def identifier(finding: Finding) -> str:
    """The id of an unmet expectation, the word that `allow=[id]` takes: "refuted_liger", "unproven_packing"."""
    return f"{finding.verdict}_{finding.what}"


def sentence(finding: Finding) -> str:
    """What was asked and what is there, in words."""
    why = f" ({finding.note or finding.how})"
    if finding.verdict == REFUTED:
        return f"asked for {finding.what}={finding.requested}, the trainer has {finding.value}{why}"
    return f"asked for {finding.what}={finding.requested}, and nothing here proves it{why}"
