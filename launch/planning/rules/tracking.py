"""The rules of experiment tracking and of the push to the hub."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

from launch.config.origins import Origin
from launch.config.schema import Family, Tracking
from launch.planning.rules.plan_rule import FlagsCase, SettingsCase, plan_rule
from launch.planning.trackers import find_tracker
from launch.planning.tracking import find_entity, push_flags, tracking_flags
from launch.resources import requirement
from launch.rules.code import failed
from launch.worker.finding import Finding, Fix

_TRACKING = "tracking=wandb, wandb_offline, tensorboard, trackio, mlflow or none"
_PUSH = "hub.push=OWNER/NAME"
# The flags that launch computes from `tracking` and `hub.push`, and what sets them instead. Those of
# a repository do nothing without a push.
_OWNED = {"with_tracking": _TRACKING, "report_to": _TRACKING, "push_to_hub": _PUSH}
_OWNED_WITH_PUSH = {"hf_repo_id": _PUSH, "hf_entity": _PUSH, "hub_model_id": _PUSH}


@plan_rule("no_tensorboard")
def tensorboard_is_installed(case: SettingsCase) -> Iterator[Finding]:
    """launch itself writes TensorBoard's files, with the package of its own Python."""
    is_requested = case.config.tracking == Tracking.tensorboard and not case.config.cache_only
    if is_requested and importlib.util.find_spec("tensorboard") is None:
        install = f"$ {sys.executable} -m pip install {requirement('tensorboard')}"
        cure = Fix.of("{1}, or set {0}", "tracking=none", install)
        message = "tensorboard is not installed for launch's own Python"
        yield failed(message, cure, case.locate("tracking"))


@plan_rule("no_tracking_entity")
def wandb_has_an_entity(case: SettingsCase) -> Iterator[Finding]:
    """Without an entity every rank of open-instruct logs in to wandb with four requests, and picks a
    team (utils.py:1338).
    """
    config = case.config
    if config.cache_only or config.tracking != Tracking.wandb:
        return
    if config.trainer.family != Family.open_instruct or "wandb" not in config.trainer.tracking:
        return
    if not find_entity(config, case.environ):
        message = (
            "without an entity every rank of open-instruct logs in to wandb and picks a team "
            "(utils.py:1338)"
        )
        sentence = "set {0}, your wandb user or team, or export WANDB_ENTITY"
        cure = Fix.of(sentence, "tracking_entity=NAME")
        yield failed(message, cure, case.locate("tracking"))


@plan_rule("no_tracker_variable", allow=True)
def tracker_has_its_variable(case: SettingsCase) -> Iterator[Finding]:
    """transformers' callbacks of these trackers end a training at its start without a variable
    (transformers/integrations/integration_utils.py:1494, :1649, :2475).
    """
    tracker = find_tracker(case.config.tracking)
    if tracker is None or not tracker.needs or case.config.cache_only:
        return
    if not case.environ.get(tracker.needs):
        message = f"tracking={case.config.tracking} needs the variable {tracker.needs}"
        cure = Fix.of(f"export {tracker.needs}, or set {{0}}", "tracking=none")
        yield failed(message, cure, case.locate("tracking"))


@plan_rule("owned_flag")
def flags_follow_tracking_and_push(case: FlagsCase) -> Iterator[Finding]:
    """`tracking` and `hub.push` set the trainer's flags, so a flag of the user's with another value
    contradicts them.

    The name of a project or a revision is the user's to set.
    """
    if case.config.cache_only:
        return
    environ = case.machine.environ
    added = {**tracking_flags(case.config, environ, ""), **push_flags(case.config)}
    owned = _OWNED | _OWNED_WITH_PUSH if "push_to_hub" in added else _OWNED
    for name, instead in owned.items():
        flag = case.flags.get(name)
        if flag is None or flag.provenance.origin == Origin.launcher:
            continue
        expected = added.get(name, case.trainer.flags.get(name))
        if flag.value not in (expected, False, "none", ["none"]):
            where = flag.provenance.where or f"flags.{name}"
            yield failed(f"launch computes --{name}", f"set {instead}", where)
