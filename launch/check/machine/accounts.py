"""Accounts: a token of the Hugging Face hub and its rights, a key of Weights & Biases, where the
run needs them.
"""

from __future__ import annotations

import json
import netrc
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from launch.check.machine.rule import Host, failed, passed, rule, skipped, warned
from launch.config.schema import Launcher, Tracking
from launch.planning.model_folder import hf_home, hub_snapshot
from launch.planning.plan import Plan
from launch.worker.finding import Finding, Fix

# owners whose models require a licence to be accepted; there may be others
_GATED = (
    "meta-llama/",
    "google/gemma",
    "mistralai/",
    "CohereLabs/",
    "CohereForAI/",
    "bigcode/starcoder",
)
_TIMEOUT = 3.0  # seconds
_HOST = "api.wandb.ai"


def find_hub_token(environ: Mapping[str, str]) -> str | None:
    """Return the token that huggingface_hub would use: a variable, or the file that `hf auth login`
    wrote.
    """
    variable = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    if variable:
        return variable.strip()
    file = Path(environ.get("HF_TOKEN_PATH") or hf_home(environ) / "token").expanduser()
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


@rule("no_hub_token", "hub login", on_login_node=True)
def hub_token_exists(plan: Plan, host: Host) -> Finding:
    """Without a token a gated model does not load, and a push fails after the training."""
    token = find_hub_token(host.environ)
    cure = "run `hf auth login`, or export HF_TOKEN"
    if plan.config.hub.push:
        if token is None:
            return failed(
                f"hub.push={plan.config.hub.push} needs a token, and none was found",
                cure,
                "hub.push",
            )
        return passed("a token is set")
    model = plan.inputs.model
    if model.local or not model.reference.startswith(_GATED):
        return skipped("no input is known to need one")
    if token:
        return passed(f"a token is set, for {model.reference}")
    if hub_snapshot(model.reference, host.environ):
        return passed(f"{model.reference} is gated, and cached here")
    return warned(
        f"{model.reference} is gated, and no token was found", cure, model.provenance.where
    )


@rule("push_refused", "push", on_login_node=True)
def push_is_allowed(plan: Plan, host: Host) -> Finding:
    """The hub rejects a push to somebody else's name, or with a read-only token, only when the
    training is done.
    """
    name, token = plan.config.hub.push, find_hub_token(host.environ)
    if name is None or token is None:
        return skipped("hub.push is not set" if name is None else "no token was found")
    try:
        account = _whoami(host.environ.get("HF_ENDPOINT", "https://huggingface.co"), token)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return failed(
                f"the hub rejects this token ({error.code})",
                "run `hf auth login` again",
                "hub.push",
            )
        return warned(
            f"the hub answers {error.code}: the token's rights are not checked", "try again later"
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return warned(
            f"the hub cannot be reached ({reason}): the token's rights are not checked",
            "check the network of this machine",
        )
    return _check_rights(account, name.partition("/")[0])


def _check_rights(account: Mapping[str, Any], owner: str) -> Finding:
    user = account.get("name")
    owners = [user, *(organisation.get("name") for organisation in account.get("orgs") or [])]
    if owner not in owners:
        writable = ", ".join(str(name) for name in owners if name)
        facts = f"this token belongs to {user}, who cannot write to {owner}"
        return failed(facts, f"set hub.push=OWNER/NAME with an owner of {writable}", "hub.push")
    role = ((account.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        return failed(
            "this token is read-only",
            "create one with write access: huggingface.co/settings/tokens",
            "hub.push",
        )
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
        facts = (
            f"{plan.trainer} reads the key from WANDB_API_KEY only "
            "(olmo_core/train/callbacks/wandb.py:127)"
        )
        return failed(
            f"{facts}, which is not set",
            "export WANDB_API_KEY, or set tracking=tensorboard",
            "tracking",
        )
    if source:
        return passed(f"a key in {source}")
    cure = Fix.of("run `wandb login`, export WANDB_API_KEY, or set {0}", "tracking=wandb_offline")
    return failed("tracking=wandb needs a key, and none was found", cure, "tracking")


def find_wandb_key(environ: Mapping[str, str]) -> str | None:
    """Return where wandb finds its key: the variable, or the netrc file that lists its host; None
    without one.
    """
    if environ.get("WANDB_API_KEY"):
        return "WANDB_API_KEY"
    host = urlsplit(environ.get("WANDB_BASE_URL", "")).hostname or _HOST
    home = Path(environ.get("HOME", "~")).expanduser()
    files = (
        [Path(environ["NETRC"]).expanduser()]
        if environ.get("NETRC")
        else [home / ".netrc", home / "_netrc"]
    )
    for file in files:
        try:
            if netrc.netrc(file).authenticators(host):
                return str(file)
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
            continue
    return None
