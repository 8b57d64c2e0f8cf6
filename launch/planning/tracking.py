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

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.config.origins import Origin, Origins, Provenance
from launch.config.schema import Family, RootConfig, Tracking
from launch.planning.flags import Flag

_RUN = "{run}"  # stands for the run's name in a trainer's YAML
_WANDB = (Tracking.wandb, Tracking.wandb_offline)
# The variables that `tracking_environment` sets.
TRACKING_VARIABLES = ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_ENTITY")


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


def tracking_environment(config: RootConfig, folder: Path) -> dict[str, str]:
    """Return the variables that a tracked run sets; wandb keeps its files in `folder`, the
    run's.
    """
    if config.tracking not in _WANDB or config.cache_only:
        return {}
    variables = {
        "WANDB_MODE": "online" if config.tracking == Tracking.wandb else "offline",
        "WANDB_DIR": str(folder),
    }
    if config.trainer.family == Family.trl:  # Transformers reads these; open-instruct has flags
        variables["WANDB_PROJECT"] = config.tracking_project
        if config.tracking_entity:
            variables["WANDB_ENTITY"] = config.tracking_entity
    return variables


def find_entity(config: RootConfig, environ: Mapping[str, str]) -> str:
    """Return wandb's user or team; "" if none is set."""
    return config.tracking_entity or environ.get("WANDB_ENTITY", "")


def tracking_flags(config: RootConfig, environ: Mapping[str, str], run: str) -> dict[str, Any]:
    """Return the flags of `tracking`; `run` is the name that the tracker shows."""
    values = {
        "{wandb_project}": config.tracking_project,
        # An empty entity means the account's own, and open-instruct does not query the network for
        # it.
        "{wandb_entity}": find_entity(config, environ),
        _RUN: run,
    }
    mapped = config.trainer.tracking.get(_tracker(config), {})
    return {name: values.get(str(value), value) for name, value in mapped.items()}


def _tracker(config: RootConfig) -> str:
    """Return the key of the trainer's map `tracking`."""
    return "wandb" if config.tracking in _WANDB else config.tracking.value


def push_flags(config: RootConfig) -> dict[str, Any]:
    """Return the flags of `hub.push`."""
    if config.hub.push is None:
        return {}
    owner, _, name = config.hub.push.partition("/")
    values = {"{owner}": owner, "{name}": name, "{owner/name}": config.hub.push}
    return {name: values.get(str(value), value) for name, value in config.trainer.push.items()}
