"""The tables of a run's plan: flags, guards, versions, repositories. Each has its head as the first row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from launch.execution.record.reader import mapping, objects
from launch.execution.report.summary import Figure, flag_value

_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "deepspeed",
    "trl",
    "peft",
    "liger-kernel",
    "flash-attn",
)


def flag_rows(plan: Mapping[str, Any]) -> list[list[str]]:
    """Return every flag of the trainer, its value and where the value is set."""
    flags = mapping(plan.get("flags"))
    rows = [["flag", "value", "from", "where"]]
    for name, flag in flags.items():
        fields = mapping(flag)
        rows.append([name, flag_value(flags, name), str(fields.get("origin") or ""), str(fields.get("where") or "")])
    return rows


def guard_rows(settings: Mapping[str, Any]) -> list[list[str]]:
    """Return the guards of a configuration with their limits; [] where there are none."""
    rows = []
    for name, limits in mapping(settings.get("guards")).items():
        text = ", ".join(f"{key} {value}" for key, value in mapping(limits).items())
        rows.append([str(name), text if isinstance(limits, dict) else "off"])
    return [["guard", "limits"], *rows] if rows else []


def version_figures(versions: Mapping[str, Any]) -> list[Figure]:
    """Return the versions that matter for a result: Python, the trainer's packages, the platform, the GPUs."""
    packages = mapping(versions.get("packages"))
    figures = [Figure("Python", str(versions["python"]))] if "python" in versions else []
    figures += [Figure(name, str(packages[name])) for name in _PACKAGES if name in packages]
    figures += [Figure(key, str(versions[key])) for key in ("platform", "driver") if versions.get(key)]
    gpus = Counter((str(gpu.get("name")), str(gpu.get("memory"))) for gpu in objects(versions.get("gpus")))
    figures += [Figure("GPUs", f"{count} x {name}", memory) for (name, memory), count in gpus.items()]
    return figures


def git_rows(git: Mapping[str, Any]) -> list[list[str]]:
    """Return the commit of each repository, and its local changes."""
    rows = []
    for name, value in git.items():
        if isinstance(value, dict):
            commit = str(value.get("commit") or f"unknown: {value.get('why')}")
            dirty = value.get("dirty")
            rows.append([name, commit, "unknown" if dirty is None else "yes" if dirty else "none"])
    return [["repository", "commit", "uncommitted changes"], *rows] if rows else []
