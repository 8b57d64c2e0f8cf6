"""The folders that a run writes to, tested by writing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from launch.check.machine.rule import Host, failed, passed, rule
from launch.planning.estimate.weights import hub_cache
from launch.planning.plan import Plan
from launch.worker.finding import Finding


@rule("not_writable", on_login_node=True)
def folders_are_writable(plan: Plan, host: Host) -> Finding:
    """A read-only mount or a full quota ends a run after an hour of tokenizing."""
    folders = {"runs": plan.folder, "cache": plan.cache, "HF_HOME": hub_cache(host.environ)}
    writable, problems = [], []
    for key, folder in folders.items():
        parent = nearest_existing(folder)
        problem = _write_problem(parent)
        if problem:
            problems.append((key, f"{parent} is not writable: {problem}"))
        else:
            writable.append(f"{key} {parent}")
    if problems:
        cures = (f"set {'HF_HOME to' if key == 'HF_HOME' else f'{key}= to'} another folder" for key, _ in problems)
        return failed("; ".join(message for _, message in problems), "; ".join(cures), problems[0][0])
    return passed(", ".join(writable))


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest ancestor that exists."""
    return next((path for path in (folder, *folder.parents) if path.exists()), folder)


def _write_problem(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"launch")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None
