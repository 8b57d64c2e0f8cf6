"""`report RUN...` writes a page of one run or several; `compare RUN RUN...` prints what differs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launch.api import tables
from launch.api.running import RunHandle
from launch.commands.run_parsers import build_compare_parser, build_report_parser
from launch.errors import EXIT_DONE, refusal
from launch.evaluation.comparison import comparison_tables
from launch.execution.record.run import Run, is_run_folder
from launch.execution.report.page import (
    PAGE_FILE,
    announce_reading,
    render_document,
    render_runs,
    save_page,
)
from launch.pipelines.page import render_pipeline
from launch.pipelines.record import find_pipeline
from launch.planning.find_runs import resolve_newest
from launch.slurm.jobs import find_job_folders
from launch.table import Table
from launch.terminal import echo, notify
from launch.trials.view import read_trial, trial_verb


def report(argv: list[str]) -> int:
    """Write the page of one run, one pipeline or one trial, or of several runs.

    Raises UserError: unknown_run, no_record, unknown_option, usage, report_not_written.
    """
    options = build_report_parser().parse(argv)
    names: list[str] = options.names
    pipeline = find_pipeline(names[0], options.runs) if len(names) == 1 else None
    if pipeline is not None:
        page: Path = options.output or pipeline / PAGE_FILE
        save_page(page, render_pipeline(pipeline))
        echo(str(page))
        return EXIT_DONE
    found = [_find_folder(name, options.runs) for name in names]
    folders = list(dict.fromkeys(found))
    default = folders[0] / PAGE_FILE if len(names) == 1 else Path(PAGE_FILE)
    path: Path = options.output or default
    if len(folders) == 1 and not trial_verb(folders[0]):
        announce_reading(folders, notify)
        RunHandle(folders[0]).report(path)
    else:
        save_page(path, _render(folders, options.runs))
    echo(str(path))
    return EXIT_DONE


def _render(folders: Sequence[Path], runs: Path) -> str:
    """Return the page of one trial, or of several runs.

    A trial among several folders, as of `runs/sft/*`, is left out with a notice.
    """
    if len(folders) == 1:
        return render_document(read_trial(folders[0]))
    trials = [folder for folder in folders if trial_verb(folder)]
    if len(trials) == len(folders):
        message = f"{len(trials)} rollouts, benches or searches do not share a page"
        raise refusal("usage", message, "command line", "give one of them, or several runs")
    for folder in trials:
        notify(f"{folder} is skipped: a {trial_verb(folder)} has its own page")
    run_folders = [folder for folder in folders if folder not in trials]
    # Every record is read twice: for the curves, and to be compared.
    announce_reading([*run_folders, *run_folders], notify)
    comparable = [folder for folder in run_folders if Run(folder).other_format is None]
    tables: list[Table] = []
    notes: list[str] = []
    if len(comparable) > 1:
        tables, notes = comparison_tables(comparable, runs)
    return render_runs([Run(folder) for folder in run_folders], tables, notes)


def _find_folder(name: str, runs: Path) -> Path:
    """Return the folder of the run or the trial that has this name, even if a crash left it
    half-written.

    Of several runs that the name matches, a note names the newest. Raises UserError: unknown_run,
    no_record.
    """
    for folder in (Path(name).expanduser(), runs / name):
        if is_run_folder(folder) or trial_verb(folder):
            return folder.resolve()
        if folder.is_dir() and not any(folder.iterdir()):
            message = f"{folder} is empty: no run has written to it"
            raise refusal("no_record", message, "command line")
    trials = [path for path in runs.glob("[!.]*/*") if trial_verb(path)]
    return resolve_newest(name, runs, notify, [*find_job_folders(runs), *trials])


def compare(argv: list[str]) -> int:
    """Print the comparison of the named runs.

    Raises UserError: usage, unknown_run, ambiguous_run, unknown_option, no_checkpoint,
    other_format.
    """
    parser = build_compare_parser()
    options = parser.parse(argv)
    if len(options.names) < 2:
        raise refusal("usage", "'compare' takes two runs or more", "command line", parser.usage)
    tables.compare(*options.names, folder=options.runs).show(options.json)
    return EXIT_DONE
