"""`compare RUN RUN...`: what differs between runs, and what came of it."""

from __future__ import annotations

from launch.commands.run_parsers import build_compare_parser
from launch.errors import EXIT_DONE, Problem, UserError
from launch.evaluation.comparison import compare_runs, read_noise
from launch.evaluation.comparison_table import comparison_table
from launch.evaluation.run_facts import read_run_facts, split_checkpoint
from launch.execution.record.reader import resolve_run
from launch.execution.report.page import announce_reading
from launch.terminal import echo, notify, print_json


def compare(argv: list[str]) -> int:
    """Print the comparison of the named runs. Raises UserError: usage, unknown_run, ambiguous_run, unknown_option,
    no_checkpoint."""
    parser = build_compare_parser()
    options = parser.parse(argv)
    if len(options.names) < 2:
        raise UserError(Problem("usage", "'compare' takes two runs or more", "command line", parser.usage))
    names = [split_checkpoint(name) for name in options.names]
    folders = [resolve_run(name, options.runs) for name, _ in names]
    announce_reading(folders, notify)
    runs = [read_run_facts(folder, checkpoint) for folder, (_, checkpoint) in zip(folders, names, strict=True)]
    noise = read_noise(options.runs, [folder.parent.name for folder in folders])
    comparison = compare_runs(runs, noise)
    if options.json:
        print_json(comparison)
    else:
        echo("\n".join(comparison_table(comparison)))
    return EXIT_DONE
