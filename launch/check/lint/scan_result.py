"""What lint finds in a text: trainer commands and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from launch.check.lint.shell_syntax import Argument
from launch.check.lint.trainers import TrainerScript


@dataclass(frozen=True)
class Diagnostic:
    """A problem, a warning, or a note on a file or on the text of a command."""

    kind: str  # stable id
    message: str
    line: int  # 1-based
    flag: str | None = None  # without dashes; None if it concerns no flag


@dataclass(frozen=True)
class TrainerCommand:
    """A command that starts a trainer."""

    trainer: TrainerScript
    line: int  # where it starts, 1-based
    arguments: tuple[Argument, ...]  # the trainer's own
    notes: tuple[Diagnostic, ...] = ()
    is_truncated: bool = False  # its end could not be read
    takes_accelerate_options: bool = False  # `trl sft` and the like, which pass options on to accelerate
    launcher: tuple[Argument, ...] = ()  # what comes before the trainer's own arguments


@dataclass(frozen=True)
class ScanResult:
    """The trainer commands of a text, in order, notes on what could not be read, and what is not followed."""

    commands: tuple[TrainerCommand, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    unfollowed: tuple[Diagnostic, ...] = ()  # what may start a trainer and is not followed


NO_COMMANDS = ScanResult()


def merge(scans: Iterable[ScanResult]) -> ScanResult:
    """Return the commands of all, in the order of their lines, and all notes and entries."""
    scans = list(scans)
    commands = sorted((command for scan in scans for command in scan.commands), key=lambda command: command.line)
    notes = tuple(note for scan in scans for note in scan.notes)
    return ScanResult(tuple(commands), notes, tuple(entry for scan in scans for entry in scan.unfollowed))
