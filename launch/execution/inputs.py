"""Compare a run's local inputs with those that were planned: before its start, and at its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from launch.errors import UserError
from launch.execution.display import Display
from launch.execution.record.attempts import latest_attempt
from launch.execution.record.events import Event
from launch.execution.record.folder import RunFolder
from launch.files import append_json
from launch.planning.plan import Plan
from launch.planning.read_files import LoadedFiles, describe_later, snapshot_inputs
from launch.planning.saved_model import find_start_changes
from launch.worker.json_codec import versioned


def refuse_changed_model(plan: Plan) -> None:
    """Refuse a model that is not the one that its run saved.

    The plan can't have checked it, since a stage of a pipeline is planned before the model exists.
    Raises UserError: model_changed, base_changed.
    """
    changes = find_start_changes(plan.inputs.model, plan.machine.digests.of)
    problems = [change for change in changes if change.id not in plan.config.allow]
    if problems:
        raise UserError(problems)


def snapshot_files(plan: Plan, proven: Mapping[Path, str]) -> LoadedFiles:
    """Return the files that the plan's processes are to load, as they are now.

    `proven`: the digests of what the verifiers used in the reward proof.

    Raises UserError: input_changed.
    """
    digests = plan.machine.digests
    inputs = snapshot_inputs(plan, digests.of, proven)
    digests.save()
    return LoadedFiles(inputs, digests.of)


def report_later_changes(folder: RunFolder, inputs: LoadedFiles, display: Display) -> None:
    """Report and record the inputs that have changed since they were loaded as planned."""
    changes = inputs.find_later_changes()
    if not changes:
        return
    message = describe_later(changes)
    display.say(f"warning: {message}")
    attempt = max(1, latest_attempt(folder.path))
    event = Event("warning", time.time(), 0, {"message": message}, attempt)
    with contextlib.suppress(OSError):
        append_json(folder.events, versioned(event))
