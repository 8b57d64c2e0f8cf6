"""Read how a run ended, from DONE or FAILED, and the losses on its validation data."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from launch.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_STOPPED
from launch.execution.record.reward_trend import RewardTrend
from launch.files import load_json, open_file, parse_json_lines
from launch.terminal import join_lines
from launch.worker.finding import Finding
from launch.worker.json_codec import from_json

FolderStatus = Literal["absent", "unfinished", "done", "failed"]
EndState = Literal["done", "stopped", "interrupted", "failed"]
_END_STATES: dict[int, EndState] = {
    EXIT_DONE: "done",
    EXIT_STOPPED: "stopped",
    EXIT_INTERRUPTED: "interrupted",
}


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    exit_code: int  # one of launch.errors
    seconds: float  # wall time
    steps: int  # optimizer steps done: as the worker counted them, else the last logged one
    last_loss: float | None
    ended_processes: int = 0  # processes that were left, and had to be ended
    # The time at which it was recorded, as 2026-11-22T18:04:11Z.
    finished: str | None = field(default=None, compare=False)
    planned_steps: int | None = None  # the number that the trainer reported
    # The samples that all ranks trained on in this attempt; None if nothing counts them.
    samples: int | None = None
    cause: str | None = None  # one sentence
    detail: tuple[str, ...] = ()  # at most 15 lines
    cause_id: str | None = None  # the id of a known cause
    cure: str | None = None  # the cure of a known cause
    # The finding of the guard that stopped the run: `id`, `message`, `numbers`.
    guard: Mapping[str, Any] | None = None
    # The folder of the last good checkpoint, if a guard stopped the run.
    checkpoint: str | None = None
    stacks: tuple[str, ...] = ()  # files with each rank's stack
    validation: ValidationRecord | None = None  # None if the run did not evaluate
    reward: RewardTrend | None = None  # only of RLVR; None for a run of a few steps
    last_reward: float | None = None  # only of RLVR
    afterwards: str | None = None  # a failure after the model was saved, of an evaluation or a push
    # The digests of the model's files (launch/planning/saved_model.py).
    model: Mapping[str, Any] | None = None

    @property
    def state(self) -> EndState:
        """How the run ended, in a word: `stopped` by a guard or by evidence that was refuted."""
        return _END_STATES.get(self.exit_code, "failed")

    @property
    def result(self) -> str | None:
        """The trend of an RLVR run's reward, or the last one of a run of a few steps; the last loss of
        any other run; None without one.
        """
        if self.reward is not None:
            return self.reward.describe()
        if self.last_reward is not None:
            return f"last reward {self.last_reward:.4g}"
        return None if self.last_loss is None else f"last loss {self.last_loss:.4g}"

    @property
    def finding(self) -> Finding | None:
        """Why the run did not end as planned; None without a cause."""
        if self.cause is None:
            return None
        fields = {"id": self.cause_id, "message": self.cause, "cure": self.cure}
        return Finding.read({**(self.guard or {}), **fields})

    @property
    def cure_line(self) -> str | None:
        """The line with the cure of a known cause; None without one."""
        finding = self.finding
        return finding.cure_line if finding and finding.cure else None


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
            return _without_line_breaks(outcome)
    return None


def _without_line_breaks(outcome: Outcome) -> Outcome:
    """Make each sentence of a record one line, so that none looks like the line of another run."""
    return replace(
        outcome,
        cause=outcome.cause and join_lines(outcome.cause),
        detail=tuple(map(join_lines, outcome.detail)),
        cause_id=outcome.cause_id and join_lines(outcome.cause_id),
        cure=outcome.cure and join_lines(outcome.cure),
        afterwards=outcome.afterwards and join_lines(outcome.afterwards),
    )


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
    # The losses on several validation sets by name; `eval_loss` is their mean.
    sets: Mapping[str, float] = field(default_factory=dict)

    def describe(self) -> str:
        """Return `eval_loss 1.5432, best 1.5001 at step 40 (checkpoint-40)`."""
        text = f"eval_loss {self.eval_loss:.4f}"
        if self.best is None:
            return text
        if self.best.step != self.step:
            text += f", best {self.best.eval_loss:.4f} at step {self.best.step}"
        if self.best.checkpoint:
            role = ", which is the model" if self.best.is_model else ""
            text += f" ({self.best.checkpoint}{role})"
        return text


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
    last_sets: dict[str, float] = {}
    for entry in parse_json_lines(lines):
        with contextlib.suppress(ValueError):  # not a logged evaluation
            evaluations.append(from_json(ValidationLoss, entry))
            last_sets = _losses_by_set(entry)
    if not evaluations:
        return None
    finite = [evaluation for evaluation in evaluations if math.isfinite(evaluation.eval_loss)]
    best = None
    if finite:
        lowest = min(finite, key=lambda evaluation: evaluation.eval_loss)
        checkpoint = f"checkpoint-{lowest.step}"
        is_kept = (folder / "model" / checkpoint).is_dir()
        best = BestValidationLoss(
            lowest.step,
            lowest.eval_loss,
            checkpoint=checkpoint if is_kept else None,
            is_model=loads_best and is_kept,
        )
    last = evaluations[-1]
    return ValidationRecord(last.step, last.eval_loss, best, early_stop, last_sets)


def _losses_by_set(entry: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the losses of an evaluation on several validation sets, by the sets' names."""
    losses = {}
    for name, value in (entry or {}).items():
        metric, _, curve = name.partition("/")
        if metric == "eval_loss" and isinstance(value, float):
            losses[curve] = value
    losses.pop("", None)
    return losses
