"""Check files: find their trainer commands and maps of flags, and return the verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.flag_files import FlagMap, find_flag_maps
from launch.check.lint.other_tools import find_other_tool
from launch.check.lint.readers import list_files, scan_file
from launch.check.lint.shell import find_in_arguments
from launch.check.lint.shell_syntax import literal_argument
from launch.check.lint.trainer_commands import (
    LintFinding,
    ScanResult,
    TrainerScript,
    merge_scans,
    not_followed,
    warning,
)
from launch.upstream.trainers import ENTRIES

# The trainers of RLVR, which a file of flags that names no trainer is not taken for.
_OF_RLVR = ("grpo_fast", "grpo", "trl_grpo")
# The trainers of such a file, in the order of preference.
_NAMES = tuple(name for name in ENTRIES if name not in _OF_RLVR)
TRAINERS = tuple(map(TrainerScript, _NAMES))


@dataclass(frozen=True)
class FileReport:
    """The result for one file."""

    file: str
    verdicts: tuple[LintVerdict, ...]  # verdicts in the order of their lines
    notes: tuple[LintFinding, ...]  # findings about the file itself


def check_files(
    paths: Iterable[str], checker: CommandChecker, trainer: TrainerScript | None = None
) -> Iterator[FileReport]:
    """Check each file, and each file of each folder.

    Unreadable content in one file does not affect the others.
    """
    for name in paths:
        path = Path(name)
        for file in list_files(path):
            yield check_file(file, checker, trainer, explicit=file == path)


def check_file(
    path: Path, checker: CommandChecker, trainer: TrainerScript | None = None, explicit: bool = True
) -> FileReport:
    """Check one file's commands and maps of flags.

    `trainer` is the one that YAML files of flags are checked against, None to detect it. `explicit`
    means that the user named this file, rather than a folder that contains it.
    """
    scan = scan_file(path, explicit)
    if trainer is None and not scan.commands:
        for documents in scan.documents:
            of_other_tool = find_other_tool(path, documents, explicit)
            if of_other_tool is None:
                continue
            finding, has_flags = of_other_tool
            if has_flags:
                scan = replace(scan, notes=(*scan.notes, finding))
                continue
            unread = replace(scan, documents=(), unfollowed=(*scan.unfollowed, finding))
            return _check(str(path), unread, checker)
    return _check(str(path), scan, checker, trainer)


def check_command_line(argv: Sequence[str], checker: CommandChecker) -> FileReport:
    """Check one command as the shell has expanded it.

    A command is undecided if it starts no trainer that lint knows.
    """
    arguments = [literal_argument(text, 1) for text in argv]
    scan = find_in_arguments(arguments)
    if not scan.commands and not scan.unfollowed:
        scan = merge_scans(
            [scan, not_followed(f"'{argv[0]}' starts no trainer that lint knows", 1)]
        )
    return _check("command line", scan, checker)


def _check(
    file: str, scan: ScanResult, checker: CommandChecker, trainer: TrainerScript | None = None
) -> FileReport:
    verdicts = [checker.check_command(file, command) for command in scan.commands]
    verdicts += [LintVerdict(file, entry.line, "", None, (entry,)) for entry in scan.unfollowed]
    trainer = None if verdicts else trainer
    for documents in scan.documents:
        for flags in find_flag_maps(documents, trainer, TRAINERS, checker.schemas.fields):
            if flags.trainer is not None:
                verdicts.append(checker.check_flag_map(file, flags.trainer, flags))
            else:
                verdicts.append(_check_with_best_trainer(file, flags, checker))
    verdicts.sort(key=lambda verdict: verdict.line)
    return FileReport(file, tuple(verdicts), scan.notes)


def _check_with_best_trainer(file: str, flags: FlagMap, checker: CommandChecker) -> LintVerdict:
    """Check a map of flags whose file names no trainer.

    It is checked against the first trainer that accepts it, else against the closest one.
    """
    names = [key.text.replace("-", "_") for key, _ in flags.entries]
    unknown_counts: dict[TrainerScript, int] = {}
    for trainer in TRAINERS:
        fields = checker.schemas.fields(trainer)
        unknown_counts[trainer] = sum(1 for name in names if name not in fields)
    candidates = [trainer for trainer in TRAINERS if unknown_counts[trainer] == 0]
    if not candidates:
        candidates = [min(TRAINERS, key=lambda trainer: unknown_counts[trainer])]
    verdicts = [checker.check_flag_map(file, trainer, flags) for trainer in candidates]
    closest = min(verdicts, key=_distance)
    if closest.ok is not False:
        return closest
    foreign = [str(problem.where) for problem in closest.problems if _is_foreign(problem)]
    if foreign:
        keys = ", ".join(foreign[:3])
        message = (
            f"not decided: no trainer here has {keys}, so that another program may read this file; "
            f"the closest trainer is {closest.script}"
        )
        cure = "--trainer TRAINER checks it against one"
        note = warning("undecided", message, flags.line, cure=cure)
        return replace(closest, ok=None, findings=(note, *closest.warnings))
    message = (
        "no trainer accepts this file; the problems listed are those of the closest one, "
        f"{closest.script} (use --trainer to choose another)"
    )
    note = warning("no_trainer_accepts", message, flags.line)
    return replace(closest, findings=(note, *closest.findings))


def _is_foreign(problem: LintFinding) -> bool:
    """Return whether a problem is about a key that no trainer has, had or resembles."""
    return problem.id == "unknown_flag" and problem.cure is None


def _distance(verdict: LintVerdict) -> tuple[int, int]:
    """Order verdicts: accepted, undecided, refused; the fewest problems first."""
    return ((True, None, False).index(verdict.ok), len(verdict.problems))
