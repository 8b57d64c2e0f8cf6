"""Find the runs below a folder of runs, and resolve a run by name."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from launch.errors import Problem, UserError, did_you_mean
from launch.execution.record.lock import find_holder, lock_path

# prefixes of folders that hold several runs: a rollout's widths, a bench's repeats, a search's probes
_GROUP_PREFIXES = ("rollout-", "bench-", "tune-")
_MOST_NAMES = 8  # in a message


def find_runs(runs: Path) -> list[Path]:
    """Return the run folders `<runs>/<stage>/<name>`, and those of a rollout, a bench or a search, sorted by path."""
    plans = [*runs.glob("[!.]*/[!.]*/plan.json")]
    for prefix in _GROUP_PREFIXES:
        plans += runs.glob(f"[!.]*/{prefix}*/[!.]*/plan.json")
    return sorted(plan.parent for plan in plans)


def run_name(folder: Path) -> str:
    """Return `stage/name`, as the command line takes it."""
    parent = folder.parent
    group = f"{parent.parent.name}/" if parent.name.startswith(_GROUP_PREFIXES) else ""
    return f"{group}{parent.name}/{folder.name}"


def command_for(verb: str, folder: Path, *options: str) -> str:
    """Return the command that applies `verb` to a run, for the current folder.

    For example `python -m launch logs sft/gpu8 --follow`.
    """
    name = run_name(folder)
    runs = folder.absolute().parents[name.count("/")]
    location = [] if runs == Path.cwd() / "runs" else [f"runs={runs}"]
    return shlex.join(["python", "-m", "launch", verb, name, *options, *location])


def resolve_run(name: str, runs: Path, submitted: Sequence[Path] = ()) -> Path:
    """Return the run folder that `name` means: a folder, `stage/name`, or a prefix of either that only one run has.

    `submitted`: the folders of runs that may not have begun. Raises UserError: unknown_run, ambiguous_run.
    """
    waiting = {folder.absolute() for folder in submitted}
    for folder in (Path(name).expanduser(), runs / name):
        if (folder / "plan.json").is_file() or (folder / "logs").is_dir() or folder.absolute() in waiting:
            return folder.resolve()
    known = sorted({*find_runs(runs), *submitted})
    exact = [folder for folder in known if folder.name == name]
    matches = exact or [path for path in known if run_name(path).startswith(name) or path.name.startswith(name)]
    if len(matches) == 1:
        return matches[0].resolve()
    names = [run_name(folder) for folder in matches or known]
    if matches:
        message = f"'{name}' matches {len(matches)} runs"
        raise UserError(Problem("ambiguous_run", message, "command line", _list_names(names)))
    cure = did_you_mean(name, [*names, *(folder.name for folder in known)]) or _list_names(names)
    raise UserError(Problem("unknown_run", f"there is no run '{name}' in {runs}", "command line", cure))


def _list_names(names: Sequence[str]) -> str:
    if not names:
        return "set runs=DIR if the runs are in another folder"
    return f"there are {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"


def is_running(folder: Path) -> bool:
    return find_holder(lock_path(folder)) is not None
