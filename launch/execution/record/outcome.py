"""How a run ended: DONE and FAILED, and what it measured on its validation data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from launch.files import load_json, open_file, parse_json_lines
from launch.worker.json_codec import from_json

FolderStatus = Literal["absent", "unfinished", "done", "failed"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    exit_code: int  # of launch.errors
    seconds: float  # wall time
    steps: int  # optimizer steps done: as the worker counted them, else the last logged one
    last_loss: float | None
    ended_processes: int = 0  # that the tear-down had to end
    # when it was recorded, as 2026-11-22T18:04:11Z
    finished: str | None = field(default=None, compare=False)
    planned_steps: int | None = None  # as the trainer reported them
    samples: int | None = None  # trained in this attempt by all ranks; None if nothing counts them
    cause: str | None = None  # one sentence
    detail: tuple[str, ...] = ()  # at most 15 lines
    cause_id: str | None = None  # of a known cause, as is `cure`
    cure: str | None = None
    # the verdict that stopped the run: `id`, `message`, `numbers`
    guard: Mapping[str, Any] | None = None
    checkpoint: str | None = None  # the folder of the last good one, where a guard stopped the run
    stacks: tuple[str, ...] = ()  # files with each rank's stack
    validation: ValidationRecord | None = None  # of a run that evaluated while it trained
    afterwards: str | None = None  # what failed after the model was saved: an evaluation, a push
    model: Mapping[str, Any] | None = None  # digests of its files (launch/planning/saved_model.py)


def folder_status(folder: Path) -> FolderStatus:
    """Return the state of the run: absent (no folder, or an empty one), done, failed or unfinished.

    An empty or unreadable DONE or FAILED counts as none.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return "absent"
    if _is_marked(folder / "DONE"):
        return "done"
    return "failed" if _is_marked(folder / "FAILED") else "unfinished"


def _is_marked(marker: Path) -> bool:
    try:
        return isinstance(load_json(marker), dict)
    except (OSError, ValueError):
        return False


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome in DONE or FAILED; None if there is no readable one."""
    for name in ("DONE", "FAILED"):
        try:
            outcome = from_json(Outcome, load_json(folder / name))
        except (OSError, ValueError):
            continue
        if (outcome.exit_code == 0) == (name == "DONE"):
            return outcome
    return None


def describe_cure(outcome: Outcome) -> str:
    """Return the line that shows the cure of a known cause."""
    possibly = "possibly: "
    text = str(outcome.cure)
    line = text if text.startswith(possibly) else f"cure: {text}"
    return f"{line} [{outcome.cause_id}]" if outcome.cause_id else line


@dataclass(frozen=True)
class ValidationLoss:
    """The loss on the validation data after a step; NaN is possible."""

    step: int
    eval_loss: float


@dataclass(frozen=True)
class BestValidationLoss(ValidationLoss):
    """The evaluation with the lowest loss."""

    checkpoint: str | None  # its folder in the model folder, while it is there
    is_model: bool = False  # whether the run's model is that checkpoint


@dataclass(frozen=True)
class ValidationRecord(ValidationLoss):
    """The last evaluation of a run, and the best one."""

    best: BestValidationLoss | None = None  # None if no loss is finite
    early_stop: str | None = None  # why the run ended before its last step

    def describe(self) -> str:
        """Return `eval_loss 1.5432, best 1.5001 at step 40 (checkpoint-40)`."""
        text, best = f"eval_loss {self.eval_loss:.4f}", self.best
        if best is None:
            return text
        saved = (
            f" ({best.checkpoint}{', which is the model' if best.is_model else ''})"
            if best.checkpoint
            else ""
        )
        return f"{text}, best {best.eval_loss:.4f} at step {best.step}{saved}"


def read_validation(
    folder: Path, *, loads_best: bool = False, early_stop: str | None = None
) -> ValidationRecord | None:
    """Return the evaluations of the run in `folder`; None without any.

    `loads_best`: whether its trainer ends with the best checkpoint as the model.
    """
    try:
        with open_file(folder / "metrics.jsonl") as file:
            lines = [line for line in file if b'"eval_loss"' in line]
    except OSError:
        return None
    evaluations = []
    for entry in parse_json_lines(lines):
        with contextlib.suppress(ValueError):  # not a logged evaluation
            evaluations.append(from_json(ValidationLoss, entry))
    if not evaluations:
        return None
    last, finite = (
        evaluations[-1],
        [found for found in evaluations if math.isfinite(found.eval_loss)],
    )
    lowest, best = min(finite, key=lambda found: found.eval_loss, default=None), None
    if lowest is not None:
        name = f"checkpoint-{lowest.step}"
        checkpoint = name if (folder / "model" / name).is_dir() else None
        best = BestValidationLoss(
            lowest.step, lowest.eval_loss, checkpoint, loads_best and checkpoint is not None
        )
    return ValidationRecord(last.step, last.eval_loss, best, early_stop)
