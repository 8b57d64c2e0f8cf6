"""`RunStatus`: the state of a run, which `launch status` lists and the Python API returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.execution.record.lock import Holder
from launch.execution.record.outcome import Outcome, ValidationRecord
from launch.worker.finding import Finding


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, from its files and its lock."""

    path: Path
    name: str
    # The state is running, done, failed, stopped (by the user), unfinished (it ended without
    # recording an outcome) or absent.
    state: str
    since: float  # unix seconds: when it began (running) or ended
    holder: Holder | None = None
    heartbeat: float | None = None  # seconds since the holder's last heartbeat
    phase: str | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    reward: float | None = None  # the reward of an RLVR run
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    outcome: Outcome | None = None
    validation: ValidationRecord | None = None  # the evaluations so far, while it runs
    other_format: Finding | None = None  # the problem of a record that may be misread

    def __repr__(self) -> str:
        parts = [f"{self.name}: {self.state}"]
        if self.step:
            total = f"/{self.total_steps}" if self.total_steps else ""
            parts.append(f"step {self.step}{total}")
        if self.reward is not None:
            parts.append(f"reward {self.reward:.4f}")
        elif self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        return f"<{', '.join(parts)}>"

    def json_fields(self) -> dict[str, Any]:
        holder_fields = ("pid", "host", "user")
        return {
            "run": self.name,
            "folder": str(self.path),
            "state": self.state,
            "since": round(self.since, 3),
            **{name: getattr(self.holder, name, None) for name in holder_fields},
            "heartbeat_seconds": None if self.heartbeat is None else round(self.heartbeat, 1),
            "phase": self.phase,
            "step": self.step,
            "total_steps": self.total_steps,
            "loss": self.loss,
            "reward": self.reward,
            "reward_trend": self.outcome.reward if self.outcome else None,
            "tokens_per_second": self.tokens_per_second,
            "validation": self.validation,
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 1),
            "exit_code": self.outcome.exit_code if self.outcome else None,
            **self._explanation(),
        }

    def _explanation(self) -> dict[str, str | None]:
        """Return why the run ended, or, if its folder has another format, why it may be misread."""
        finding = self.other_format
        if finding is None and self.outcome is not None:
            finding = self.outcome.finding
        if finding is None:
            return {"cause": None, "cause_id": None, "cure": None}
        cure = str(finding.cure) if finding.cure else None
        return {"cause": finding.message, "cause_id": finding.id or None, "cure": cure}
