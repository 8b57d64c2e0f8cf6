"""The record of a trial: JSON of one form for all verbs, which others may read while it changes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from launch.errors import UserError, refusal
from launch.execution.record.format import add_restart_cure, format_problem
from launch.execution.record.run import mapping
from launch.files import archive_folder, load_json, read_json_object, write_file, write_json
from launch.planning.plan import Plan
from launch.trials.card_rate import CardRate
from launch.trials.measurement import Figures, Measurement, measurement_json
from launch.trials.view import read_trial
from launch.worker.json_codec import to_json, versioned


class State(StrEnum):
    """The state of a run, or of a whole trial, which has the first of these states of its runs."""

    interrupted = "interrupted"
    failed = "failed"  # it failed, could not be started, or a gate stopped it
    not_run = "not_run"  # there was no time left for it, or this machine cannot run it
    running = "running"
    submitted = "submitted"  # a Slurm job runs it
    planned = "planned"
    done = "done"  # it measured its steps, and passed the gates where it is a rollout's width


REFUSED = "refused"  # cause_id of a run that could not be started


@dataclass
class TrialRun:
    """One short run of one setting, and what it has measured so far."""

    label: str
    plan: Plan
    state: State = State.planned
    message: str | None = None  # why it failed, or did not run
    cause_id: str | None = None  # id of the failure's cause, where it is known
    reused: bool = False  # whether an earlier call measured it
    job_id: str | None = None  # id of the Slurm job that runs it
    steps: int | None = None  # its number of steps, if not that of the trial's other runs
    seconds: float | None = None  # duration of the whole run
    measured: Measurement | None = None
    figures: Figures | None = None  # figures computed from what it measured

    def json_fields(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "label": self.label,
            "state": self.state,
            "message": self.message,
            "cause_id": self.cause_id,
            "reused": self.reused,
            "job_id": self.job_id,
            "folder": plan.folder,
            "identity": plan.identity,
            "width": str(plan.parallel.width),
            "parallel": plan.parallel.mode,
            "precision": plan.parallel.precision,
            "batch": plan.batch,
            "seconds": self.seconds,
            "measured": measurement_json(self.measured, self.figures),
        }


R = TypeVar("R", bound=TrialRun)


def seconds_left(runs: Iterable[TrialRun], minutes: float | None) -> float | None:
    """Return the seconds left of a trial's `minutes` after these runs; None without a limit.

    The first run never has a limit.
    """
    used = [run.seconds for run in runs if run.seconds is not None]
    if minutes is None or not used:
        return None
    return 60 * minutes - sum(used)


def utc_now() -> str:
    """Return the time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass
class TrialRecord(ABC, Generic[R]):
    """A trial: what it plans and measures, how its runs are judged, and how it is recorded."""

    verb: ClassVar[str]
    # Whether a run's speed is the median over its steps instead of their mean.
    typical: ClassVar[bool] = False
    folder: Path  # <runs>/<stage>/<verb>-<id>
    plan: Plan  # plan of the first setting
    steps: int  # optimizer steps of each run
    warmup: int  # number of first steps of a run that do not count for its speed
    # The runs in the order in which they run.
    runs: list[R] = field(default_factory=list, kw_only=True)
    began: str = field(default_factory=utc_now, kw_only=True)
    updated: str = field(default_factory=utc_now, kw_only=True)  # the time of the last write

    @property
    def state(self) -> State:
        states = {run.state for run in self.runs}
        for state in State:
            if state in states:
                return state
        return State.done

    @property
    @abstractmethod
    def summary(self) -> list[str]:
        """The sentences of the verdict."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """Sentences that explain the numbers."""

    def accepts(self, run: R, measured: Measurement) -> bool:
        """Whether an earlier call's measurement of a run can be reused."""
        return measured.finished

    def judge(self, run: R) -> None:
        """Change the state of a run that has ended, if the verb has its own rules for it."""

    def update(self, run: R) -> Sequence[str]:
        """Compute what depends on a run that has changed; return the lines to print below the row
        of a run that has ended.
        """
        return ()

    def is_inspected(self, run: R) -> bool:
        """Whether this call has run the same setting already, so that no preflight is needed."""
        return False

    def rate(self, run: R) -> CardRate | None:
        """Return the peak rate of the GPU that a run is on, if it was measured."""
        return None

    def run_json(self, run: R) -> dict[str, Any]:
        """Return a run as the record has it."""
        fields: dict[str, Any] = to_json(run)
        return fields

    @property
    def rows(self) -> Sequence[R]:
        """The runs of the table."""
        return self.runs

    @property
    def started(self) -> bool:
        """Whether this call has run something."""
        return any(run.seconds is not None and not run.reused for run in self.runs)

    @property
    def path(self) -> Path:
        return self.folder / f"{self.verb}.json"

    @property
    def id(self) -> str:
        return self.folder.name.removeprefix(f"{self.verb}-")

    def json_fields(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "verb": self.verb,
            "id": self.id,
            "stage": plan.stage,
            "kind": plan.config.stage.kind,
            "trainer": plan.trainer,
            "upstream": plan.upstream.description,
            "model": plan.inputs.model.reference,
            "global_batch": plan.batch.global_,
            "state": self.state,
            "began": self.began,
            "updated": self.updated,
            "summary": [sentence for sentence in self.summary if sentence],
            "notes": self.notes,
            "runs": [self.run_json(run) for run in self.rows],
        }

    def file_content(self) -> dict[str, Any]:
        """Return the content of VERB.json: the record as JSON, its floats with seven digits."""
        rounded: dict[str, Any] = _rounded(versioned(self))
        return rounded

    def write(self) -> None:
        """Write VERB.json, VERB.txt and VERB.md; each file whole or not at all."""
        self.updated = utc_now()
        write_json(self.path, self.file_content())
        document = read_trial(self.folder)
        write_file(self.path.with_suffix(".txt"), document.text())
        write_file(self.path.with_suffix(".md"), document.markdown())


def read_earlier(
    folder: Path, verb: str, subject: Mapping[str, str], *, restart: bool
) -> dict[str, Any] | None:
    """Return what an earlier call recorded in the folder; None if there was none.

    With `restart` a record of another format is ignored, because `archive_other_format` moves it.
    `subject`: keys that the record must have, with their values.

    Raises UserError: other_format; other_trial, when the record cannot be read or has another
    subject.
    """
    path = folder / f"{verb}.json"
    try:
        earlier = mapping(load_json(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {type(error).__name__}"
        cure = "choose another name=, or move the folder"
        raise refusal("other_trial", message, "name", cure) from None
    problem = format_problem(path, earlier, verb)
    if problem is not None:
        if restart:
            return None
        raise UserError(add_restart_cure(problem))
    for key, value in subject.items():
        if earlier.get(key) != value:
            message = f"{folder} holds a {verb} of {key} {earlier.get(key)}, not of {key} {value}"
            raise refusal("other_trial", message, "name", "choose another name=, or leave it out")
    return earlier


def archive_other_format(folder: Path, verb: str, say: Callable[[str], None]) -> None:
    """Rename the folder of a trial whose record has another format, so that its place is free."""
    path = folder / f"{verb}.json"
    if not path.exists() or not format_problem(path, read_json_object(path), verb):
        return
    archive = archive_folder(folder)
    say(f"restart=true: the earlier {verb} is archived in {archive}")


def _rounded(value: Any) -> Any:
    """Round the floats in a JSON value to seven significant digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value
