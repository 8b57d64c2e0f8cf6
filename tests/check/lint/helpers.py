"""Helpers of lint's tests: checkers based on the lock or a checkout, and shortcuts to find and
check commands.
"""

from __future__ import annotations

from pathlib import Path

from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.files import check_file
from launch.check.lint.schemas import TrainerSchemas
from launch.check.lint.shell import find_commands, line_lookup
from launch.check.lint.trainer_commands import TrainerCommand
from launch.resources import ROOT
from launch.upstream.pin.checkout import find_checkout
from tests.upstream.checkouts import SITE_PACKAGES


def locked_checker() -> CommandChecker:
    """Return a checker that uses only the lock: the same on every machine."""
    return CommandChecker(TrainerSchemas(None, []))


def live_checker(root: Path) -> CommandChecker:
    """Return a checker that uses a checkout and the installed packages."""
    checkout = find_checkout(str(root), {}, ROOT)
    return CommandChecker(TrainerSchemas(checkout, SITE_PACKAGES))


def commands_in(text: str) -> list[TrainerCommand]:
    return list(find_commands(text, line_lookup(text)).commands)


def texts(command: TrainerCommand) -> list[str]:
    return [argument.text for argument in command.arguments]


def check_text(
    folder: Path, text: str, name: str = "run.sh", checker: CommandChecker | None = None
) -> list[LintVerdict]:
    """Check a file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return list(check_file(path, checker or locked_checker()).verdicts)
