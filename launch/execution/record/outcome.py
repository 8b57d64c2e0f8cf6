"""How a run ended: DONE and FAILED, and what it measured on its validation data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    planned_steps: int | None = None  # as the trainer reported them
    samples: int | None = None  # trained in this attempt by all ranks; None if nothing counts them
    ended_processes: int = 0  # that the tear-down had to end
    cause: str | None = None  # one sentence
    detail: tuple[str, ...] = ()  # at most 15 lines
    cause_id: str | None = None  # of a known cause, as is `cure`
    cure: str | None = None
    guard: Mapping[str, Any] | None = None  # the verdict that stopped the run: `id`, `message`, `numbers`
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
            content = load_json(folder / name)
            validation = parse_validation(content.get("validation"))
            outcome = replace(from_json(Outcome, {**content, "validation": None}), validation=validation)
        except (OSError, ValueError, AttributeError):
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


_LOSS = "eval_loss"


@dataclass(frozen=True)
class Evaluation:
    """The loss on the validation data after a step; NaN is possible."""

    step: int
    loss: float

    def as_json(self) -> dict[str, Any]:
        return {"step": self.step, _LOSS: self.loss}


@dataclass(frozen=True)
class ValidationRecord:
    """The evaluations of a run."""

    last: Evaluation
    best: Evaluation | None  # the lowest loss; None if none is finite
    checkpoint: str | None  # folder of the best evaluation's checkpoint in the model folder, while it is there
    is_model: bool = False  # whether the run's model is that checkpoint
    early_stop: str | None = None  # why the run ended before its last step

    def describe(self) -> str:
        """Return `eval_loss 1.5432, best 1.5001 at step 40 (checkpoint-40)`."""
        text = f"{_LOSS} {self.last.loss:.4f}"
        if self.best is None:
            return text
        saved = f" ({self.checkpoint}{', which is the model' if self.is_model else ''})" if self.checkpoint else ""
        return f"{text}, best {self.best.loss:.4f} at step {self.best.step}{saved}"

    def as_json(self) -> dict[str, Any]:
        """Return the object in DONE and FAILED."""
        best = {**self.best.as_json(), "checkpoint": self.checkpoint, "is_model": self.is_model} if self.best else None
        stop = {"early_stop": self.early_stop} if self.early_stop else {}
        return {**self.last.as_json(), "best": best, **stop}


def read_evaluations(metrics: Path) -> list[Evaluation]:
    """Return the evaluations in metrics.jsonl, in its order."""
    try:
        with open_file(metrics) as file:
            lines = [line for line in file if b'"eval_loss"' in line]
    except OSError:
        return []
    return [found for entry in parse_json_lines(lines) if entry and (found := _parse_evaluation(entry))]


def read_validation(
    folder: Path, *, loads_best: bool = False, early_stop: str | None = None
) -> ValidationRecord | None:
    """Return the evaluations of the run in `folder`; None without any.

    `loads_best`: whether its trainer ends with the best checkpoint as the model.
    """
    evaluations = read_evaluations(folder / "metrics.jsonl")
    if not evaluations:
        return None
    finite = [evaluation for evaluation in evaluations if math.isfinite(evaluation.loss)]
    best = min(finite, key=lambda evaluation: evaluation.loss, default=None)
    name = f"checkpoint-{best.step}" if best else None
    checkpoint = name if name and (folder / "model" / name).is_dir() else None
    return ValidationRecord(evaluations[-1], best, checkpoint, loads_best and checkpoint is not None, early_stop)


def parse_validation(content: object) -> ValidationRecord | None:
    """Return the record that `as_json` wrote; None if `content` is not one."""
    if not isinstance(content, Mapping) or (last := _parse_evaluation(content)) is None:
        return None
    best = content["best"] if isinstance(content.get("best"), Mapping) else {}
    checkpoint, stop = (str(text) if text else None for text in (best.get("checkpoint"), content.get("early_stop")))
    return ValidationRecord(last, _parse_evaluation(best), checkpoint, best.get("is_model") is True, stop)


def _parse_evaluation(entry: Mapping[str, Any]) -> Evaluation | None:
    step, loss = entry.get("step"), entry.get(_LOSS)
    if loss is None and isinstance(entry.get(f"{_LOSS}_text"), str):
        loss = math.nan
    if isinstance(loss, bool) or not isinstance(loss, (int, float)) or not isinstance(step, int):
        return None
    return Evaluation(step, float(loss))
