"""The page about upstream's commits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launch.upstream.pin.lock import load_lock, locked_schema
from launch.upstream.trainers import OPEN_INSTRUCT
from maintain import history
from maintain.commit import find_commit
from maintain.history import commits_since, describe_history, lint_scripts
from maintain.impact import Impact, TrainerImpact
from tests.upstream.checkouts import checkout


@pytest.fixture
def repo() -> Path:
    root = checkout()
    if root is None or not (root / ".git").exists():
        pytest.skip("needs a clone of open-instruct")
    return root


def unchanged(repo: Path, commit: str, python: str) -> Impact:
    trainers = tuple(TrainerImpact(name, locked_schema(name), ()) for name in OPEN_INSTRUCT)
    return Impact(commit, trainers, ())


def test_the_commits_of_a_time_change_the_package(repo: Path) -> None:
    pin = load_lock().pin
    commits = commits_since(repo, "2026-08-01", pin)
    assert commits[0].id == pin
    assert commits == sorted(commits, key=lambda commit: commit.date, reverse=True)
    assert all(commit.date >= "2026-08-01" for commit in commits)


def test_the_scripts_are_checked_with_the_parsers_of_the_commit(repo: Path) -> None:
    verdicts = lint_scripts(repo, unchanged(repo, load_lock().pin, "python"))
    refused = [verdict for verdict in verdicts if verdict.ok is False]
    assert len(verdicts) > 100
    assert 0 < len(refused) < len(verdicts)
    schema = locked_schema("finetune")
    fewer = {name: flag for name, flag in schema.fields.items() if name != "model_name_or_path"}
    other = TrainerImpact("finetune", replace(schema, fields=fewer), ())
    more = lint_scripts(repo, Impact("0" * 40, (other,), ()))
    assert sum(verdict.ok is False for verdict in more) > len(refused)


def test_three_months_end_with_the_newest_commit(
    repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However old the newest commit is; stderr counts the commits while the page is made."""
    monkeypatch.setattr(history, "assess_impact", unchanged)
    monkeypatch.setattr(history, "lint_scripts", lambda repo, impact: [])
    pin = load_lock().pin
    lines = list(describe_history(repo, None, pin, "python"))
    count = len(commits_since(repo, "2026-05-20", pin))
    assert sum(line.startswith("| `") for line in lines) == count > 10
    progress = capsys.readouterr().err.splitlines()
    assert len(progress) == count and f"{count} of {count}: " in progress[-1]


def test_the_scripts_that_a_commit_breaks_are_listed(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = locked_schema("finetune")
    fewer = {name: flag for name, flag in schema.fields.items() if name != "model_name_or_path"}

    def without_the_model(repo: Path, commit: str, python: str) -> Impact:
        return Impact(commit, (TrainerImpact("finetune", replace(schema, fields=fewer), ()),), ())

    monkeypatch.setattr(history, "assess_impact", without_the_model)
    pin = load_lock().pin
    monkeypatch.setattr(history, "commits_since", lambda *_: [find_commit(repo, pin)])
    lines = list(describe_history(repo, None, pin, "python"))
    (row,) = (line for line in lines if line.startswith(f"| `{pin[:9]}`"))
    newly = int(row.rpartition("(")[2].partition(")")[0])
    listed = [line for line in lines if line.startswith("- `scripts/")]
    assert newly > len(listed) > 0 and f"- and {newly - len(listed)} more" in lines
    assert all("model_name_or_path" in line for line in listed)


def test_a_row_for_each_commit(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "assess_impact", unchanged)
    monkeypatch.setattr(history, "lint_scripts", lambda repo, impact: [])
    pin = load_lock().pin
    lines = list(describe_history(repo, "2026-08-10", pin, "python"))
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(commits_since(repo, "2026-08-10", pin)) > 1
    assert rows[0].startswith(f"| `{pin[:9]}` |")
    assert all(row.endswith("| 0 | 0 | 0 of 0 (0) |") for row in rows)
