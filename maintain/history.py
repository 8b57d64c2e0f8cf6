"""One page about upstream's commits: what each would break here, and in upstream's own scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from launch.check.lint.checker import CommandChecker, LintVerdict
from launch.check.lint.files import check_files
from launch.check.lint.schemas import TrainerSchemas
from launch.errors import UserError
from launch.upstream.pin.lock import load_lock
from maintain.commit import Commit, run_git
from maintain.impact import Impact, assess_impact

_SCRIPTS = "scripts"  # of the checkout
_MOST = 5  # breaks of a commit that are listed


def commits_since(repo: Path, since: str, tip: str) -> list[Commit]:
    """Return the commits of the main branch up to `tip` that change the package, newest first.

    Raises UserError: git_failed, git_missing.
    """
    listed = ("log", "--first-parent", f"--since={since}", "--format=%H%x00%cs%x00%s", tip)
    lines = run_git(repo, *listed, "--", "open_instruct").splitlines()
    return [Commit(*line.split("\0")) for line in lines]


def describe_history(repo: Path, since: str, tip: str, python: str) -> Iterator[str]:
    """Yield the lines of the page, each commit's as soon as it is known. Raises UserError."""
    commits = commits_since(repo, since, tip)
    yield "# Upstream's commits, and what each would break"
    yield ""
    yield (
        f"The {len(commits)} commits of open-instruct since {since} that change its package, compared "
        f"with the pin {load_lock().pin[:9]}. *Refused* are the commands in its checkout's "
        "`scripts/` that the commit's own parsers refuse."
    )
    yield ""
    yield "| commit | | flags that differ | breaks here | refused scripts |"
    yield "|---|---|---|---|---|"
    details: list[str] = []
    for commit in commits:
        try:
            impact = assess_impact(repo, commit.id, python)
        except UserError as error:
            yield f"| `{commit.id[:9]}` | {_subject(commit)} | ? | {error.problems[0].message} | ? |"
            continue
        changed = len({change.flag for trainer in impact.trainers for change in trainer.changes})
        verdicts = lint_scripts(repo, impact)
        refused = sum(verdict.ok is False for verdict in verdicts)
        yield (
            f"| `{commit.id[:9]}` | {_subject(commit)} | {changed} | {len(impact.breaks)} "
            f"| {refused} of {len(verdicts)} |"
        )
        if impact.breaks:
            details += ["", f"## {commit.id[:9]}", "", *_breaks(impact)]
    yield from details


def lint_scripts(repo: Path, impact: Impact) -> Sequence[LintVerdict]:
    """Check the checkout's scripts against the parsers of the commit; of TRL, those of the lock."""
    schemas = {trainer.trainer: trainer.schema for trainer in impact.trainers if trainer.schema}
    checker = CommandChecker(TrainerSchemas(None, (), known=schemas))
    reports = check_files([str(repo / _SCRIPTS)], checker)
    return [verdict for report in reports for verdict in report.verdicts if verdict.script]


def _subject(commit: Commit) -> str:
    return f"{commit.date} {commit.subject}".replace("|", "/")


def _breaks(impact: Impact) -> list[str]:
    lines = [f"- {problem}".replace("<", "&lt;") for problem in impact.breaks[:_MOST]]
    if len(impact.breaks) > _MOST:
        lines.append(
            f"- and {len(impact.breaks) - _MOST} more: `python -m maintain diff {impact.commit[:9]}`"
        )
    return lines
