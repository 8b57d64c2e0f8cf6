"""Gathers what a plan takes from this machine: checkout, interpreter, packages, local content."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from launch import resources
from launch.config.cluster import Container
from launch.config.origins import Origin, Origins
from launch.config.schema import Family, RootConfig
from launch.errors import UserError
from launch.host.interpreter import (
    check_interpreter,
    find_package_folders,
    installed_versions,
    package_folders,
    trainer_python,
)
from launch.host.nvidia import find_gpus
from launch.planning.digest_cache import DigestCache
from launch.planning.folders import cache_folder
from launch.planning.rlvr import calls_open_instruct
from launch.upstream.pin.checkout import DIR_KEY, DIR_VARIABLE, Checkout, find_checkout
from launch.upstream.pin.lock import load_lock
from launch.upstream.resolve import ResolvedSchema, resolve_schema
from launch.upstream.rules.contradictions import unchecked_code
from launch.upstream.schema import Schema
from launch.worker.trl_options import TRL_VERSION


class SourceKind(StrEnum):
    """Where a schema is read from."""

    live = "live"  # the source on this machine
    lock = "lock"  # the lock file
    none = "none"  # nowhere: it is unknown


@dataclass(frozen=True)
class UpstreamState:
    """The upstream source that a plan is made for."""

    commit: str | None  # of open-instruct; None for TRL
    source: SourceKind
    checkout: Path | None  # the folder of open-instruct's source
    description: str
    matches_pin: bool  # False for a checkout that differs from the pin
    # the trainer's functions that may refuse more, whose source is not on this machine
    unchecked: tuple[str, ...] = ()


# A plan compares the versions of these packages with those that an overlay of `tune` was measured
# with.
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "liger-kernel", "flash-attn", "trl")


@dataclass(frozen=True)
class Machine:
    """What a plan takes from the machine. The GPU and the versions are read when a plan needs
    them.
    """

    cwd: Path
    environ: Mapping[str, str]
    python: str  # the trainer's interpreter
    packages: Sequence[Path]  # folders of its installed packages; none where it does not answer
    upstream: UpstreamState
    schemas: Mapping[str, Schema]  # what each trainer's parser accepts, by trainer
    # the names in which the trainer looks up the value of a flag while it runs, by flag
    registries: Mapping[str, Sequence[str]]
    digests: DigestCache  # of local models and data
    own_packages: Sequence[Path] = ()  # folders of the packages that are installed for launch

    @property
    def card(self) -> str | None:
        """The name of the first GPU; None without one, as on a machine that only plans."""
        return next((gpu.name for gpu in find_gpus(self.environ).seen), None)

    @cached_property
    def versions(self) -> Mapping[str, str]:
        """Versions of those PACKAGES that are installed for the trainer."""
        return installed_versions(self.packages, PACKAGES)

    @property
    def has_flash_attention(self) -> bool:
        """Whether flash-attn is installed for the trainer: faster to find out than its version."""
        return self.has_package("flash_attn")

    def has_package(self, name: str) -> bool:
        """Whether a package is installed for the trainer, by the name that it is imported by."""
        return any((folder / name).is_dir() for folder in self.packages)


def this_machine(
    config: RootConfig,
    origins: Origins,
    await_digests: Callable[[], None] | None = None,
    *,
    starts_trainer: bool = True,
) -> Machine:
    """Return what a stage with this configuration is planned with on this machine.

    `await_digests` returns once another machine has cached the digests of the same inputs. Without
    `starts_trainer` (`plan`) an interpreter that a file names is not started, nor is the parser of
    a checkout that a file names.

    Raises UserError: not_open_instruct, no_interpreter, trainer_script_missing.
    """
    trainer = config.trainer
    cwd = Path.cwd()

    python = trainer_python(config.python)
    may_start = starts_trainer or origins.of("python").origin == Origin.override
    _require_interpreter(config, origins, python, may_start=may_start)
    is_started = may_start or config.python is None
    find_packages = package_folders if is_started else find_package_folders
    packages = find_packages(python)

    is_trl = trainer.family == Family.trl
    checkout = None
    if not is_trl or calls_open_instruct(config):
        checkout = find_checkout(config.upstream.dir, os.environ, resources.ROOT)
    parsed_checkout = None if is_trl else checkout
    may_capture = starts_trainer or _may_capture(config, origins, parsed_checkout)
    resolved = resolve_schema(trainer.name, checkout, packages, python, may_capture=may_capture)
    upstream = _describe_upstream(trainer.family, checkout, resolved)

    return Machine(
        cwd=cwd,
        environ=os.environ,
        python=python,
        packages=packages,
        upstream=replace(upstream, unchecked=unchecked_code(resolved.schema)),
        schemas={trainer.name: resolved.schema},
        registries=resolved.schema.names,
        digests=DigestCache(cache_folder(config, cwd) / "digests.json", await_digests),
        own_packages=package_folders(sys.executable),
    )


def _may_capture(config: RootConfig, origins: Origins, checkout: Checkout | None) -> bool:
    """Return whether a plan may start the trainer's parser: the user named what would be started.

    A stage file does not count: a plan of somebody else's file must not start what it points to.
    """
    is_python_trusted = config.python is None or origins.overridden("python") is not None
    if checkout is None:
        return is_python_trusted
    is_checkout_trusted = (
        checkout.found_by == DIR_VARIABLE or origins.overridden(DIR_KEY) is not None
    )
    return is_python_trusted and is_checkout_trusted


def _require_interpreter(
    config: RootConfig, origins: Origins, python: str, *, may_start: bool
) -> None:
    """Check `python=` on the machine that plans, unless it is a path in a container.

    Raises UserError: no_interpreter.
    """
    if config.cluster.container != Container.none or "no_interpreter" in config.allow:
        return
    problem = check_interpreter(config.python, python, may_start=may_start)
    if problem is not None:
        raise UserError(replace(problem, where=origins.of("python").where))


def _describe_upstream(
    family: Family, checkout: Checkout | None, resolved: ResolvedSchema
) -> UpstreamState:
    source = SourceKind.live if resolved.live else SourceKind.lock
    if family == Family.trl:
        return _describe_trl(source, checkout, resolved)
    pin = load_lock().pin
    if checkout is None:
        description = f"open-instruct {pin[:9]} by the lock: there is no checkout here"
        return UpstreamState(pin, source, None, description, matches_pin=True)
    description = checkout.describe()
    if resolved.difference:
        advice = resolved.advice(
            f"`launch check`, or {DIR_KEY}=DIR as an override, asks its parser"
        )
        description += f"; its flags are the lock's: {advice}"
    commit = checkout.commit or pin
    return UpstreamState(commit, source, checkout.root, description, checkout.matches_pin)


def _describe_trl(
    source: SourceKind, checkout: Checkout | None, resolved: ResolvedSchema
) -> UpstreamState:
    """Describe TRL, and the checkout of open-instruct if the run calls it."""
    description = f"launch's entry over TRL {TRL_VERSION}"
    if resolved.difference:
        description += f" by the lock, although {resolved.difference}"
    elif not resolved.live:
        description += " by the lock: it is not installed here"
    if resolved.failure:
        description += f"; {resolved.advice('')}"
    if checkout is None:
        return UpstreamState(None, source, None, description, matches_pin=True)
    description += f"; {checkout.describe()}"
    return UpstreamState(None, source, checkout.root, description, checkout.matches_pin)
