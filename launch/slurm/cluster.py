"""The values of `cluster=` that Slurm would refuse, or would take for something else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from launch.config.cluster import ClusterConfig, Container
from launch.config.origins import Origins
from launch.errors import Problem, UserError
from launch.redact import Redactor
from launch.slurm.durations import seconds_of

# sbatch(1), --time. A bare number is left out: YAML reads 4:00:00 without quotes as 14400, for Slurm ten days
_TIME = re.compile(r"\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}|UNLIMITED", re.IGNORECASE)
_MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORDS = (
    *("partition", "account", "qos", "constraint", "exclude", "reservation", "gpu_type", "interface"),
    "tokenize_partition",
)
_AT_WORK = 60.0  # seconds that a job has at least until Slurm's warning ends it
_WARN_AT_LEAST, _WARN_AT_MOST = 30, 65_535  # seconds; sbatch(1), --signal
_OUTSIDE = "export it before you submit: the job has your environment"
_OWN_OPTIONS = ("--nodes", "-N", "--ntasks-per-node", "--job-name", "-J", "--output", "-o", "--array", "-a")


def cluster_problems(cluster: ClusterConfig, origins: Origins, redactor: Redactor) -> list[Problem]:
    """What is wrong with the values, one problem each."""
    found = [*_forms(cluster), *_lists(cluster), *_container(cluster), *secrets_said(cluster, redactor)]
    return [Problem(each.id, each.message, origins.of(f"cluster.{each.where}").where, each.cure) for each in found]


def _forms(cluster: ClusterConfig) -> Iterator[Problem]:
    """Problems whose `where` is the key's name."""
    for key in _WORDS:
        value = getattr(cluster, key)
        if value is not None and (not value or re.search(r"\s", value)):
            yield Problem("bad_cluster_value", f"cluster.{key}={value!r} is no single word", key)
    for key in ("time", "tokenize_time"):
        value = getattr(cluster, key)
        if value is not None and not _TIME.fullmatch(value):
            cure = f'say HH:MM:SS, D-HH or D-HH:MM:SS, in YAML within quotes: {key}: "24:00:00"'
            yield Problem("bad_time_limit", f"cluster.{key}={value} is no time limit", key, cure)
    if cluster.memory is not None and not _MEMORY.fullmatch(cluster.memory):
        message = f"cluster.memory={cluster.memory} is no size"
        yield Problem("bad_cluster_value", message, "memory", "say 500G, or 0 for a node's whole memory")
    for key, usual in (("cpus_per_rank", 8), ("tokenize_cpus", 32), ("array_limit", 4)):
        number = getattr(cluster, key)
        if number is not None and number < 1:
            yield Problem("bad_cluster_value", f"cluster.{key}={number}", key, f"say {usual}")
    if 0 < cluster.heartbeat < 5 or cluster.heartbeat < 0:
        cure = "say 5 seconds or more, or 0 for none"
        yield Problem("bad_cluster_value", f"cluster.heartbeat={cluster.heartbeat} is too short", "heartbeat", cure)
    if cluster.warn_before and not _WARN_AT_LEAST <= cluster.warn_before <= _WARN_AT_MOST:
        message = f"cluster.warn_before={cluster.warn_before} is no time that Slurm and the job's end can do with"
        cure = f"say {_WARN_AT_LEAST} to {_WARN_AT_MOST} seconds, or 0 for no warning"
        yield Problem("bad_cluster_value", message, "warn_before", cure)
    yield from _warnings(cluster)
    if cluster.requeues < 0:
        yield Problem("bad_cluster_value", f"cluster.requeues={cluster.requeues}", "requeues", "say 0 or more")


def _warnings(cluster: ClusterConfig) -> Iterator[Problem]:
    """Of a time limit that leaves no time to work before the warning, which ends the job."""
    if any(option.startswith(("--time", "-t", "--signal")) for option in cluster.options):
        return  # sbatch takes those
    for key in ("time", "tokenize_time"):
        value = getattr(cluster, key)
        limit = seconds_of(value) if value else None
        if cluster.warn_before and limit is not None and limit - cluster.warn_before < _AT_WORK:
            message = f"cluster.warn_before={cluster.warn_before} ends a job of {value} within its first minute"
            most = int(limit - _AT_WORK)
            less = f"cluster.warn_before={most} or less" if most >= _WARN_AT_LEAST else "cluster.warn_before=0"
            yield Problem("warn_before_time", message, key, f"say {less}, or a longer {key}")


def _lists(cluster: ClusterConfig) -> Iterator[Problem]:
    for option in cluster.options:
        name = option.split("=")[0]
        if not option.startswith("-") or "\n" in option:
            yield Problem("bad_cluster_value", f"{option!r} is no option of sbatch", "options", "say --NAME=VALUE")
        elif name in _OWN_OPTIONS:
            yield Problem("bad_cluster_value", f"{name} is launch's own to say", "options", "leave it out")
    for name, value in cluster.env.items():
        if not _NAME.fullmatch(name) or "\n" in value:
            yield Problem("bad_cluster_value", f"{name!r} is no variable", "env")


def secrets_said(cluster: ClusterConfig, redactor: Redactor) -> Iterator[Problem]:
    """The keys, each as a problem's `where`, of which a value looks like a secret."""
    for name, value in cluster.env.items():
        if redactor.redact_value(name, value) != value:
            yield Problem("secret_in_job", f"{name} looks like a secret, which no job folder may hold", "env", _OUTSIDE)
    for key, said in vars(cluster).items():
        texts = said if isinstance(said, list) else [said] if isinstance(said, str) else []
        if key == "mounts":  # a path before a colon does not name what stands behind it
            texts = [part for text in texts for part in text.split(":")]
        if any(redactor.redact_text(text) != text for text in texts):
            message = f"cluster.{key} holds what looks like a secret, which no job folder may hold"
            yield Problem("secret_in_job", message, key, _OUTSIDE)


def refuse_secrets(script: str, cluster: ClusterConfig, redactor: Redactor) -> None:
    """Raises UserError (`secret_in_job`) for a batch script with anything in it that is not to be written down."""
    for mount in cluster.mounts:
        script = script.replace(mount, mount.replace(":", " "))  # see above
    if redactor.redact_text(script) == script:
        return
    said = [replace(each, where=f"cluster.{each.where}") for each in secrets_said(cluster, redactor)]
    message = "the batch script would hold what looks like a secret, which no job folder may hold"
    raise UserError(said or Problem("secret_in_job", message, None, _OUTSIDE))


def _container(cluster: ClusterConfig) -> Iterator[Problem]:
    if cluster.container != Container.none and not cluster.image:
        yield Problem("bad_cluster_value", f"cluster.container={cluster.container} needs cluster.image", "container")
    if cluster.container == Container.none and (cluster.image or cluster.mounts):
        cure = "say cluster.container=pyxis or apptainer"
        yield Problem("bad_cluster_value", "cluster.image without a container", "image", cure)


def unshared(cluster: ClusterConfig, folders: dict[str, Path]) -> list[Problem]:
    """The folders, by the key that says them, that lie in none of the shared ones."""
    if not cluster.shared:
        return []
    roots = [Path(root).expanduser().resolve() for root in cluster.shared]
    cure = f"the nodes share {', '.join(cluster.shared)} (cluster.shared)"
    return [
        Problem("not_shared", f"{folder} is not shared by the nodes", key, cure)
        for key, folder in folders.items()
        if not any(folder.resolve().is_relative_to(root) for root in roots)
    ]


def unmounted(cluster: ClusterConfig, folders: dict[str, Path], environ: Mapping[str, str]) -> list[Problem]:
    """The folders, by the key that says them, that the tasks would not find in their container, or would find empty:
    there they have to have the path that they have here. `environ`: for the user's home, which apptainer mounts."""
    if cluster.container == Container.none:
        return []
    seen = [target for source, target in map(_ends, _mounts(cluster)) if source.resolve() == target.resolve()]
    if cluster.container == Container.apptainer:
        seen += [Path(path) for path in (environ.get("HOME"), "/tmp", "/var/tmp") if path] + [Path.cwd()]
    lacking: dict[str, Path] = {}
    for key, folder in sorted(folders.items(), key=lambda said: len(said[1].parts)):
        path = Path(os.path.normpath(folder.absolute()))
        if not any(path.is_relative_to(root) for root in (*seen, *lacking.values())):
            lacking[key] = path
    otherwise = "; allow=[not_mounted] where the cluster mounts it by itself"
    return [
        Problem(
            "not_mounted",
            f"{path} is not in the container, or not at that path",
            key,
            f"add {path}:{path}, or a folder above it, to cluster.mounts{otherwise}",
        )
        for key, path in lacking.items()
    ]


def _mounts(cluster: ClusterConfig) -> list[str]:
    """Each one of cluster.mounts, where both kinds of container take several in one word."""
    return [one for word in cluster.mounts for one in word.split(",") if one]


def _ends(mount: str) -> tuple[Path, Path]:
    """SOURCE and TARGET of SOURCE[:TARGET[:FLAGS]]."""
    source, *rest = mount.split(":")
    return Path(source).absolute(), Path(rest[0] if rest and rest[0] else source).absolute()
