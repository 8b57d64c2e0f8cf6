"""One page about upstream's commits: what each would break here, and in upstream's own scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path

from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.files import check_files
from launch.check.lint.schemas import TrainerSchemas
from launch.errors import UserError
from launch.terminal import notify
from launch.upstream.pin.lock import load_lock
from maintain.commit import Commit, find_commit, run_git
from maintain.impact import Impact, assess_impact

_SCRIPTS = "scripts"  # of the checkout
_MOST = 5  # breaks of a commit that are listed, and commands of scripts
_DAYS = 92  # three months

# the file and the line of a command, and the trainer that it starts
_Command = tuple[str, int, str]


def commits_since(repo: Path, since: str, tip: str) -> list[Commit]:
    """Return the commits of the main branch up to `tip` that change the package, newest first.

    Raises UserError: git_failed, git_missing.
    """
    listed = ("log", "--first-parent", f"--since={since}", "--format=%H%x00%cs%x00%s", tip)
    lines = run_git(repo, *listed, "--", "open_instruct").splitlines()
    return [Commit(*line.split("\0")) for line in lines]


def describe_history(repo: Path, since: str | None, tip: str, python: str) -> Iterator[str]:
    """Yield the lines of the page, each commit's as soon as it is known; stderr has the progress.

    `since`: a date as git takes it; None for the three months up to the newest commit, which may be
    older than today. Raises UserError: unknown_commit, git_failed, git_missing.
    """
    newest = date.fromisoformat(find_commit(repo, tip).date)
    since = since or str(newest - timedelta(days=_DAYS))
    commits = commits_since(repo, since, tip)
    yield "# Upstream's commits, and what each would break"
    yield ""
    yield (
        f"The {len(commits)} commits of open-instruct from {since} to {newest} that change its "
        f"package, compared with the pin {load_lock().pin[:9]}. *Breaks here* are lines and patches of "
        "this project that do not fit the commit. *Scripts* are the commands in `scripts/` of the "
        "clone that the commit's own parsers refuse, and in brackets those of them that the pin accepts."
    )
    yield ""
    yield "| commit | | flags that differ | breaks here | scripts |"
    yield "|---|---|---|---|---|"
    refused_at_pin = _refused(lint_scripts(repo, None))
    details: list[str] = []
    for number, commit in enumerate(commits, 1):
        notify(f"{number} of {len(commits)}: {commit.id[:9]} {_subject(commit)}")
        try:
            impact = assess_impact(repo, commit.id, python)
        except UserError as error:
            yield f"| `{commit.id[:9]}` | {_subject(commit)} | ? | {error.problems[0].message} | ? |"
            continue
        changed = len({change.flag for trainer in impact.trainers for change in trainer.changes})
        verdicts = lint_scripts(repo, impact)
        refused = _refused(verdicts)
        newly = {key: problem for key, problem in refused.items() if key not in refused_at_pin}
        yield (
            f"| `{commit.id[:9]}` | {_subject(commit)} | {changed} | {len(impact.breaks)} "
            f"| {len(refused)} of {len(verdicts)} ({len(newly)}) |"
        )
        if impact.breaks or newly:
            details += ["", f"## {commit.id[:9]}", ""]
            more = f": `python -m maintain diff {commit.id[:9]}`"
            details += _first([str(problem) for problem in impact.breaks], more)
            details += _first([_describe(repo, *item) for item in newly.items()])
    yield from details


def lint_scripts(repo: Path, impact: Impact | None) -> Sequence[LintVerdict]:
    """Check the clone's scripts against the parsers of a commit, or of the pin for None; those that
    the commit does not have, and TRL's, are the lock's.
    """
    trainers = impact.trainers if impact else ()
    schemas = {trainer.trainer: trainer.schema for trainer in trainers if trainer.schema}
    checker = CommandChecker(TrainerSchemas(None, (), known=schemas))
    reports = check_files([str(repo / _SCRIPTS)], checker)
    return [verdict for report in reports for verdict in report.verdicts if verdict.script]


def _refused(verdicts: Sequence[LintVerdict]) -> dict[_Command, str]:
    """Return the first problem of each command that is refused."""
    return {
        (verdict.file, verdict.line, verdict.script): str(verdict.problems[0].message)
        for verdict in verdicts
        if verdict.ok is False
    }


def _describe(repo: Path, command: _Command, problem: str) -> str:
    file, line, _ = command
    return f"`{Path(file).relative_to(repo)}:{line}`: {problem}"


def _subject(commit: Commit) -> str:
    return f"{commit.date} {commit.subject}".replace("|", "/")


def _first(lines: Sequence[str], more: str = "") -> list[str]:
    """Return the first lines as items of a list, and how many there are besides."""
    items = [f"- {line}".replace("<", "&lt;") for line in lines[:_MOST]]
    if len(lines) > _MOST:
        items.append(f"- and {len(lines) - _MOST} more{more}")
    return items
