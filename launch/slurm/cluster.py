"""Finds values of `cluster=` that Slurm would refuse or misread, and a job's container settings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from launch import resources
from launch.config.cluster import ClusterConfig, Container
from launch.config.compose import Composed
from launch.config.group_files import user_folder
from launch.config.origins import Origins
from launch.config.ranges import SIGNAL_TIME
from launch.errors import UserError
from launch.planning.build import plan_on_this_machine
from launch.planning.estimate.cards import slurm_type
from launch.planning.plan import Plan
from launch.redact import process_redactor
from launch.slurm.slurm_cli import parse_duration
from launch.worker.finding import Finding, Fix

# The image names of enroot (pyxis): [USER@][REGISTRY#]IMAGE[:TAG], or the path of a squashfs file
_REGISTRY_FIRST = re.compile(
    r"(?:docker://)?(?P<registry>[\w-]+(?:\.[\w-]+)+(?::\d+)?)[/#](?P<image>[^/].*)"
)
# The schemes of apptainer's image names: docker://, oras://, library://, docker-archive:// ...
_URI = re.compile(r"[a-z][a-z-]*://")


def container_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    """Find contradictions, image names that belong to another tool, and malformed mounts.

    The `where` of each is the key's name.
    """
    if cluster.container == Container.none:
        if cluster.image or cluster.mounts:
            message = "cluster.image and cluster.mounts need a container"
            containers = ("cluster.container=pyxis", "cluster.container=apptainer")
            cure = Fix.of("set {0} or apptainer", *containers)
            yield Finding.error("bad_cluster_value", message, "image", cure)
        return
    if cluster.image:
        yield from _image_problems(cluster.container, cluster.image)
    else:
        message = f"cluster.container={cluster.container} needs cluster.image"
        yield Finding.error("bad_cluster_value", message, "container")
    for mount in list_mounts(cluster):
        if not _is_mount(mount):
            message = f"{mount!r} in cluster.mounts is not a mount"
            forms = "set /SOURCE, /SOURCE:/TARGET or /SOURCE:/TARGET:ro"
            yield Finding.error("bad_cluster_value", message, "mounts", forms)


def _is_mount(mount: str) -> bool:
    """Return whether a mount has the form /SOURCE[:/TARGET[:FLAGS]]."""
    parts = mount.split(":")
    return len(parts) <= 3 and all(part.startswith("/") for part in parts[:2])


def _image_problems(container: Container, image: str) -> Iterator[Finding]:
    if image.startswith(("/", "./", "../")) or image.endswith((".sqsh", ".sif", ".img")):
        return  # a file
    has_scheme = _URI.match(image) is not None
    match = _REGISTRY_FIRST.fullmatch(image)
    if container == Container.pyxis and (has_scheme or (match and "#" not in image)):
        name = f"{match['registry']}#{match['image']}" if match else _URI.sub("", image)
        message = f"cluster.image={image} is not a name that enroot takes"
        cure = f"set {name}, or the path of a .sqsh file"
        yield Finding.error("bad_cluster_value", message, "image", cure)
    if container == Container.apptainer and not has_scheme and (match or ":" in image):
        name = f"{match['registry']}/{match['image']}" if match else image
        message = f"cluster.image={image} is not a name that apptainer takes"
        cure = f"set docker://{name}, or the path of a .sif file"
        yield Finding.error("bad_cluster_value", message, "image", cure)


def folders_in_container(plan: Plan, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders that a node's task reads besides those of the run, by what each is.

    With `cluster.python` the image has an interpreter of its own, in which this project is
    installed.
    """
    folders: dict[str, Path] = {}
    if plan.config.cluster.python is None:
        folders["the interpreter"] = Path(sys.prefix)
        folders["its standard library"] = Path(sys.base_prefix)
        folders["this project"] = resources.ROOT
    user_configs = user_folder(environ)
    if user_configs:
        folders["LAUNCH_CONFIG_DIR"] = user_configs
    if plan.upstream.checkout:
        folders["OPEN_INSTRUCT_DIR"] = plan.upstream.checkout
    if plan.inputs.model.local:
        folders["model.path"] = plan.inputs.model.local
    return folders


def unmounted_folders(
    cluster: ClusterConfig, folders: dict[str, Path], environ: Mapping[str, str]
) -> list[Finding]:
    """Find the folders, by the key that sets them, that the tasks' container does not show.

    A folder must have the same path inside and outside. `environ` has the user's home, which
    apptainer mounts.
    """
    if cluster.container == Container.none:
        return []
    visible = []
    for mount in list_mounts(cluster):
        source, target = _split_mount(mount)
        if source.resolve() == target.resolve():
            visible.append(target)
    if cluster.container == Container.apptainer:
        visible += [Path("/tmp"), Path("/var/tmp"), Path.cwd()]
        if environ.get("HOME"):
            visible.append(Path(environ["HOME"]))
    problems = []
    # A folder that is reported becomes visible with its mount, and so do those below it.
    for key, folder in sorted(folders.items(), key=lambda item: len(item[1].parts)):
        path = Path(os.path.normpath(folder.absolute()))
        if any(path.is_relative_to(root) for root in visible):
            continue
        visible.append(path)
        message = f"{path} is not in the container, or not at that path"
        cure = (
            f"add {path}:{path}, or a folder above it, to cluster.mounts; "
            "set allow=[not_mounted] if the cluster mounts it by itself"
        )
        problems.append(Finding.error("not_mounted", message, key, cure))
    return problems


def list_mounts(cluster: ClusterConfig) -> list[str]:
    """List the mounts of cluster.mounts, where an entry may hold several, separated by commas."""
    mounts = ",".join(cluster.mounts).split(",")
    return [mount for mount in mounts if mount]


def _split_mount(mount: str) -> tuple[Path, Path]:
    """Split SOURCE[:TARGET[:FLAGS]] into SOURCE and TARGET."""
    source, _, rest = mount.partition(":")
    target = rest.partition(":")[0] or source
    return Path(source).absolute(), Path(target).absolute()


_MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w*")
# The keys whose value is a single word.
_SINGLE_WORDS = (
    "partition",
    "account",
    "qos",
    "constraint",
    "exclude",
    "reservation",
    "gpu_type",
    "interface",
    "tokenize_partition",
)
MIN_WORK = 60.0  # seconds that a job needs at least before Slurm's warning ends it
_EXPORT = "export it before you submit: the job inherits your environment"
# The options of sbatch that launch sets.
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
    # The functions below set `where` to the key's name.
    problems = [
        *_word_problems(cluster),
        *_time_limit_problems(cluster),
        *_memory_problems(cluster),
        *_list_problems(cluster),
        *container_problems(cluster),
        *_secret_problems(cluster),
    ]
    places = [origins.of(f"cluster.{problem.where}").where for problem in problems]
    return [replace(problem, where=place) for problem, place in zip(problems, places, strict=True)]


def _word_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    for key in _SINGLE_WORDS:
        value = getattr(cluster, key)
        if key == "gpu_type" and value:
            value = slurm_type(value)
        if value is not None and (not value or re.search(r"\s", value)):
            message = f"cluster.{key}={value!r} must be a single word"
            yield Finding.error("bad_cluster_value", message, key)


def _time_limit_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    # For sbatch these options take precedence over cluster.time and cluster.warn_before.
    overriding = ("--time", "-t", "--signal")
    is_overridden = any(option.startswith(overriding) for option in cluster.options)
    for key in ("time", "tokenize_time"):
        value = getattr(cluster, key)
        if value is None:
            continue
        # A bare number is not a duration here: YAML reads 4:00:00 without quotes as 14400.
        limit = parse_duration(value)
        if limit is None:
            message = f"cluster.{key}={value} is not a time limit"
            cure = f'set HH:MM:SS, D-HH or D-HH:MM:SS, quoted in YAML: {key}: "24:00:00"'
            yield Finding.error("bad_time_limit", message, key, cure)
            continue
        warn_before = 0 if is_overridden else cluster.warn_before
        if warn_before and limit - warn_before < MIN_WORK:
            yield warning_problem(value, limit, warn_before, key)


def warning_problem(value: str, limit: float, warn_before: int, key: str) -> Finding:
    """Return the problem of a job that Slurm's warning ends within its first minute.

    `value` is its time limit as Slurm writes it, `limit` the same in seconds.
    """
    message = f"cluster.warn_before={warn_before} ends a job of {value} within its first minute"
    latest = int(limit - MIN_WORK)
    setting = "cluster.warn_before=0"
    if latest >= SIGNAL_TIME.low:
        setting = f"cluster.warn_before={latest} or less"
    cure = f"set {setting}, or a longer {key}"
    return Finding.error("warn_before_time", message, key, cure)


def _memory_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    if cluster.memory is not None and not _MEMORY.fullmatch(cluster.memory):
        message = f"cluster.memory={cluster.memory} is not a size"
        cure = "set 500G, or 0 for a node's whole memory"
        yield Finding.error("bad_cluster_value", message, "memory", cure)


def _list_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    for option in cluster.options:
        name = option.split("=")[0]
        if not option.startswith("-") or "\n" in option:
            message = f"{option!r} is not an option of sbatch"
            yield Finding.error("bad_cluster_value", message, "options", "set --NAME=VALUE")
        elif name in _LAUNCH_OPTIONS:
            message = f"{name} is set by launch itself"
            yield Finding.error("bad_cluster_value", message, "options", "remove it")
    for name, value in cluster.env.items():
        if not _NAME.fullmatch(name):
            yield Finding.error("bad_cluster_value", f"{name!r} is not a variable", "env")
        elif not value.isprintable():
            message = f"cluster.env.{name} has a line break or another control character"
            cure = "write it as one line, or export it before you submit"
            yield Finding.error("bad_cluster_value", message, "env", cure)


def _secret_problems(cluster: ClusterConfig) -> Iterator[Finding]:
    redactor = process_redactor()
    for name, value in cluster.env.items():
        if redactor.redact_value(name, value) != value:
            message = f"{name} looks like a secret, which must not be written into a job folder"
            yield Finding.error("secret_in_job", message, "env", _EXPORT)
    for key, value in vars(cluster).items():
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list):
            continue
        if any(redactor.redact_text(text) != text for text in texts):
            message = (
                f"cluster.{key} contains what looks like a secret, "
                "which must not be written into a job folder"
            )
            yield Finding.error("secret_in_job", message, key, _EXPORT)


def unshared_folders(cluster: ClusterConfig, folders: dict[str, Path]) -> list[Finding]:
    """Find the folders, by the key that sets them, outside all of cluster.shared."""
    if not cluster.shared:
        return []
    roots = [Path(root).expanduser().resolve() for root in cluster.shared]
    cure = f"the nodes share {', '.join(cluster.shared)} (cluster.shared)"
    problems = []
    for key, folder in folders.items():
        path = folder.resolve()
        if not any(path.is_relative_to(root) for root in roots):
            message = f"{folder} is not shared by the nodes"
            problems.append(Finding.error("not_shared", message, key, cure))
    return problems


def plan_with_cluster(composed: Composed, *, is_swept: bool = False) -> Plan:
    """Check a stage's Slurm settings and plan it on this machine, without starting its trainer.

    See `build_plan` for `is_swept`. Raises UserError.
    """
    problems = cluster_problems(composed.config.cluster, composed.origins)
    if problems:
        raise UserError(problems)
    return plan_on_this_machine(composed, starts_trainer=False, is_swept=is_swept)
