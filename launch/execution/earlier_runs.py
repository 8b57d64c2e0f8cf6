"""Finds an earlier run with a plan's settings in another folder, and why the plan is a new run.

A run's name has the plan's identity, so changed inputs give another folder. A message then explains
why the training starts over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launch.execution.record.outcome import folder_status
from launch.execution.record.run import Run, mapping
from launch.planning.plan import Plan

# A default name has the width and the identity. An archived run, whose name ends with a date, does
# not match.
_DEFAULT_NAME = re.compile(r"[a-z0-9]+-[0-9a-f]{8}")
# Keys of config.yaml that describe the run folder and how it is used.
FOLDER_KEYS = (
    "name",
    "runs",
    "cache",
    "restart",
    "detach",
    "cache_only",
    "report",
    "evaluate",
)
# Keys of config.yaml that describe how a run is started and watched, and not what it trains. The
# width is compared as plan.json records it, and the Python packages are not compared.
_NOT_TRAINED = frozenset(
    (
        *FOLDER_KEYS,
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
        "trainer.unsupported_because",
        # Runs of earlier versions have recorded these sections of a trainer's file.
        "trainer.recipe",
        "trainer.fallback_values",
        "trainer.refused",
        "trainer.ignored_flags",
        "trainer.refused_values",
        "trainer.effective_only_with",
    )
)


def note_earlier_run(plan: Plan, say: Callable[[str], None]) -> None:
    """Report why a plan is a new run, if an earlier run of its settings is in another folder.

    Nothing is reported for a plan whose folder the user named, or whose folder exists already.
    """
    if plan.config.name or plan.config.cache_only or folder_status(plan.folder) != "absent":
        return
    run = _newest_run_of_settings(plan)
    if run is None:
        return
    reason = changed_inputs(run, plan) or f"another identity, {run.plan.get('identity')}"
    say(f"{run.folder} has the same settings, but {reason}: this is a new run, in {plan.folder}")


def changed_inputs(run: Run, plan: Plan) -> str | None:
    """Describe which inputs of a recorded plan have changed since: upstream's source, or local
    files; None if none have.
    """
    commit_before = mapping(run.plan.get("upstream")).get("commit")
    commit_now = plan.upstream.commit
    if commit_before != commit_now:
        before = _format_commit(commit_before)
        now = _format_commit(commit_now)
        return f"open-instruct was at {before} and is at {now}"
    digests_before = _digests(mapping(run.plan.get("inputs")))
    digests_now = _digests(plan.input_digests)
    changed = digests_before ^ digests_now
    names = sorted({name for name, _ in changed})
    return f"{', '.join(names)} changed since" if names else None


def _format_commit(commit: str | None) -> str:
    """Return the first nine digits of a commit."""
    return str(commit)[:9] if commit else "no known commit"


def _digests(inputs: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return (file name, digest) of each input.

    A model that another run makes is left out: its digest is that run's identity, and its path is
    compared with the settings.
    """
    digests = set()
    for path, value in inputs.items():
        digest = str(value)
        if not digest.startswith("run-"):
            digests.add((Path(path).name, digest))
    return digests


def _newest_run_of_settings(plan: Plan) -> Run | None:
    """Return the newest run of the stage with these settings and a default name in another folder;
    None without one.
    """
    plan_files = []
    for folder in (plan.runs / plan.stage).glob("*/"):
        plan_file = folder / "plan.json"
        has_default_name = _DEFAULT_NAME.fullmatch(folder.name) is not None
        if has_default_name and folder != plan.folder and plan_file.is_file():
            plan_files.append(plan_file)
    plan_files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for plan_file in plan_files:
        run = Run(plan_file.parent)
        if run.other_format is None and _has_settings(run, plan):
            return run
    return None


def _has_settings(run: Run, plan: Plan) -> bool:
    """Return whether a recorded run has the width and the training settings of a plan."""
    ranks = mapping(run.plan.get("batch")).get("width")
    device = mapping(run.plan.get("parallel")).get("device")
    if ranks != plan.batch.width or device != plan.parallel.width.device.value:
        return False
    recorded = training_settings(run.settings)
    planned = training_settings(plan.resolved)
    # A run of an earlier version lacks the keys that were added later. Those that nobody sets are at
    # their defaults, which train as before.
    newer = [key for key in planned if key not in recorded]
    is_newer_one_set = any(plan.origins.overridden(key) for key in newer)
    known = {key: planned.get(key) for key in recorded}
    return known == recorded and not is_newer_one_set


def training_settings(
    config: Mapping[str, Any], *, with_trainer: bool = True, prefix: str = ""
) -> dict[str, Any]:
    """Return the settings that decide the training, by dotted key.

    `prefix`: the dotted key of `config` in the whole configuration, with a dot at its end.
    """
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
