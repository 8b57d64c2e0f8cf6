"""`report RUN...`: a page of one run or several; `compare RUN RUN...`: what differs, and what came
of it.
"""

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
    FILE,
    announce_reading,
    render_document,
    render_runs,
    save_page,
)
from launch.pipelines.page import render_pipeline
from launch.pipelines.record import find_pipeline
from launch.planning.find_runs import resolve_run
from launch.slurm.jobs import find_job_folders
from launch.terminal import echo, notify
from launch.trials.view import read_trial, trial_verb


def report(argv: list[str]) -> int:
    """Write the page of one run or of several. Raises UserError: unknown_run, ambiguous_run,
    no_record, unknown_option, usage, report_not_written.
    """
    options = build_report_parser().parse(argv)
    if len(options.names) == 1 and (pipeline := find_pipeline(options.names[0], options.runs)):
        page: Path = options.output or pipeline / FILE
        save_page(page, render_pipeline(pipeline))
        echo(str(page))
        return EXIT_DONE
    folders = list(dict.fromkeys(_find_folder(name, options.runs) for name in options.names))
    path: Path = options.output or (Path(FILE) if len(options.names) > 1 else folders[0] / FILE)
    if len(folders) == 1 and not trial_verb(folders[0]):
        announce_reading(folders, notify)
        RunHandle(folders[0]).report(path)
    else:
        save_page(path, _render(folders, options.runs))
    echo(str(path))
    return EXIT_DONE


def _render(folders: Sequence[Path], runs: Path) -> str:
    """Return the page of one trial, or of the runs; a trial among several (`runs/sft/*`) is left
    out with a notice.
    """
    if len(folders) == 1 and trial_verb(folders[0]):
        return render_document(read_trial(folders[0]))
    trials = [folder for folder in folders if trial_verb(folder)]
    if len(trials) == len(folders):
        message = f"{len(trials)} rollouts, benches or searches do not share a page"
        raise refusal("usage", message, "command line", "give one of them, or several runs")
    for folder in trials:
        notify(f"{folder} is skipped: a {trial_verb(folder)} has its own page")
    of_runs = [folder for folder in folders if folder not in trials]
    announce_reading([*of_runs, *of_runs], notify)  # once for the curves, once to be compared
    comparable = [folder for folder in of_runs if Run(folder).other_format is None]
    tables, notes = comparison_tables(comparable, runs) if len(comparable) > 1 else ([], [])
    return render_runs([Run(folder) for folder in of_runs], tables, notes)


def _find_folder(name: str, runs: Path) -> Path:
    """Return the folder that a name means; one that a crash left half-written counts. Raises
    UserError: unknown_run, ambiguous_run, no_record.
    """
    for folder in (Path(name).expanduser(), runs / name):
        if is_run_folder(folder) or trial_verb(folder):
            return folder.resolve()
        if folder.is_dir() and not any(folder.iterdir()):
            raise refusal(
                "no_record", f"{folder} is empty: no run has written to it", "command line"
            )
    trials = [path for path in runs.glob("[!.]*/*") if trial_verb(path)]
    return resolve_run(name, runs, [*find_job_folders(runs), *trials])


def compare(argv: list[str]) -> int:
    """Print the comparison of the named runs. Raises UserError: usage, unknown_run, ambiguous_run,
    unknown_option, no_checkpoint, other_format.
    """
    parser = build_compare_parser()
    options = parser.parse(argv)
    if len(options.names) < 2:
        raise refusal("usage", "'compare' takes two runs or more", "command line", parser.usage)
    tables.compare(*options.names, folder=options.runs).show(options.json)
    return EXIT_DONE
