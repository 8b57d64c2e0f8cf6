"""What lint finds in a text: trainer commands and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from launch.check.lint.shell_syntax import Argument
from launch.check.lint.trainers import TrainerScript
from launch.config.yaml_nodes import Node
from launch.worker.finding import Finding, Level


@dataclass(frozen=True)
class LintFinding(Finding):
    """A finding about a line of a file. `where` is the flag that it concerns, without dashes."""

    line: int = 1

    def as_json(self) -> dict[str, Any]:
        message = f"{self.message}; {self.cure}" if self.cure else self.message
        return {"kind": self.id, "message": message, "line": self.line, "flag": self.where}


def _find(
    level: Level, id: str, message: str, line: int, flag: str | None = None, *, cure: str | None = None
) -> LintFinding:
    return LintFinding(id, level, message, cure, flag, line=line)


error, warning = partial(_find, "fail"), partial(_find, "warn")


@dataclass(frozen=True)
class TrainerCommand:
    """A command that starts a trainer."""

    trainer: TrainerScript
    line: int  # where it starts, 1-based
    arguments: tuple[Argument, ...]  # the trainer's own
    notes: tuple[LintFinding, ...] = ()
    is_truncated: bool = False  # it may get other arguments than those, so it is never accepted
    takes_accelerate_options: bool = False  # `trl sft` and the like, which pass options on to accelerate
    launcher: tuple[Argument, ...] = ()  # what comes before the trainer's own arguments


@dataclass(frozen=True)
class ScanResult:
    """The trainer commands of a text, in order, notes on what could not be read, and what is not followed."""

    commands: tuple[TrainerCommand, ...] = ()
    notes: tuple[LintFinding, ...] = ()
    unfollowed: tuple[LintFinding, ...] = ()  # what may start a trainer and is not followed
    documents: tuple[tuple[Node, ...], ...] = ()  # of YAML, which may contain maps of flags

    def doubted(self, id: str, message: str, cure: str | None = None) -> ScanResult:
        """Return the same with a warning on each command, which cannot be accepted because of it."""
        commands = (
            replace(it, notes=(*it.notes, warning(id, message, it.line, cure=cure)), is_truncated=True)
            for it in self.commands
        )
        return replace(self, commands=tuple(commands))


NO_COMMANDS = ScanResult()


def not_followed(reason: str, line: int) -> ScanResult:
    """Return the result for a construct that is not followed."""
    return ScanResult(unfollowed=(warning("not_followed", f"not followed: {reason}", line),))


def merge(scans: Iterable[ScanResult]) -> ScanResult:
    """Return the commands of all, in the order of their lines, and everything else."""
    scans = list(scans)
    return ScanResult(
        tuple(sorted((command for scan in scans for command in scan.commands), key=lambda command: command.line)),
        tuple(note for scan in scans for note in scan.notes),
        tuple(entry for scan in scans for entry in scan.unfollowed),
        tuple(document for scan in scans for document in scan.documents),
    )
