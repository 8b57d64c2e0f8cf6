"""The ledger is extended by what changed between two captures, each change with its commit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from maintain.commit import Commit, find_commit
from maintain.compare import FlagChange
from maintain.ledger import extend_ledger


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A history of two commits after the ledger's tip: one adds a flag's name, the other is about
    something else.
    """
    package = tmp_path / "open_instruct"
    package.mkdir()
    for text, subject in (
        ("old", "first (#1)"),
        ("my_flag: int", "Adds a flag (#12)"),
        ("# else", "Other (#13)"),
    ):
        (package / "a.py").write_text(text + ("\nmy_flag: int" if text == "# else" else ""))
        identity = [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-c",
            "commit.gpgsign=false",
        ]
        for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", subject]):
            subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    return tmp_path


def made_by(commit: Commit) -> dict[str, Any]:
    return {"commit": commit.id, "date": commit.date, "pull_request": commit.pull_request}


def test_the_ledger_goes_on_from_the_changes_between_two_captures(repo: Path) -> None:
    first = find_commit(repo, "HEAD~2").id
    past = {"kind": "removed", "flag": "gone", "commit": first, "trainers": ["finetune"]}
    elsewhere = {**past, "commit": "0" * 40}
    old = {"tip": first, "entries": [past, elsewhere]}
    changes = {
        "finetune": [FlagChange("added", "my_flag"), FlagChange("removed", "use_flash_attn")],
        "dpo": [FlagChange("added", "my_flag"), FlagChange("default", "beta", None, 1, 2)],
    }
    hints = {"renames": [], "removed": {"use_flash_attn": "attention is auto-detected now"}}
    new = extend_ledger(old, repo, "HEAD", changes, hints)
    adds, tip = find_commit(repo, "HEAD~1"), find_commit(repo, "HEAD")
    assert (adds.pull_request, tip.pull_request) == (12, 13)
    assert new["tip"] == tip.id
    assert new["entries"] == [
        past,
        {"kind": "added", "flag": "my_flag", **made_by(adds), "trainers": ["finetune", "dpo"]},
        {
            "kind": "removed",
            "flag": "use_flash_attn",
            **made_by(tip),
            "trainers": ["finetune"],
            "note": "attention is auto-detected now",
        },
        {
            "kind": "default",
            "flag": "beta",
            "old": 1,
            "new": 2,
            **made_by(tip),
            "trainers": ["dpo"],
        },
    ]
    assert json.dumps(new)
    back = extend_ledger(new, repo, first, {}, hints)
    assert (back["tip"], back["entries"]) == (first, [past]), (
        "an earlier tip leaves out what comes after it"
    )


def test_pull_requests_come_from_the_subject() -> None:
    assert Commit("0" * 40, "2026-01-01", 'Reapply "x (#1)" (#12)').pull_request == 12
    assert Commit("0" * 40, "2026-01-01", "no number").pull_request is None
