"""The record of a bench, a rollout or a search: one JSON shape, rewritten while others read it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from launch.errors import Problem, UserError
from launch.files import load_json, write_file, write_json
from launch.planning.plan import Plan
from launch.trials.measurement import Measurement
from launch.trials.version_1 import upgrade
from launch.trials.view import SCHEMA_VERSION, build_document
from launch.worker.json_codec import to_json


class State(StrEnum):
    """The state of one run, and of a trial as a whole."""

    planned = "planned"
    running = "running"
    done = "done"  # it measured its steps; of a rollout's width: and passed the gates
    failed = "failed"  # or could not be started, or a gate stopped it
    not_run = "not_run"  # there was no time left for it, or this machine cannot run it
    submitted = "submitted"  # a Slurm job runs it
    interrupted = "interrupted"


_DECIDING = (State.interrupted, State.failed, State.not_run, State.running, State.submitted, State.planned)


def combine_states(states: Iterable[State]) -> State:
    """The state of a trial whose runs have these states."""
    present = set(states)
    return next((state for state in _DECIDING if state in present), State.done)


@dataclass
class TrialRun:
    """One short run of one setting, as far as it has come."""

    label: str
    plan: Plan
    state: State = State.planned
    message: str | None = None  # why it failed, or did not run
    reused: bool = False  # an earlier call measured it
    job_id: str | None = None  # of the Slurm job that runs it
    measured: Measurement | None = None

    def as_json(self) -> dict[str, Any]:
        plan, measured = self.plan, self.measured
        return {
            "label": self.label,
            "state": self.state,
            "message": self.message,
            "reused": self.reused,
            "folder": plan.folder,
            "identity": plan.identity,
            "width": str(plan.parallel.width),
            "parallel": plan.parallel.mode,
            "precision": plan.parallel.precision,
            "batch": plan.batch,
            "seconds": None if measured is None else measured.outcome.seconds,
        }


class TrialRecord(ABC):
    """What a bench, a rollout or a search records, and its text and Markdown beside it."""

    verb: ClassVar[str]
    folder: Path  # <runs>/<stage>/<verb>-<id>
    plan: Plan  # of the first setting
    began: str

    @property
    @abstractmethod
    def state(self) -> State: ...

    @property
    @abstractmethod
    def summary(self) -> list[str]:
        """The verdict, sentence by sentence."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """What to know about the numbers, sentence by sentence."""

    @abstractmethod
    def contents(self) -> dict[str, Any]:
        """The runs, and the keys of this verb."""

    @property
    def path(self) -> Path:
        return self.folder / f"{self.verb}.json"

    def as_json(self) -> dict[str, Any]:
        plan = self.plan
        record = {
            "schema_version": SCHEMA_VERSION,
            "verb": self.verb,
            "id": self.folder.name.removeprefix(f"{self.verb}-"),
            "stage": plan.stage,
            "kind": plan.config.stage.kind,
            "trainer": plan.trainer,
            "upstream": plan.upstream.description,
            "model": plan.inputs.model.reference,
            "global_batch": plan.batch.global_,
            "state": self.state,
            "began": self.began,
            "updated": utc_now(),
            "summary": [sentence for sentence in self.summary if sentence],
            "notes": self.notes,
            **self.contents(),
        }
        rounded: dict[str, Any] = _rounded(to_json(record))
        return rounded

    def write(self) -> None:
        """Write VERB.json, VERB.txt and VERB.md; each file whole or not at all."""
        write_json(self.path, self.as_json())
        document = build_document(load_json(self.path), self.folder)
        for suffix, content in ((".txt", document.text()), (".md", document.markdown())):
            write_file(self.path.with_suffix(suffix), content)


def read_earlier(folder: Path, verb: str, subject: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what an earlier call recorded in the folder; None if there was none.

    Raises UserError (other_trial) when that cannot be read, or is about another `subject`: keys and their values.
    """
    path = folder / f"{verb}.json"
    try:
        earlier = upgrade(verb, load_json(path))
        differing = [key for key, value in subject.items() if earlier[key] != value]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message, cure = f"{path} cannot be read: {type(error).__name__}", "choose another name=, or move the folder"
        raise UserError(Problem("other_trial", message, "name", cure)) from None
    if differing:
        key = differing[0]
        message = f"{folder} holds a {verb} of {key} {earlier[key]}, not of {key} {subject[key]}"
        raise UserError(Problem("other_trial", message, "name", "choose another name=, or leave it out"))
    return earlier


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """What differs between the environment of earlier runs and today's, so that they are not reused; None if nothing
    does, or there are none.

    >>> describe_changes({"torch": "2.11.0", "trl": "1.16.0"}, {"torch": "2.13.0", "trl": "1.16.0"})
    'torch was 2.11.0, is 2.13.0'
    """
    names = [name for name in {**before, **after} if before and before.get(name) != after.get(name)]
    return ", ".join(f"{name} was {before.get(name)}, is {after.get(name)}" for name in names) or None


def utc_now() -> str:
    """The time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _rounded(value: Any) -> Any:
    """Round the floats in a JSON value to seven significant digits."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
