"""Finds values of `cluster=` that Slurm would refuse or misread; the container of a job: image,
mounts, folders.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from launch import resources
from launch.config.cluster import ClusterConfig, Container
from launch.config.compose import Composed, user_folder
from launch.config.origins import Origins
from launch.errors import UserError
from launch.planning.machine import this_machine
from launch.planning.plan import Plan, build_plan
from launch.redact import process_redactor
from launch.slurm.slurm_cli import parse_duration
from launch.worker.finding import Finding, Fix

# enroot (pyxis): [USER@][REGISTRY#]IMAGE[:TAG], or the path of a squashfs file
_REGISTRY_FIRST = re.compile(
    r"(?:docker://)?(?P<registry>[\w-]+(?:\.[\w-]+)+(?::\d+)?)[/#](?P<image>[^/].*)"
)
# apptainer: docker://, oras://, library://, docker-archive:// ...
_URI = re.compile(r"[a-z][a-z-]*://")


def container_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    """Find contradictions, an image's name that belongs to another tool, and mounts that are none.

    The `where` of each is the key's name.
    """
    if cluster.container == Container.none:
        if cluster.image or cluster.mounts:
            message = "cluster.image and cluster.mounts need a container"
            yield Finding.error(
                "bad_cluster_value",
                message,
                "image",
                Fix.of(
                    "set {0} or apptainer",
                    *(f"cluster.container={name}" for name in ("pyxis", "apptainer")),
                ),
            )
        return
    if not cluster.image:
        yield Finding.error(
            "bad_cluster_value",
            f"cluster.container={cluster.container} needs cluster.image",
            "container",
        )
    else:
        yield from _image_problems(cluster.container, cluster.image)
    for mount in list_mounts(cluster):
        source, *rest = mount.split(":")
        if not source.startswith("/") or len(rest) > 2 or (rest and not rest[0].startswith("/")):
            message = f"{mount!r} in cluster.mounts is not a mount"
            yield Finding.error(
                "bad_cluster_value",
                message,
                "mounts",
                "set /SOURCE, /SOURCE:/TARGET or /SOURCE:/TARGET:ro",
            )


def _image_problems(container: Container, image: str) -> Iterator[Finding]:
    if image.startswith(("/", "./", "../")) or image.endswith((".sqsh", ".sif", ".img")):
        return  # a file
    named = _REGISTRY_FIRST.fullmatch(image)
    if container == Container.pyxis and (_URI.match(image) or (named and "#" not in image)):
        fitting = f"{named['registry']}#{named['image']}" if named else _URI.sub("", image)
        message = f"cluster.image={image} is not a name that enroot takes"
        yield Finding.error(
            "bad_cluster_value", message, "image", f"set {fitting}, or the path of a .sqsh file"
        )
    if container == Container.apptainer and not _URI.match(image) and (named or ":" in image):
        fitting = f"{named['registry']}/{named['image']}" if named else image
        message = f"cluster.image={image} is not a name that apptainer takes"
        yield Finding.error(
            "bad_cluster_value",
            message,
            "image",
            f"set docker://{fitting}, or the path of a .sif file",
        )


def folders_in_container(plan: Plan, environ: Mapping[str, str]) -> dict[str, Path]:
    """The folders besides those of the run that a node's task reads, by the key that sets each.

    With `cluster.python` the image has an interpreter of its own, in which this project is
    installed.
    """
    folders: dict[str, Path] = {}
    if plan.config.cluster.python is None:
        folders["the interpreter"] = Path(sys.prefix)
        folders["its standard library"] = Path(sys.base_prefix)
        folders["this project"] = resources.ROOT
    if own := user_folder(environ):
        folders["LAUNCH_CONFIG_DIR"] = own
    if plan.upstream.checkout:
        folders["OPEN_INSTRUCT_DIR"] = plan.upstream.checkout
    if plan.inputs.model.local:
        folders["model.path"] = plan.inputs.model.local
    return folders


def unmounted_folders(
    cluster: ClusterConfig, folders: dict[str, Path], environ: Mapping[str, str]
) -> list[Finding]:
    """Find the folders, by the key that sets them, that are missing or empty in the tasks'
    container.

    A folder must have the same path inside and outside. `environ` has the user's home, which
    apptainer mounts.
    """
    if cluster.container == Container.none:
        return []
    visible = [
        target
        for source, target in map(_split_mount, list_mounts(cluster))
        if source.resolve() == target.resolve()
    ]
    if cluster.container == Container.apptainer:
        visible += [Path(path) for path in (environ.get("HOME"), "/tmp", "/var/tmp") if path] + [
            Path.cwd()
        ]
    missing: dict[str, Path] = {}
    for key, folder in sorted(folders.items(), key=lambda item: len(item[1].parts)):
        path = Path(os.path.normpath(folder.absolute()))
        if not any(path.is_relative_to(root) for root in (*visible, *missing.values())):
            missing[key] = path
    otherwise = "; set allow=[not_mounted] if the cluster mounts it by itself"
    return [
        Finding.error(
            "not_mounted",
            f"{path} is not in the container, or not at that path",
            key,
            f"add {path}:{path}, or a folder above it, to cluster.mounts{otherwise}",
        )
        for key, path in missing.items()
    ]


def list_mounts(cluster: ClusterConfig) -> list[str]:
    """Each mount of cluster.mounts, where an entry may hold several, separated by commas."""
    return [mount for entry in cluster.mounts for mount in entry.split(",") if mount]


def _split_mount(mount: str) -> tuple[Path, Path]:
    """Split SOURCE[:TARGET[:FLAGS]] into SOURCE and TARGET."""
    source, *rest = mount.split(":")
    return Path(source).absolute(), Path(rest[0] if rest and rest[0] else source).absolute()


_MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SINGLE_WORDS = (
    *(
        "partition",
        "account",
        "qos",
        "constraint",
        "exclude",
        "reservation",
        "gpu_type",
        "interface",
    ),
    "tokenize_partition",
)
_MIN_WORK = 60.0  # seconds that a job needs at least before Slurm's warning ends it
_WARN_AT_LEAST = 30  # seconds; sbatch(1), --signal
_EXPORT = "export it before you submit: the job inherits your environment"
_LAUNCH_OPTIONS = (
    "--nodes",
    "-N",
    "--ntasks-per-node",
    "--job-name",
    "-J",
    "--output",
    "-o",
    "--array",
    "-a",
)


def cluster_problems(cluster: ClusterConfig, origins: Origins) -> list[Finding]:
    """Find the wrong values, one problem each, at the place where each is set."""
    problems = [
        *_value_problems(cluster),
        *_list_problems(cluster),
        *container_problems(cluster),
        *_secret_problems(cluster),
    ]
    return [
        replace(problem, where=origins.of(f"cluster.{problem.where}").where) for problem in problems
    ]


def _value_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    """Problems whose `where` is the key's name, as in the functions below."""
    for key in _SINGLE_WORDS:
        value = getattr(cluster, key)
        if value is not None and (not value or re.search(r"\s", value)):
            yield Finding.error(
                "bad_cluster_value", f"cluster.{key}={value!r} must be a single word", key
            )
    # by sbatch
    is_replaced = any(option.startswith(("--time", "-t", "--signal")) for option in cluster.options)
    for key in ("time", "tokenize_time"):
        value = getattr(cluster, key)
        # not a bare number: YAML reads 4:00:00 without quotes as 14400 minutes
        limit = parse_duration(value or "")
        if value is not None and limit is None:
            cure = f'set HH:MM:SS, D-HH or D-HH:MM:SS, quoted in YAML: {key}: "24:00:00"'
            yield Finding.error(
                "bad_time_limit", f"cluster.{key}={value} is not a time limit", key, cure
            )
        elif limit is None or not cluster.warn_before or is_replaced:
            continue
        elif limit - cluster.warn_before < _MIN_WORK:
            message = (
                f"cluster.warn_before={cluster.warn_before} ends a job of {value} within "
                "its "
                "first minute"
            )
            most = int(limit - _MIN_WORK)
            less = (
                f"cluster.warn_before={most} or less"
                if most >= _WARN_AT_LEAST
                else "cluster.warn_before=0"
            )
            yield Finding.error("warn_before_time", message, key, f"set {less}, or a longer {key}")
    if cluster.memory is not None and not _MEMORY.fullmatch(cluster.memory):
        message = f"cluster.memory={cluster.memory} is not a size"
        yield Finding.error(
            "bad_cluster_value", message, "memory", "set 500G, or 0 for a node's whole memory"
        )


def _list_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    for option in cluster.options:
        name = option.split("=")[0]
        if not option.startswith("-") or "\n" in option:
            yield Finding.error(
                "bad_cluster_value",
                f"{option!r} is not an option of sbatch",
                "options",
                "set --NAME=VALUE",
            )
        elif name in _LAUNCH_OPTIONS:
            yield Finding.error(
                "bad_cluster_value", f"{name} is set by launch itself", "options", "remove it"
            )
    for name, value in cluster.env.items():
        if not _NAME.fullmatch(name) or "\n" in value:
            yield Finding.error("bad_cluster_value", f"{name!r} is not a variable", "env")


def _secret_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    redactor = process_redactor()
    for name, value in cluster.env.items():
        if redactor.redact_value(name, value) != value:
            message = f"{name} looks like a secret, which must not be written into a job folder"
            yield Finding.error("secret_in_job", message, "env", _EXPORT)
    for key, value in vars(cluster).items():
        texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        if any(redactor.redact_text(text) != text for text in texts):
            message = (
                f"cluster.{key} contains what looks like a secret, which must not be "
                "written "
                "into a job folder"
            )
            yield Finding.error("secret_in_job", message, key, _EXPORT)


def unshared_folders(cluster: ClusterConfig, folders: dict[str, Path]) -> list[Finding]:
    """Find the folders, by the key that sets them, outside all of cluster.shared."""
    if not cluster.shared:
        return []
    roots = [Path(root).expanduser().resolve() for root in cluster.shared]
    cure = f"the nodes share {', '.join(cluster.shared)} (cluster.shared)"
    return [
        Finding.error("not_shared", f"{folder} is not shared by the nodes", key, cure)
        for key, folder in folders.items()
        if not any(folder.resolve().is_relative_to(root) for root in roots)
    ]


def plan_with_cluster(composed: Composed) -> Plan:
    """Plan a composed stage on this machine, its Slurm settings included, without starting its
    trainer. Raises UserError.
    """
    problems = cluster_problems(composed.config.cluster, composed.origins)
    if problems:
        raise UserError(problems)
    return build_plan(composed, this_machine(composed, starts_trainer=False))
