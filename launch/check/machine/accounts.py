"""Accounts that a run needs: a Hugging Face token and its rights, a Weights & Biases key."""

from __future__ import annotations

import json
import netrc
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from launch.check.machine.rule import Host, rule
from launch.config.schema import Launcher, Tracking
from launch.planning.hub_config import (
    TOKEN_CURE,
    find_hub_token,
    is_gated,
    lacks_token,
    missing_token,
)
from launch.planning.plan import Plan
from launch.rules.code import failed, passed, skipped, warned
from launch.worker.finding import Finding, Fix

_TIMEOUT = 3.0  # seconds
_HOST = "api.wandb.ai"


@rule("no_hub_token", "hub login", on_login_node=True)
def hub_token_exists(plan: Plan, host: Host) -> Finding:
    """Without a token a gated model does not load, and a push fails after the training."""
    token = find_hub_token(host.environ)
    if plan.config.hub.push:
        if token is None:
            message = f"hub.push={plan.config.hub.push} needs a token, and none was found"
            return failed(message, TOKEN_CURE, "hub.push")
        return passed("a token is set")
    model = plan.inputs.model
    if model.local or not is_gated(model.reference):
        return skipped("no input is known to need one")
    if token:
        return passed(f"a token is set, for {model.reference}")
    if not lacks_token(model.reference, host.environ):
        return passed(f"{model.reference} is gated, and cached here")
    return warned(missing_token(model.reference), TOKEN_CURE, model.provenance.where)


@rule("push_refused", "push", on_login_node=True)
def push_is_allowed(plan: Plan, host: Host) -> Finding:
    """The hub rejects a push to somebody else's name, or with a read-only token, only when the
    training is done.
    """
    name = plan.config.hub.push
    if name is None:
        return skipped("hub.push is not set")
    token = find_hub_token(host.environ)
    if token is None:
        return skipped("no token was found")
    try:
        account = _whoami(host.environ.get("HF_ENDPOINT", "https://huggingface.co"), token)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            message = f"the hub rejects this token ({error.code})"
            return failed(message, "run `hf auth login` again", "hub.push")
        message = f"the hub answers {error.code}: the token's rights are not checked"
        return warned(message, "try again later")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        message = f"the hub cannot be reached ({reason}): the token's rights are not checked"
        return warned(message, "check the network of this machine")
    return _check_rights(account, name.partition("/")[0])


def _check_rights(account: Mapping[str, Any], owner: str) -> Finding:
    """Check that an account (the answer of whoami-v2) may write to `owner`."""
    user = account.get("name")
    organisations = account.get("orgs") or []
    owners = [user, *(organisation.get("name") for organisation in organisations)]
    if owner not in owners:
        writable = ", ".join(str(name) for name in owners if name)
        facts = f"this token belongs to {user}, who cannot write to {owner}"
        return failed(facts, f"set hub.push=OWNER/NAME with an owner of {writable}", "hub.push")
    auth = account.get("auth") or {}
    access_token = auth.get("accessToken") or {}
    role = access_token.get("role")
    if role == "read":
        cure = "create one with write access: huggingface.co/settings/tokens"
        return failed("this token is read-only", cure, "hub.push")
    return passed(f"{user} may write to {owner}")


def _whoami(endpoint: str, token: str) -> dict[str, Any]:
    address = f"{endpoint.rstrip('/')}/api/whoami-v2"
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        account = json.loads(response.read(1 << 20))
    if not isinstance(account, dict):
        raise ValueError("the answer is not an object")
    return account


@rule("no_wandb_login", "W&B login", on_login_node=True)
def wandb_key_exists(plan: Plan, host: Host) -> Finding:
    """Without a key wandb prompts on a terminal that a rank does not have, or dies."""
    if plan.config.tracking != Tracking.wandb:
        return skipped(f"tracking={plan.config.tracking}")
    source = find_wandb_key(host.environ)
    if source != "WANDB_API_KEY" and plan.config.trainer.launcher == Launcher.torchrun:
        message = (
            f"{plan.trainer} reads the key from WANDB_API_KEY only "
            "(olmo_core/train/callbacks/wandb.py:127), which is not set"
        )
        cure = "export WANDB_API_KEY, or set tracking=tensorboard"
        return failed(message, cure, "tracking")
    if source:
        return passed(f"a key in {source}")
    sentence = "run `wandb login`, export WANDB_API_KEY, or set {0}"
    login = Fix.of(sentence, "tracking=wandb_offline")
    return failed("tracking=wandb needs a key, and none was found", login, "tracking")


def find_wandb_key(environ: Mapping[str, str]) -> str | None:
    """Return where wandb finds its key: the variable, or a netrc file; None without one."""
    if environ.get("WANDB_API_KEY"):
        return "WANDB_API_KEY"
    host = urlsplit(environ.get("WANDB_BASE_URL", "")).hostname or _HOST
    home = Path(environ.get("HOME", "~")).expanduser()
    files = [home / ".netrc", home / "_netrc"]
    if environ.get("NETRC"):
        files = [Path(environ["NETRC"]).expanduser()]
    for file in files:
        try:
            if netrc.netrc(file).authenticators(host):
                return str(file)
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
            continue
    return None
