"""Experiment tracking and the push to the hub: the flags and variables of each, trainer by trainer.

Neither changes what is trained, so neither takes part in a plan's identity. A trainer's YAML maps
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

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.config.origins import Origin, Origins, Provenance
from launch.config.schema import Family, Launcher, RootConfig, Tracking, TrainerConfig
from launch.errors import UserError
from launch.planning.flags import Flag
from launch.resources import requirement
from launch.worker.finding import Finding, Fix

_OWNER_AND_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_LONGEST_HUB_NAME = 96  # characters, as in the hub's validate_repo_id
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

    Raises UserError: no_tensorboard, tracking_unsupported, no_tracking_entity, push_unsupported,
    bad_hub_name, owned_flag.
    """
    if config.cache_only:  # it trains nothing
        return dict(flags)
    problems = [*_tracking_problems(config, environ), *_push_problems(config)]
    if problems:
        raise UserError(problems)
    added = {**_tracking_flags(config, environ, run), **_push_flags(config)}
    problems = _conflicting_flags(flags, config.trainer, added)
    if problems:
        raise UserError(problems)
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


def _entity(config: RootConfig, environ: Mapping[str, str]) -> str:
    return config.tracking_entity or environ.get("WANDB_ENTITY", "")


def _tracking_problems(config: RootConfig, environ: Mapping[str, str]) -> list[Finding]:
    """Check that the trainer supports the tracker of the run, and that its package is installed."""
    trainer = config.trainer
    tracking = config.tracking
    if tracking == Tracking.tensorboard and importlib.util.find_spec("tensorboard") is None:
        install = f"$ {sys.executable} -m pip install {requirement('tensorboard')}"
        cure = Fix.of("{1}, or set {0}", "tracking=none", install)
        message = "tensorboard is not installed for launch's own Python"
        return [Finding.error("no_tensorboard", message, "tracking", cure)]
    if tracking not in _WANDB:
        return []
    if "wandb" not in trainer.tracking:
        message = f"{trainer.name} does not support wandb"
        cure = Fix.of("set {0} or none", "tracking=tensorboard", "tracking=none")
        return [Finding.error("tracking_unsupported", message, "tracking", cure)]
    if tracking == Tracking.wandb_offline and trainer.launcher == Launcher.torchrun:
        # WandBCallback.check_if_canceled (olmo_core/train/callbacks/wandb.py:171)
        message = (
            f"{trainer.name} does not support wandb_offline: OLMo-core queries wandb's "
            "server during the run"
        )
        cure = Fix.of("set {0} or wandb", "tracking=tensorboard", "tracking=wandb")
        return [Finding.error("tracking_unsupported", message, "tracking", cure)]
    needs_entity = tracking == Tracking.wandb and trainer.family == Family.open_instruct
    if needs_entity and not _entity(config, environ):
        message = (
            "without an entity every rank of open-instruct logs in to wandb and picks a team "
            "(utils.py:1338)"
        )
        sentence = "set {0}, your wandb user or team, or export WANDB_ENTITY"
        cure = Fix.of(sentence, "tracking_entity=NAME")
        return [Finding.error("no_tracking_entity", message, "tracking", cure)]
    return []


def _push_problems(config: RootConfig) -> list[Finding]:
    """Check that the trainer can push, and that hub.push names a repository on the hub."""
    name = config.hub.push
    if name is None:
        return []
    if not config.trainer.push:
        message = f"{config.trainer.name} cannot push to the hub"
        cure = Fix.of("push the model folder after the run with `hf upload`")
        return [Finding.error("push_unsupported", message, "hub.push", cure)]
    is_short = len(name) <= _LONGEST_HUB_NAME
    has_parts = _OWNER_AND_NAME.fullmatch(name) is not None
    if is_short and has_parts and "--" not in name and ".." not in name:
        return []
    message = f"hub.push={name} is not a repository name on the hub"
    cure = Fix.of("set {0}: letters, digits, '-', '_' and '.'", "hub.push=OWNER/NAME")
    return [Finding.error("bad_hub_name", message, "hub.push", cure)]


def _tracking_flags(config: RootConfig, environ: Mapping[str, str], run: str) -> dict[str, Any]:
    values = {
        "{wandb_project}": config.tracking_project,
        # An empty entity means the account's own, and open-instruct does not query the network for
        # it.
        "{wandb_entity}": _entity(config, environ),
        _RUN: run,
    }
    mapped = config.trainer.tracking.get(_tracker(config), {})
    return {name: values.get(str(value), value) for name, value in mapped.items()}


def _tracker(config: RootConfig) -> str:
    """Return the key of the trainer's map `tracking`."""
    return "wandb" if config.tracking in _WANDB else config.tracking.value


def _push_flags(config: RootConfig) -> dict[str, Any]:
    if config.hub.push is None:
        return {}
    owner, _, name = config.hub.push.partition("/")
    values = {"{owner}": owner, "{name}": name, "{owner/name}": config.hub.push}
    return {name: values.get(str(value), value) for name, value in config.trainer.push.items()}


def _conflicting_flags(
    flags: Mapping[str, Flag], trainer: TrainerConfig, added: Mapping[str, Any]
) -> list[Finding]:
    """Find the user's own flags that contradict `tracking` and `hub.push`, such as
    `flags.report_to=wandb` alone.

    The name of a project or a revision is the user's to set. `added` are the flags of `tracking`
    and `hub.push`.
    """
    settings = dict.fromkeys(
        ("with_tracking", "report_to"), "tracking=wandb, wandb_offline, tensorboard or none"
    )
    settings["push_to_hub"] = "hub.push=OWNER/NAME"
    if "push_to_hub" in added:  # without a push these flags do nothing
        settings |= dict.fromkeys(
            ("hf_repo_id", "hf_entity", "hub_model_id"), "hub.push=OWNER/NAME"
        )
    problems = []
    for name, instead in settings.items():
        flag = flags.get(name)
        if flag is None or flag.provenance.origin == Origin.launcher:
            continue
        expected = added.get(name, trainer.flags.get(name))
        if flag.value not in (expected, False, "none", ["none"]):
            where = flag.provenance.where or f"flags.{name}"
            message = f"launch computes --{name}"
            problems.append(Finding.error("owned_flag", message, where, f"set {instead}"))
    return problems
