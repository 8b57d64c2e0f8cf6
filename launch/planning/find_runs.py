"""Finds the run that a name refers to: `stage/name`, below the folder of all runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.errors import UserError, did_you_mean, refusal
from launch.files import first_written

# The prefixes of folders that hold several runs: a rollout's widths, a bench's repeats, a search's
# probes.
_GROUP_PREFIXES = ("rollout-", "bench-", "tune-")
_LATEST = ("latest", "last")  # names of the run that was planned last
_MOST_NAMES = 8  # in a message


def find_runs(runs: Path) -> list[Path]:
    """Return the run folders `<runs>/<stage>/<name>`, and those of a rollout, a bench or a search,
    sorted by path.
    """
    plans = [*runs.glob("[!.]*/[!.]*/plan.json")]
    for prefix in _GROUP_PREFIXES:
        plans += runs.glob(f"[!.]*/{prefix}*/[!.]*/plan.json")
    return sorted(plan.parent for plan in plans)


def runs_of_stage(stage_folder: Path) -> list[Path]:
    """Return the run folders `<runs>/<stage>/<name>` of one stage, sorted by name."""
    return sorted(plan.parent for plan in stage_folder.glob("[!.]*/plan.json"))


def run_name(folder: Path) -> str:
    """Return `stage/name`, as the command line takes it."""
    parent = folder.parent
    group = f"{parent.parent.name}/" if parent.name.startswith(_GROUP_PREFIXES) else ""
    return f"{group}{parent.name}/{folder.name}"


def resolve_run(name: str, runs: Path, submitted: Sequence[Path] = ()) -> Path:
    """Return the run folder that `name` means: a folder, or what `find_run` finds.

    `submitted` are the folders of runs that may not have started. Raises UserError: unknown_run,
    ambiguous_run.
    """
    name = _name_in(name, runs)
    not_started = {folder.absolute() for folder in submitted}
    for folder in (Path(name).expanduser(), runs / name):
        has_started = (folder / "plan.json").is_file() or (folder / "logs").is_dir()
        if has_started or folder.absolute() in not_started:
            return folder.resolve()
    known = sorted({*find_runs(runs), *submitted})
    run = find_run(name, known, "command line")
    if run is not None:
        return run.resolve()
    names = [run_name(folder) for folder in known]
    short_names = [folder.name for folder in known]
    message = f"there is no run '{name}' in {runs.absolute()}"
    cure = did_you_mean(name, [*names, *short_names]) or _list_names(names)
    raise refusal("unknown_run", message, "command line", cure)


def resolve_newest(
    name: str,
    runs: Path,
    notify: Callable[[str], None],
    submitted: Sequence[Path] = (),
    *,
    only_finished: bool = False,
) -> Path:
    """Return the run folder that `name` means to a verb that only reads: of several, the newest,
    with a note.

    `only_finished`: the newest that is done. Raises UserError: unknown_run; ambiguous_run, if none
    of them is done.
    """
    try:
        return resolve_run(name, runs, submitted)
    except UserError as error:
        if error.problems[0].id != "ambiguous_run":
            raise
        matches = matching_runs(name, sorted({*find_runs(runs), *submitted}))
        kind = "newest"
        chosen = matches
        if only_finished:
            kind = "newest finished"
            chosen = [run for run in matches if (run / "DONE").is_file()]
        if not chosen:
            raise
        count = len(matches)
        notify(f"note: {run_name(chosen[0])}, the {kind} of the {count} runs that '{name}' matches")
        return chosen[0].resolve()


def _name_in(name: str, runs: Path) -> str:
    """Return a name as it is below the folder of all runs: `runs/demo` is `demo`."""
    path = Path(name).expanduser().absolute()
    is_below = path.parent == runs.absolute() and not (path / "plan.json").is_file()
    return path.name if is_below else name


def find_run(name: str, known: Sequence[Path], where: str | None) -> Path | None:
    """Return the one of the `known` runs that a name means; None if it means none.

    It is the name of the run, of a stage with one run, the beginning of the run's name, or `latest`.
    `where` is the key that sets the name. Raises UserError: ambiguous_run.
    """
    newest_first = matching_runs(name, known)
    if not newest_first and name in _LATEST and known:
        return max(known, key=_planned_at)
    if len(newest_first) < 2:
        return newest_first[0] if newest_first else None
    described = []
    for run in newest_first:
        planned_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(_planned_at(run)))
        described.append(f"{run_name(run)} ({planned_at})")
    newest = run_name(newest_first[0])
    message = f"'{name}' matches {len(newest_first)} runs, of which {newest} is the newest"
    raise refusal("ambiguous_run", message, where, _list_names(described))


def matching_runs(name: str, known: Sequence[Path]) -> list[Path]:
    """Return those of the `known` runs that a name may mean, the newest first."""
    matches = [run for run in known if name in (run.name, run.parent.name)]
    if not matches:
        matches = [run for run in known if _begins_with(run, name)]
    return sorted(matches, key=_planned_at, reverse=True)


def _begins_with(run: Path, text: str) -> bool:
    """Return whether the name of a run, with or without its stage, begins with a text."""
    return run_name(run).startswith(text) or run.name.startswith(text)


def _planned_at(run: Path) -> float:
    """Return when a run was planned last, or when its folder was made, in unix seconds.

    Of one that was only submitted, the job folder is what was made.
    """
    submitted = run.parent.parent / ".jobs" / run.parent.name / run.name
    written = first_written(run, ("plan.json", "")) or first_written(submitted, ("plan.json", ""))
    return written or 0.0


def _list_names(names: Sequence[str]) -> str:
    if not names:
        return "set runs=DIR if the runs are in another folder"
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"there are {', '.join(names[:_MOST_NAMES])}{more}"
