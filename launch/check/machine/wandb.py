"""Weights & Biases: a key where the run needs one."""

from __future__ import annotations

import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from launch.check.machine.rule import Host, failed, passed, rule, skipped
from launch.config.schema import Launcher, Tracking
from launch.planning.plan import Plan
from launch.worker.finding import Finding

_HOST = "api.wandb.ai"


@rule("no_wandb_login", on_login_node=True)
def wandb_key_exists(plan: Plan, host: Host) -> Finding:
    """Without a key wandb prompts on a terminal that a rank does not have, or dies."""
    if plan.config.tracking != Tracking.wandb:
        return skipped(f"tracking={plan.config.tracking}")
    source = find_wandb_key(host.environ)
    if source != "WANDB_API_KEY" and plan.config.trainer.launcher == Launcher.torchrun:
        facts = f"{plan.trainer} reads the key from WANDB_API_KEY only (olmo_core/train/callbacks/wandb.py:127)"
        return failed(f"{facts}, which is not set", "export WANDB_API_KEY, or set tracking=tensorboard", "tracking")
    if source:
        return passed(f"a key in {source}")
    cure = "run `wandb login`, export WANDB_API_KEY, or set tracking=wandb_offline"
    return failed("tracking=wandb needs a key, and none was found", cure, "tracking")


def find_wandb_key(environ: Mapping[str, str]) -> str | None:
    """Return where wandb finds its key: the variable, or the netrc file that lists its host; None without one."""
    if environ.get("WANDB_API_KEY"):
        return "WANDB_API_KEY"
    host = urlsplit(environ.get("WANDB_BASE_URL", "")).hostname or _HOST
    home = Path(environ.get("HOME", "~")).expanduser()
    files = [Path(environ["NETRC"]).expanduser()] if environ.get("NETRC") else [home / ".netrc", home / "_netrc"]
    for file in files:
        try:
            if netrc.netrc(file).authenticators(host):
                return str(file)
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
            continue
    return None
