"""What a plan takes from this machine: checkout, trainer's interpreter, environment, content digests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from launch import resources
from launch.check.config_files import check_config_file
from launch.config.cluster import Container
from launch.config.compose import Composed
from launch.config.schema import Family
from launch.data.structure import read_structure
from launch.errors import UserError
from launch.execution.record.model_folder import find_model_faults
from launch.host.interpreter import check_interpreter, installed_versions, package_folders, trainer_python
from launch.host.nvidia import find_gpus
from launch.planning.check import checked_argv
from launch.planning.digests import DigestCache
from launch.planning.flags import Flag
from launch.planning.names import locked_registries
from launch.planning.parallel import Parallel
from launch.planning.plan import Machine
from launch.planning.tuned import PACKAGES, MachineInfo
from launch.planning.upstream import SourceKind, UpstreamState
from launch.upstream.libraries.library_keys import library_keys
from launch.upstream.pin.checkout import Checkout, find_checkout
from launch.upstream.pin.lock import load_lock
from launch.upstream.reader.registries import REGISTRIES_FILE, read_registries
from launch.upstream.resolve import resolve_schema


def this_machine(composed: Composed, await_digests: Callable[[], None] | None = None) -> Machine:
    """Return what a composed stage is planned with on this machine.

    `await_digests` returns once another machine has cached the digests of the same inputs. Raises UserError:
    not_open_instruct, no_interpreter.
    """
    config = composed.config
    cwd = Path.cwd()
    cache = cwd / Path(config.cache or Path(config.runs) / ".cache").expanduser()
    digests = DigestCache(cache / "digests.json", await_digests)
    python = trainer_python(config.python)
    _require_interpreter(composed, python)
    checkout = None
    if config.trainer.family == Family.open_instruct:
        checkout = find_checkout(config.upstream.dir, os.environ, resources.ROOT)
    folders = package_folders(python)
    resolved = resolve_schema(config.trainer.name, checkout, folders)

    def render(flags: Mapping[str, Flag]) -> list[str]:
        return checked_argv(resolved.schema, config.trainer, composed.origins, flags)

    upstream = _describe_upstream(config.trainer.family, checkout, resolved.live)
    check_files, machine_info = partial(_check_files, folders), partial(_read_machine_info, folders)
    return Machine(
        cwd=cwd,
        environ=os.environ,
        python=python,
        upstream=upstream,
        digest=digests.of,
        render=render,
        check_files=check_files,
        machine_info=machine_info,
        read_structure=read_structure,
        registries=partial(_read_registries, checkout),
        model_faults=find_model_faults,
        save_digests=lambda is_planned: digests.save(create_folder=is_planned),
    )


def _read_registries(checkout: Checkout | None) -> Mapping[str, Sequence[str]]:
    """Return the names that the trainer's own source has; those of the lock where it is the pin's or not here."""
    if checkout is None or checkout.matches_pin:
        return locked_registries()
    try:
        source = (checkout.root / REGISTRIES_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return read_registries(source)


def _require_interpreter(composed: Composed, python: str) -> None:
    """Check `python=` where the plan is made, unless it is a path in a container. Raises UserError: no_interpreter."""
    config = composed.config
    if config.cluster.container != Container.none or "no_interpreter" in config.allow:
        return
    problem = check_interpreter(config.python, python)
    if problem is not None:
        raise UserError(replace(problem, where=composed.origins.of("python").where))


def _read_machine_info(folders: Sequence[Path]) -> MachineInfo:
    gpus = find_gpus(os.environ)
    return MachineInfo(gpus.seen[0].name if gpus.seen else None, installed_versions(folders, PACKAGES))


def _check_files(folders: Sequence[Path], parallel: Parallel) -> tuple[str, ...]:
    """Check the keys of the files that a run names and return what they were checked against. Raises UserError."""
    problems, against = [], []
    for library, file in (("accelerate", parallel.accelerate_file), ("deepspeed", parallel.deepspeed_file)):
        if file:
            keys = library_keys(library, folders)
            problems += check_config_file(file, keys)
            against.append(keys.describe())
    if problems:
        raise UserError(problems)
    return tuple(against)


def _describe_upstream(family: Family, checkout: Checkout | None, live: bool) -> UpstreamState:
    source = SourceKind.live if live else SourceKind.lock
    lock = load_lock()
    if family == Family.trl:
        version = f"TRL {lock.packages['trl']}"
        description = "TRL as installed" if live else f"{version} by the lock: it is not installed here"
        return UpstreamState(None, source, None, description, matches_pin=True)
    if checkout is None:
        description = f"open-instruct {lock.pin[:9]} by the lock: there is no checkout here"
        return UpstreamState(lock.pin, source, None, description, matches_pin=True)
    commit = checkout.commit or lock.pin
    return UpstreamState(commit, source, checkout.root, checkout.describe(), checkout.matches_pin)
