"""Which run a name means: `stage/name`, below the folder of all runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from launch.errors import did_you_mean, refusal
from launch.files import first_written

# prefixes of folders that hold several runs: a rollout's widths, a bench's repeats, a search's
# probes
_GROUP_PREFIXES = ("rollout-", "bench-", "tune-")
_MOST_NAMES = 8  # in a message


def find_runs(runs: Path) -> list[Path]:
    """Return the run folders `<runs>/<stage>/<name>`, and those of a rollout, a bench or a search,
    sorted by path.
    """
    plans = [*runs.glob("[!.]*/[!.]*/plan.json")]
    for prefix in _GROUP_PREFIXES:
        plans += runs.glob(f"[!.]*/{prefix}*/[!.]*/plan.json")
    return sorted(plan.parent for plan in plans)


def run_name(folder: Path) -> str:
    """Return `stage/name`, as the command line takes it."""
    parent = folder.parent
    group = f"{parent.parent.name}/" if parent.name.startswith(_GROUP_PREFIXES) else ""
    return f"{group}{parent.name}/{folder.name}"


def resolve_run(name: str, runs: Path, submitted: Sequence[Path] = ()) -> Path:
    """Return the run folder that `name` means: a folder, or what `find_run` finds.

    `submitted`: the folders of runs that may not have begun. Raises UserError: unknown_run,
    ambiguous_run.
    """
    waiting = {folder.absolute() for folder in submitted}
    for folder in (Path(name).expanduser(), runs / name):
        if (
            (folder / "plan.json").is_file()
            or (folder / "logs").is_dir()
            or folder.absolute() in waiting
        ):
            return folder.resolve()
    known = sorted({*find_runs(runs), *submitted})
    if run := find_run(name, known, "command line"):
        return run.resolve()
    names = [run_name(folder) for folder in known]
    cure = did_you_mean(name, [*names, *(folder.name for folder in known)]) or _list_names(names)
    raise refusal(
        "unknown_run", f"there is no run '{name}' in {runs.absolute()}", "command line", cure
    )


def find_run(name: str, known: Sequence[Path], where: str | None) -> Path | None:
    """Return which of the `known` runs a name means: a run's, a stage's with one run, or a prefix
    of one; None without any. `where` names the key that the name is from. Raises UserError:
    ambiguous_run.
    """
    exact = [folder for folder in known if name in (folder.name, folder.parent.name)]
    matches = exact or [
        path for path in known if run_name(path).startswith(name) or path.name.startswith(name)
    ]
    if len(matches) < 2:
        return matches[0] if matches else None
    newest = sorted(matches, key=_written, reverse=True)
    names = [
        f"{run_name(run)} ({time.strftime('%Y-%m-%d %H:%M', time.localtime(_written(run)))})"
        for run in newest
    ]
    message = f"'{name}' matches {len(matches)} runs, of which {run_name(newest[0])} is the newest"
    raise refusal("ambiguous_run", message, where, _list_names(names))


def _written(run: Path) -> float:
    """Return when a run was planned last, or when its folder was made, in unix seconds."""
    return first_written(run, ("plan.json", "")) or 0.0


def _list_names(names: Sequence[str]) -> str:
    if not names:
        return "set runs=DIR if the runs are in another folder"
    return (
        f"there are {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"
    )
