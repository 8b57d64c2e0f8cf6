"""`launch lint FILE...`: check existing commands against the trainers that they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from launch import __version__
from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.files import FileReport, check_command_line, check_files
from launch.check.lint.schemas import TrainerSchemas, locate_checkout
from launch.check.lint.trainer_commands import LintFinding, TrainerScript
from launch.commands.lint_formats import describe_source, print_machine_format
from launch.commands.tool_parsers import build_lint_parser
from launch.errors import EXIT_DONE, EXIT_REFUSED, refusal
from launch.resources import ROOT
from launch.terminal import echo, notify
from launch.upstream.pin.checkout import SUBMODULE, Checkout, find_checkout
from launch.upstream.rules.contradictions import describe_unchecked
from launch.upstream.trainers import parse_trainer
from launch.worker.wording import count_of


def lint(argv: list[str]) -> int:
    """Check the files, or the command behind `--`, and print the result; return the exit code.

    Raises UserError: those of VerbParser.parse; usage, unknown_trainer, not_open_instruct.
    """
    command: list[str] | None = None
    if "--" in argv:
        split = argv.index("--")
        command = argv[split + 1 :]
        argv = argv[:split]
    parser = build_lint_parser()
    options = parser.parse(argv)
    if bool(options.files) == bool(command):
        message = "'lint' needs either files or -- COMMAND"
        raise refusal("usage", message, "command line", parser.usage)
    trainer = None if options.trainer is None else TrainerScript(parse_trainer(options.trainer))
    package_folders = ("site-packages", "dist-packages")
    packages = [Path(folder) for folder in sys.path if folder.endswith(package_folders)]
    root = None if options.upstream is None else str(locate_checkout(Path(options.upstream)))
    checkout = find_checkout(root, os.environ, ROOT, "--upstream")
    is_named = checkout is None or checkout.found_by != SUBMODULE
    schemas = TrainerSchemas(checkout, packages, may_capture=not options.from_lock and is_named)
    checker = CommandChecker(schemas)
    reports = [check_command_line(command, checker)] if command else []
    reports += check_files(options.files, checker, trainer)
    verdicts: list[LintVerdict] = []
    for report in reports:
        verdicts += report.verdicts
        for note in report.notes:
            echo(_format_finding(report.file, note), file=sys.stderr)
    report_format = "json" if options.json else options.format
    if report_format == "text":
        _print_verdicts(verdicts, schemas)
    else:
        print_machine_format(report_format, reports, schemas.checkout)
    return EXIT_REFUSED if _is_refused(reports, strict=options.strict) else EXIT_DONE


def _print_verdicts(verdicts: list[LintVerdict], schemas: TrainerSchemas) -> None:
    """Print the verdicts, how many there are of each kind, and what was not checked."""
    for line in format_verdicts(verdicts):
        echo(line)
    echo(_summary(verdicts, schemas.checkout), file=sys.stderr)
    for difference in schemas.differences:
        notify(f"warning: judged from the lock, although {difference}")
    names: list[str] = []
    for verdict in verdicts:
        names += verdict.unchecked
    unchecked = describe_unchecked(dict.fromkeys(names))
    if unchecked:
        notify(unchecked)


def _is_refused(reports: Sequence[FileReport], *, strict: bool) -> bool:
    """Return whether a command is refused or a file could not be read; with `strict`, also whether
    anything is undecided.
    """
    for report in reports:
        if any(verdict.ok is False for verdict in report.verdicts):
            return True
        if any(note.stops for note in report.notes):
            return True
    return strict and _is_undecided(reports)


def _is_undecided(reports: Iterable[FileReport]) -> bool:
    """Return True if a command is undecided, or part of a file was not read."""
    for report in reports:
        if any(verdict.ok is None for verdict in report.verdicts):
            return True
        if any(note.id != "empty_file" for note in report.notes):
            return True
    return False


def format_verdicts(verdicts: Iterable[LintVerdict]) -> list[str]:
    """Return each problem and warning in a compiler's format: `file:line: flag: message [kind]`."""
    lines: list[str] = []
    for verdict in verdicts:
        findings = (*verdict.problems, *verdict.warnings)
        lines += [_format_finding(verdict.file, finding) for finding in findings]
    return lines


def _format_finding(file: str, finding: LintFinding) -> str:
    level = "" if finding.stops else "warning: "
    return f"{file}:{finding.line}: {level}{finding}"


def _summary(verdicts: list[LintVerdict], checkout: Checkout | None) -> str:
    if not verdicts:
        return "found no command that starts a trainer and no YAML file of flags"
    counts = []
    for ok, outcome in _OUTCOMES:
        count = sum(verdict.ok is ok for verdict in verdicts)
        if count:
            counts.append(f"{count} {outcome}")
    commands = count_of(len(verdicts), "command")
    source = describe_source(checkout)
    return f"{commands}: {', '.join(counts)}; launch {__version__} checked against {source}"


_OUTCOMES = ((True, "accepted"), (False, "refused"), (None, "undecided"))
