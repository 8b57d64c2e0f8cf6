"""What a plan takes from this machine: checkout, trainer's interpreter, environment, content digests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from launch import resources
from launch.config.cluster import Container
from launch.config.compose import Composed
from launch.config.origins import Origin
from launch.config.schema import Family
from launch.errors import UserError
from launch.host.interpreter import check_interpreter, find_package_folders, package_folders, trainer_python
from launch.planning.digests import DigestCache
from launch.planning.machine import Machine
from launch.planning.names import Registries, locked_registries
from launch.planning.upstream import SourceKind, UpstreamState
from launch.upstream.pin.checkout import Checkout, find_checkout
from launch.upstream.pin.lock import load_lock
from launch.upstream.reader.registries import REGISTRIES_FILE, read_registries
from launch.upstream.resolve import resolve_schema
from launch.worker.trl_entry import TRL


def this_machine(
    composed: Composed, await_digests: Callable[[], None] | None = None, *, starts_trainer: bool = True
) -> Machine:
    """Return what a composed stage is planned with on this machine.

    `await_digests` returns once another machine has cached the digests of the same inputs. Without `starts_trainer`
    (`plan`) an interpreter that a file names is not started. Raises UserError: not_open_instruct, no_interpreter.
    """
    config = composed.config
    cwd = Path.cwd()
    cache = cwd / Path(config.cache or Path(config.runs) / ".cache").expanduser()
    python = trainer_python(config.python)
    may_start = starts_trainer or composed.origins.of("python").origin == Origin.override
    _require_interpreter(composed, python, may_start=may_start)
    checkout = None
    if config.trainer.family == Family.open_instruct:
        checkout = find_checkout(config.upstream.dir, os.environ, resources.ROOT)
    packages = package_folders(python) if may_start or config.python is None else find_package_folders(python)
    resolved = resolve_schema(config.trainer.name, checkout, packages)
    return Machine(
        cwd=cwd,
        environ=os.environ,
        python=python,
        packages=packages,
        upstream=_describe_upstream(config.trainer.family, checkout, resolved.live),
        schemas={config.trainer.name: resolved.schema},
        registries=_read_registries(checkout),
        digests=DigestCache(cache / "digests.json", await_digests),
    )


def _read_registries(checkout: Checkout | None) -> Registries:
    """Return the names that the trainer's own source has; those of the lock where it is the pin's or not here."""
    if checkout is None or checkout.matches_pin:
        return locked_registries()
    try:
        source = (checkout.root / REGISTRIES_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return read_registries(source)


def _require_interpreter(composed: Composed, python: str, *, may_start: bool) -> None:
    """Check `python=` where the plan is made, unless it is a path in a container. Raises UserError: no_interpreter."""
    config = composed.config
    if config.cluster.container != Container.none or "no_interpreter" in config.allow:
        return
    problem = check_interpreter(config.python, python, may_start=may_start)
    if problem is not None:
        raise UserError(replace(problem, where=composed.origins.of("python").where))


def _describe_upstream(family: Family, checkout: Checkout | None, live: bool) -> UpstreamState:
    source = SourceKind.live if live else SourceKind.lock
    lock = load_lock()
    if family == Family.trl:
        description = f"launch's entry over TRL {TRL}" + ("" if live else " by the lock: it is not installed here")
        return UpstreamState(None, source, None, description, matches_pin=True)
    if checkout is None:
        description = f"open-instruct {lock.pin[:9]} by the lock: there is no checkout here"
        return UpstreamState(lock.pin, source, None, description, matches_pin=True)
    commit = checkout.commit or lock.pin
    return UpstreamState(commit, source, checkout.root, checkout.describe(), checkout.matches_pin)
