"""What a plan takes from this machine: the checkout, the trainer's interpreter, the environment, content digests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launch import project
from launch.config.compose import Composed
from launch.config.schema import Family
from launch.planning.command import render_flags
from launch.planning.digests import DigestCache
from launch.planning.plan import Machine
from launch.planning.upstream import SourceKind, UpstreamState, commit_of
from launch.upstream.lock import load_lock
from launch.upstream.source import find_checkout


def this_machine(composed: Composed) -> Machine:
    """The machine that a composed stage is planned on. Raises UserError for a folder that is no checkout."""
    config = composed.config
    cwd = Path.cwd()
    cache = cwd / Path(config.cache or Path(config.runs) / ".cache").expanduser()
    digests = DigestCache(cache / "digests.json")

    def digest(path: Path) -> str | None:
        value = digests.of(path)
        digests.save()
        return value

    return Machine(
        cwd=cwd,
        environ=os.environ,
        python=config.python or sys.executable,
        upstream=_upstream(composed),
        digest=digest,
        render=lambda flags: render_flags({name: flag.value for name, flag in flags.items()}),
    )


def _upstream(composed: Composed) -> UpstreamState:
    config = composed.config
    if config.trainer.family == Family.trl:
        return UpstreamState(None, SourceKind.none, None, "TRL")
    pin = load_lock().pin
    checkout = find_checkout(config.upstream.dir, os.environ, project.ROOT)
    if checkout is None:
        return UpstreamState(pin, SourceKind.none, None, f"open-instruct {pin[:9]}, no checkout here")
    return UpstreamState(commit_of(checkout, pin), SourceKind.live, checkout.root, checkout.describe())
