"""`launch lint FILE...`: check existing commands against the trainers that they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.files import FileReport, check_argv, check_files
from launch.check.lint.schemas import TrainerSchemas, locate_checkout
from launch.check.lint.trainer_commands import LintFinding, TrainerScript
from launch.commands.tool_parsers import build_lint_parser
from launch.errors import EXIT_DONE, EXIT_REFUSED, refusal
from launch.resources import ROOT
from launch.terminal import echo, notify, print_json
from launch.upstream.pin.checkout import SUBMODULE, Checkout, find_checkout
from launch.upstream.rules.contradictions import describe_unchecked
from launch.upstream.trainers import parse_trainer


def lint(argv: list[str]) -> int:
    """Check the files, or the command behind `--`, and print the result; return the exit code.

    Raises UserError: those of VerbParser.parse; usage, unknown_trainer, not_open_instruct.
    """
    command: list[str] | None = None
    if "--" in argv:
        split = argv.index("--")
        argv, command = argv[:split], argv[split + 1 :]
    parser = build_lint_parser()
    options = parser.parse(argv)
    if bool(options.files) == bool(command):
        raise refusal(
            "usage", "'lint' needs either files or -- COMMAND", "command line", parser.usage
        )
    trainer = None if options.trainer is None else TrainerScript(parse_trainer(options.trainer))
    packages = [
        Path(folder) for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))
    ]
    root = None if options.upstream is None else str(locate_checkout(Path(options.upstream)))
    checkout = find_checkout(root, os.environ, ROOT, "--upstream")
    is_named = checkout is None or checkout.found_by != SUBMODULE
    schemas = TrainerSchemas(checkout, packages, may_capture=not options.from_lock and is_named)
    checker = CommandChecker(schemas)
    reports = (
        [check_argv(command, checker)]
        if command
        else list(check_files(options.files, checker, trainer))
    )
    verdicts = [verdict for report in reports for verdict in report.verdicts]
    notes = [note for report in reports for note in report.notes]
    for report in reports:
        for note in report.notes:
            echo(_format_finding(report.file, note), file=sys.stderr)
    if options.json:
        print_json(verdicts, indent=1)
    else:
        for line in format_verdicts(verdicts):
            echo(line)
        echo(_summary(verdicts, schemas.checkout), file=sys.stderr)
        for difference in schemas.differences:
            notify(f"warning: judged from the lock, although {difference}")
        names = dict.fromkeys(name for verdict in verdicts for name in verdict.unchecked)
        if unchecked := describe_unchecked(names):
            notify(unchecked)
    refused = any(verdict.ok is False for verdict in verdicts) or any(note.stops for note in notes)
    return EXIT_REFUSED if refused or (options.strict and _is_undecided(reports)) else EXIT_DONE


def _is_undecided(reports: Iterable[FileReport]) -> bool:
    """Return True if a command is undecided, or part of a file was not read."""
    return any(
        any(verdict.ok is None for verdict in report.verdicts)
        or any(note.id != "empty_file" for note in report.notes)
        for report in reports
    )


def format_verdicts(verdicts: Iterable[LintVerdict]) -> list[str]:
    """Return each problem and warning in a compiler's format: `file:line: flag: message [kind]`."""
    return [
        _format_finding(verdict.file, finding)
        for verdict in verdicts
        for finding in (*verdict.problems, *verdict.warnings)
    ]


def _format_finding(file: str, finding: LintFinding) -> str:
    return f"{file}:{finding.line}: {'' if finding.stops else 'warning: '}{finding}"


def _summary(verdicts: list[LintVerdict], checkout: Checkout | None) -> str:
    if not verdicts:
        return "found no command that starts a trainer and no YAML file of flags"
    counts = {outcome: sum(verdict.ok is ok for verdict in verdicts) for ok, outcome in _OUTCOMES}
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    against = "the lock of the pin (no checkout found)" if checkout is None else checkout.describe()
    return (
        f"{len(verdicts)} command{'s' if len(verdicts) != 1 else ''}: {listed}; checked "
        "against "
        f"{against}"
    )


_OUTCOMES = ((True, "accepted"), (False, "refused"), (None, "undecided"))
