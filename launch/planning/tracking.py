"""Experiment tracking and the push to the hub: the flags and variables of each, trainer by trainer.

Neither changes what is trained, so neither is part of a plan's identity. A trainer's YAML maps
them: under `tracking`, each value of the key to flags; under `push`, the flags of a push. It avoids
these traps upstream:

- finetune's `--with_tracking` fails at its first log without `--report_to` (finetune.py:471) and
  with anything but wandb (finetune.py:469); dpo_tune_cache takes only wandb
  (dpo_tune_cache.py:124).
- Without an entity every rank of an open-instruct trainer logs in, with four requests
  (utils.py:1338), and olmo_core_finetune takes the team "ai2-llm" (olmo_core_finetune.py:321).
- `--hf_repo_id OWNER/NAME` becomes OWNER/OWNER/NAME, which fails at the end of the run
  (finetune.py:437).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.config.origins import Origin, Origins, Provenance
from launch.config.schema import Family, RootConfig, Tracking
from launch.planning.flags import Flag
from launch.planning.folders import TRACKER_FILE, run_folder, tracked_name
from launch.planning.trackers import TRACKERS, Tracker, find_tracker, is_offline

_RUN = "{run}"  # stands for the run's name in a trainer's YAML
_WANDB = (Tracking.wandb, Tracking.wandb_offline)
# The section of a trainer's YAML for a tracker that it passes on and that has none of its own.
OTHERS = "others"
# The variable that names the file of the tracker's id to the worker (launch/worker/tracker_runs.py).
_TRACKER_FILE_VARIABLE = "LAUNCH_TRACKER_FILE"
_MLFLOW_SERVER = "MLFLOW_TRACKING_URI"
_PROJECT = "launch"  # where neither the configuration nor the environment names one


def _variables_of(tracker: Tracker) -> tuple[str, ...]:
    """Return the variables that launch may set for a tracker."""
    names = (tracker.project, tracker.entity, tracker.name, tracker.group, tracker.folder)
    offline = tracker.offline[:1] if tracker.offline else ()
    return tuple(name for name in (*names, *offline) if name)


def _all_variables() -> tuple[str, ...]:
    names = [_TRACKER_FILE_VARIABLE, _MLFLOW_SERVER, "MLFLOW_TAGS"]
    for tracker in TRACKERS.values():
        names += _variables_of(tracker)
    return tuple(dict.fromkeys(names))


# The variables that `tracking_environment` sets.
TRACKING_VARIABLES = _all_variables()


def add_tracking_flags(
    flags: Mapping[str, Flag],
    config: RootConfig,
    origins: Origins,
    environ: Mapping[str, str],
    run: str,
) -> dict[str, Flag]:
    """Return `flags` with those of `tracking` and `hub.push`. `run` is the name that
    `tracked_name` gives the run.

    A name of the user's own, such as that of a project, is kept. The rules of the table and those in
    launch/planning/rules/tracking.py refuse what the trainer does not support.
    """
    if config.cache_only:  # it trains nothing
        return dict(flags)
    added = {**tracking_flags(config, environ, run), **push_flags(config)}
    tracked_flags = dict(flags)
    for name, value in added.items():
        if origins.overridden(f"flags.{name}") is None:
            tracked_flags[name] = Flag(value, Provenance(Origin.launcher, None))
    return tracked_flags


def tracking_environment(
    config: RootConfig, runs: Path, stage: str, name: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that a tracked run sets; a tracker that has a setting for it keeps its
    files in the run's folder.

    MLflow's runs are in one database beside all run folders, which `mlflow ui` shows, unless a
    variable of the user's names a server.
    """
    tracker = find_tracker(config.tracking)
    if tracker is None or config.cache_only:
        return {}
    folder = run_folder(runs, stage, name)
    ours = {
        _TRACKER_FILE_VARIABLE: str(folder / TRACKER_FILE),
        **_mode_of(config.tracking, tracker),
    }
    if config.trainer.family != Family.trl:  # open-instruct has flags for the rest
        if config.tracking not in _WANDB:
            return {}
        return {tracker.group: stage, tracker.folder: str(folder), **ours}
    values = {
        tracker.project: find_project(config, environ),
        tracker.entity: config.tracking_entity or "",
        tracker.name: tracked_name(stage, name),
        tracker.group: stage,
        tracker.folder: str(folder),
    }
    variables = {name: value for name, value in values.items() if name and value}
    if tracker.report_to == Tracking.mlflow:
        variables["MLFLOW_TAGS"] = json.dumps({"launch.stage": stage})
        if is_offline(config.tracking) or not environ.get(_MLFLOW_SERVER):
            variables[_MLFLOW_SERVER] = f"sqlite:///{runs / 'mlflow.db'}"
    return {**variables, **ours}


def _mode_of(tracking: Tracking, tracker: Tracker) -> dict[str, str]:
    """Return the variable that keeps a tracker from the network. Only wandb has one that it needs to
    use the network, too: an exported WANDB_MODE would keep it from it.
    """
    if is_offline(tracking) and tracker.offline is not None:
        return dict([tracker.offline])
    return {"WANDB_MODE": "online"} if tracking == Tracking.wandb else {}


def find_project(config: RootConfig, environ: Mapping[str, str]) -> str:
    """Return the project, or experiment: that of the configuration, else the one that the tracker's
    own variable names.
    """
    tracker = find_tracker(config.tracking)
    named = environ.get(tracker.project, "") if tracker is not None else ""
    return config.tracking_project or named or _PROJECT


def find_entity(config: RootConfig, environ: Mapping[str, str]) -> str:
    """Return wandb's user or team; "" if none is set."""
    return config.tracking_entity or environ.get("WANDB_ENTITY", "")


def tracking_flags(config: RootConfig, environ: Mapping[str, str], run: str) -> dict[str, Any]:
    """Return the flags of `tracking`; `run` is the name that the tracker shows."""
    values = {
        "{wandb_project}": find_project(config, environ),
        # An empty entity means the account's own, and open-instruct does not query the network for
        # it.
        "{wandb_entity}": find_entity(config, environ),
        _RUN: run,
        "{project}": find_project(config, environ),
        "{tracker}": _report_to(config),
    }
    mapped = config.trainer.tracking.get(_section(config), {})
    return {name: values.get(str(value), value) for name, value in mapped.items()}


def _report_to(config: RootConfig) -> str:
    """Return transformers' name of the tracker; "" without one."""
    tracker = find_tracker(config.tracking)
    return "" if tracker is None else tracker.report_to


def _section(config: RootConfig) -> str:
    """Return the key of the trainer's map `tracking`."""
    name = _report_to(config)
    return name if name in config.trainer.tracking or not name else OTHERS


def push_flags(config: RootConfig) -> dict[str, Any]:
    """Return the flags of `hub.push`."""
    if config.hub.push is None:
        return {}
    owner, _, name = config.hub.push.partition("/")
    values = {"{owner}": owner, "{name}": name, "{owner/name}": config.hub.push}
    return {name: values.get(str(value), value) for name, value in config.trainer.push.items()}
