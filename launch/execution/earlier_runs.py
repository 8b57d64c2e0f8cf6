"""Find an earlier run of a plan's settings in another folder, and say why the plan is a new run.

A run's name carries the plan's identity, so that changed inputs give another folder: it is never
trained anew without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.execution.record.outcome import folder_status
from launch.execution.record.run import Run, mapping
from launch.planning.plan import Plan

# width and identity; of an archived run a date follows
_DEFAULT_NAME = re.compile(r"[a-z0-9]+-[0-9a-f]{8}")
# keys of config.yaml that describe how a run is started and watched, and not what it trains; the
# width and the Python packages are compared as plan.json records them, or not at all
_NOT_TRAINED = frozenset(
    (
        "name",
        "runs",
        "cache",
        "restart",
        "detach",
        "cache_only",
        "report",
        "evaluate",
        "python",
        "allow",
        "expandable_segments",
        "nodes",
        "gpus",
        "device",
        "processes",
        "cluster",
        "upstream",
        "guards",
        "gates",
        "rollout",
        "bench",
        "tune",
        "tuned",
        "tracking",
        "tracking_project",
        "tracking_entity",
        "stage.description",
        "stage.tasks",
        "model.trained_by",
        "trainer.why",
        "trainer.refused",
        "trainer.unread",
        "trainer.refused_values",
        "trainer.inert",
    )
)


def note_earlier_run(plan: Plan, say: Callable[[str], None]) -> None:
    """Say why a plan is a new run, if the newest other run of its settings is in another folder.

    Nothing is said of a plan whose folder the user named, or whose folder is there already.
    """
    if plan.config.name or plan.config.cache_only or folder_status(plan.folder) != "absent":
        return
    run = next(_runs_of_settings(plan), None)
    if run is not None:
        reason = changed_inputs(run, plan) or f"another identity, {run.plan.get('identity')}"
        say(
            f"{run.folder} has the same settings, but {reason}: this is a new run, in {plan.folder}"
        )


def changed_inputs(run: Run, plan: Plan) -> str | None:
    """Return which inputs of a recorded plan have changed since, in words: local files, or
    upstream's source.
    """
    before, after = mapping(run.plan.get("upstream")).get("commit"), plan.upstream.commit
    if before != after:
        commits = [str(commit)[:9] if commit else "no known commit" for commit in (before, after)]
        return f"open-instruct was at {commits[0]} and is at {commits[1]}"
    then, now = _digests(mapping(run.plan.get("inputs"))), _digests(plan.input_digests)
    names = sorted({name for name, _ in then ^ now})
    return f"{', '.join(names)} changed since" if names else None


def _digests(inputs: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return name and digest of each input; a model that another run makes is compared by its path
    alone.
    """
    names = ((Path(path).name, str(digest)) for path, digest in inputs.items())
    return {(name, digest) for name, digest in names if not digest.startswith("run-")}


def _runs_of_settings(plan: Plan) -> Iterator[Run]:
    """Yield the runs of the stage with these settings and a default name, the newest first."""
    folders = (
        path for path in (plan.runs / plan.stage).glob("*/") if _DEFAULT_NAME.fullmatch(path.name)
    )
    plans = [
        path / "plan.json"
        for path in folders
        if path != plan.folder and (path / "plan.json").is_file()
    ]
    for path in sorted(plans, key=lambda path: path.stat().st_mtime, reverse=True):
        run = Run(path.parent)
        if run.other_format is None and _has_settings(run, plan):
            yield run


def _has_settings(run: Run, plan: Plan) -> bool:
    width = (
        mapping(run.plan.get("batch")).get("width"),
        mapping(run.plan.get("parallel")).get("device"),
    )
    if width != (plan.batch.width, plan.parallel.width.device.value):
        return False
    return training_settings(run.settings) == training_settings(plan.resolved)


def training_settings(
    config: Mapping[str, Any], *, with_trainer: bool = True, prefix: str = ""
) -> dict[str, Any]:
    """Return what decides the training, by dotted key."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if key in _NOT_TRAINED or (key == "trainer" and not with_trainer):
            continue
        if isinstance(value, Mapping) and value:
            settings |= training_settings(value, with_trainer=with_trainer, prefix=f"{key}.")
        else:
            settings[key] = value
    return settings
